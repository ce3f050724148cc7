"""5,000 requests with one wrong field each: the answer is a 2xx, or an error that names that field."""

import json
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from ferrite.engine import EngineConfig
from tests.api.spelling import spelling_server
from tests.api.support import WAIT_SECONDS, Running
from tests.robustness.mutations import Mutant, drawn, encoded, explained
from tests.robustness.valid_requests import VALID, Valid

COUNT, SEED = 5_000, 20_26
MUTANTS = drawn(COUNT, SEED)
CHOICES = 2
"""What the valid requests ask for."""


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    engine = EngineConfig(max_concurrent=CHOICES, inference_wait_seconds=WAIT_SECONDS)
    with spelling_server(max_concurrent_inferences=CHOICES, engine=engine, access_log=False) as running:
        yield running


@pytest.fixture
def connection(server: Running) -> Iterator[HTTPConnection]:
    """Slower clients would take most of the time."""
    opened = HTTPConnection(server.address.host, server.address.port, timeout=WAIT_SECONDS)
    yield opened
    opened.close()


def post(connection: HTTPConnection, path: str, content: bytes) -> tuple[int, bytes]:
    connection.request("POST", path, content, {"content-type": "application/json"})
    answer = connection.getresponse()
    return answer.status, answer.read()


def problem(mutant: Mutant, status: int, answer: bytes) -> str | None:
    """Return what is wrong with an answer."""
    if status == 200:
        return "was taken" if mutant.must_fail else None
    error = json.loads(answer)["error"]
    if set(error) != {"message", "type", "param", "code"} or not error["message"]:
        return f"got the error {error}"
    if status not in (400, 404) or error["type"] != "invalid_request_error":
        return f"got {status}: {error['message'][:200]}"
    if not explained(mutant, error["param"], error["code"]):
        return f"is blamed on `{error['param']}`: {error['message'][:200]}"
    return None


def test_there_are_enough_mutants_of_every_kind() -> None:
    assert len({(mutant.valid.name, mutant.kind, mutant.place) for mutant in MUTANTS}) == COUNT
    kinds = Counter(mutant.kind for mutant in MUTANTS)
    assert len(kinds) > 80
    assert min(kinds.values()) >= 3
    assert {mutant.valid.path for mutant in MUTANTS} == {valid.path for valid in VALID}


@pytest.mark.parametrize("valid", VALID, ids=str)
def test_a_wrong_field_is_named_and_breaks_nothing(connection: HTTPConnection, valid: Valid) -> None:
    assert post(connection, valid.path, encoded(valid.body))[0] == 200
    problems = []
    for mutant in MUTANTS:
        if mutant.valid == valid:
            found = problem(mutant, *post(connection, valid.path, mutant.content()))
            problems += [f"{mutant} {found}"] if found else []
    assert not problems, "\n".join(problems)
    # Neither a place nor the connection is lost.
    assert post(connection, valid.path, encoded(valid.body))[0] == 200


def test_nothing_is_left_behind(server: Running) -> None:
    assert (server.engine.active, server.engine.waiting) == (0, 0)
