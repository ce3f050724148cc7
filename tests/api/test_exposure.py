"""A server that other machines can reach without a key says so at its start."""

import pytest

from tests.api.support import server_process

WITHOUT_MODEL = (
    "import sys; from ferrite.cli.server import run; sys.exit(run(sys.argv[1:], {}, lambda config: None))"
)


@pytest.mark.parametrize(
    ("arguments", "warned"),
    [
        (("--bind", "0.0.0.0:0"), True),
        (("--bind", "0.0.0.0:0", "--api-key", "k"), False),
        (("--bind", "127.0.0.1:0"), False),
    ],
)
def test_an_open_door_is_warned_of(arguments: tuple[str, ...], *, warned: bool) -> None:
    with server_process(WITHOUT_MODEL, *arguments) as server:
        assert server.ready["address"]
    assert ("there is no --api-key" in server.log) is warned
