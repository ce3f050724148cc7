"""How ``ferrite-server`` begins: what it leaves out of its imports, and when garbage is collected."""

import gc
import os
import re
import subprocess
import sys
from importlib.metadata import version

import pytest

from ferrite.cli import server


def output(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def test_the_entry_point_runs_the_command() -> None:
    code = "from ferrite.cli.start import main; main()"
    assert output(code, "--version") == f"ferrite-server {version('ferrite-server')}\n"


def test_numpy_starts_no_threads() -> None:
    code = (
        "import os, sys; from ferrite.cli.start import main; "
        "os._exit = lambda status: sys.exit(f\"{'numpy' in sys.modules} {os.listdir('/proc/self/task')}\"); "
        "main()"
    )
    command = [sys.executable, "-c", code, "--version"]
    environ = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert re.fullmatch(r"True \['\d+'\]\n", ended.stderr)


def test_what_only_some_servers_need_is_not_imported() -> None:
    code = (
        "import sys; import ferrite.cli.server, ferrite.cli.load; "
        "print([name for name in ('prometheus_client', 'rich', 'tomllib', 'typer') if name in sys.modules])"
    )
    assert output(code) == "[]\n"


@pytest.mark.parametrize("rests", [True, False])
def test_a_rest_of_the_collector_ends_before_the_first_request(
    monkeypatch: pytest.MonkeyPatch, rests: bool
) -> None:
    seen: list[tuple[bool, bool]] = []

    def serve(*_: object) -> int:
        seen.append((gc.isenabled(), gc.get_freeze_count() > 0))
        return 0

    monkeypatch.setattr(server, "serve", serve)
    if rests:
        gc.disable()
    try:
        assert server.run(["--bind", "127.0.0.1:0"], {}, lambda _: pytest.fail("there is no model")) == 0
    finally:
        gc.unfreeze()
        gc.enable()
    assert seen == [(True, rests)]
