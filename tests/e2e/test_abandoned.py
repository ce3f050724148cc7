"""A client that leaves, at every stage: its work ends, its place goes to the next, nothing is left behind."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.e2e.client import (
    ENDLESS,
    ask,
    batcher,
    held,
    read_until,
    send,
    token_ids,
    wait_for_load,
    wait_until_idle,
)
from tests.e2e.process import ServerProcess, eventually, ferrite_server

pytestmark = pytest.mark.model

ONE_STREAM = (
    "--experimental-batched-decode", "--max-batch-streams", "1", "--max-batch-queue", "2",
    "--kv-backend", "locus", "--kv-max-tokens", "8192", "--hard-max-tokens", "3500",
)  # fmt: skip


@pytest.fixture(scope="module")
def server(smollm2_path: Path) -> Iterator[ServerProcess]:
    with ferrite_server(smollm2_path, *ONE_STREAM) as running:
        yield running
        assert "ERROR" not in running.log


@pytest.fixture(scope="module")
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with server.http() as client:
        yield client


@pytest.mark.parametrize("stage", ["streaming", "generating", "prefilling"])
def test_the_next_request_runs_at_once(server: ServerProcess, http: httpx.Client, stage: str) -> None:
    wait_until_idle(http)
    before = batcher(http)

    def grown(counter: str) -> Callable[[], bool]:
        return lambda: batcher(http)[counter] > before[counter]

    body = {**ENDLESS, "stream": stage == "streaming"}
    if stage == "prefilling":
        body["prompt"] = token_ids(1, 4600)
    with ThreadPoolExecutor(1) as caller:
        with send(server, **body) as leaving:
            wait_for_load(http, active=1, queued=0)
            waiting = caller.submit(ask, http, prompt=[1000], max_tokens=1)
            wait_for_load(http, active=1, queued=1)
            if stage == "streaming":
                assert read_until(leaving, b"data: ").startswith(b"HTTP/1.1 200")
                for _ in range(3):
                    read_until(leaving, b"data: ")
            else:
                eventually(grown("prefill_chunks" if stage == "prefilling" else "decode_steps"))
        assert waiting.result().completion_tokens == 1
    wait_until_idle(http)
    after = batcher(http)
    assert after["aborted"] == before["aborted"] + 1
    assert (after["decode_steps"] == before["decode_steps"]) == (stage == "prefilling")
    if stage == "prefilling":
        assert after["prefill_tokens"] - before["prefill_tokens"] < 4600
    # Nothing goes on behind our back: another request, and not a step more than its own prompt's.
    ask(http, prompt=[1000], max_tokens=1)
    end = batcher(http)
    assert end.pop("prefill_chunks") == after.pop("prefill_chunks") + 1
    assert end.pop("prefill_tokens") == after.pop("prefill_tokens") + 1
    assert end == after


def test_who_leaves_the_line_never_runs(server: ServerProcess, http: httpx.Client) -> None:
    wait_until_idle(http)
    before = batcher(http)
    with held(server, http, active=1):
        with send(server, prompt=token_ids(2, 50), max_tokens=3):
            wait_for_load(http, active=1, queued=1)
        wait_for_load(http, active=1, queued=0)
        assert batcher(http)["aborted"] == before["aborted"]
    wait_until_idle(http)
    after = batcher(http)
    assert after["aborted"] == before["aborted"] + 1
    held_prompt = ask(http, prompt=str(ENDLESS["prompt"]), max_tokens=1).prompt_tokens
    assert after["prefill_tokens"] - before["prefill_tokens"] == held_prompt


def test_the_rows_tell_who_left(server: ServerProcess, http: httpx.Client) -> None:
    cursor = http.get("/v1/requests?since=0&limit=1").json()["recorded_total"]
    with held(server, http, active=1, queued=1):
        pass
    wait_until_idle(http)
    eventually(lambda: http.get("/v1/requests").json()["recorded_total"] == cursor + 2)
    rows = http.get(f"/v1/requests?since={cursor}").json()["rows"]
    assert [(row["cancelled"], row["error"], row["finish_reason"]) for row in rows] == [
        (True, None, None)
    ] * 2
    assert sorted(row["prefill_ms"] is None for row in rows) == [False, True]
