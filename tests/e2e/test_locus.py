"""KV memory in mapped blocks on a real model: what can never fit is refused before any work."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.client import END_IDS, MODEL, ask, batcher, token_ids, wait_until_idle
from tests.e2e.process import ServerProcess, ferrite_server

pytestmark = pytest.mark.model

LOCUS = ("--kv-backend", "locus", "--kv-tokens-per-block", "16", "--kv-max-tokens", "512")
TOO_LONG: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": token_ids(1, 600)}),
    ("/v1/completions", {"prompt": token_ids(1, 600), "stream": True}),
    ("/v1/completions", {"prompt": token_ids(1, 500), "max_tokens": 13}),
    ("/v1/completions", {"prompt": ["Hello", "word " * 600]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 600}]}),
]


@pytest.fixture(scope="module", params=[1, 4], ids=["one permit", "four permits"])
def server(request: pytest.FixtureRequest, smollm2_path: Path) -> Iterator[ServerProcess]:
    with ferrite_server(smollm2_path, *LOCUS, "--max-concurrent-inferences", str(request.param)) as running:
        yield running
        assert "ERROR" not in running.log


@pytest.fixture(scope="module")
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with server.http() as client:
        yield client


def test_what_does_not_fit_is_refused_before_any_prompt_work(
    server: ServerProcess, http: httpx.Client
) -> None:
    permits = server.ready["memory"]["sessions"]
    # With one session its capacity is the whole budget; with four a request is only too long for its own.
    counter = "kv_rejected_too_large" if permits == 1 else "kv_rejected_context_length"
    before = batcher(http)
    assert before["kv_blocks_total"] == before["kv_blocks_free"] == 32 * permits
    assert before["kv_block_size"] == 16
    for path, body in TOO_LONG:
        refused = http.post(path, json={"model": MODEL, **body})
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (400, "context_length_exceeded"), error
        assert "--kv-max-tokens" in error["message"]
    after = batcher(http)
    assert after.pop(counter) == before.pop(counter) + len(TOO_LONG)
    # Not a chunk evaluated, not a block taken.
    assert after == before


def test_the_exact_fit_runs_and_gives_its_blocks_back(server: ServerProcess, http: httpx.Client) -> None:
    answer = ask(http, prompt=token_ids(2, 500), max_tokens=12, logit_bias=END_IDS)
    assert (answer.prompt_tokens, answer.completion_tokens) == (500, 12)
    wait_until_idle(http)
    assert batcher(http)["kv_blocks_peak"] == 32


def test_prompts_beyond_the_context_are_counted_as_such(http: httpx.Client) -> None:
    before = batcher(http)["kv_rejected_context_length"]
    refused = http.post("/v1/completions", json={"model": MODEL, "prompt": [1000] * 8192})
    assert refused.status_code == 400
    assert "8192" in refused.json()["error"]["message"]
    assert batcher(http)["kv_rejected_context_length"] == before + 1
