"""Continuous batching on a real model: equal to running alone, bounded, fair, and without double work."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.client import (
    END_IDS,
    MODEL,
    Answer,
    ask,
    ask_together,
    batcher,
    held,
    token_ids,
    wait_for_load,
    wait_until_idle,
)
from tests.e2e.process import QUESTION, ServerProcess, ferrite_server

pytestmark = pytest.mark.model

SEED_COMMAND = (
    "--experimental-prefix-cache", "--prefix-cache-max-entries", "8", "--prefix-cache-max-mib", "64",
    "--experimental-batched-decode", "--max-batch-streams", "4", "--max-batch-queue", "4",
)  # fmt: skip
ROOMY = ("--ctx-size", "4096", "--hard-max-tokens", "3500")
EIGHT = (
    "--experimental-prefix-cache",
    "--experimental-batched-decode", "--max-batch-streams", "8", "--max-batch-queue", "8", *ROOMY,
)  # fmt: skip

MIXES: dict[str, list[dict[str, Any]]] = {
    "greedy": [
        {"messages": QUESTION, "max_tokens": 24},
        {"prompt": "def fibonacci(n):\n", "max_tokens": 24},
        {"prompt": token_ids(1, 150), "max_tokens": 16, "logit_bias": END_IDS},
        {"prompt": "日本語", "max_tokens": 20},
    ],
    "sampled and penalised": [
        {"prompt": "Paris, Rome, Berlin,", "max_tokens": 24, "temperature": 1, "seed": 7},
        {"messages": QUESTION, "max_tokens": 20, "temperature": 1.3, "top_p": 0.9, "seed": -1},
        {"prompt": "To be, or not", "max_tokens": 20, "frequency_penalty": 1, "repetition_penalty": 1.2},
        {"prompt": token_ids(2, 90), "max_tokens": 16, "temperature": 0.8, "top_k": 40, "min_p": 0.02,
         "presence_penalty": 0.5, "seed": 2**63 - 1},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def server(smollm2_path: Path) -> Iterator[ServerProcess]:
    with ferrite_server(smollm2_path, *SEED_COMMAND, *ROOMY) as running:
        yield running
        assert "ERROR" not in running.log


@pytest.fixture(scope="module")
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with server.http() as client:
        yield client


@pytest.fixture(scope="module")
def eight(smollm2_path: Path) -> Iterator[ServerProcess]:
    with ferrite_server(smollm2_path, *EIGHT) as running:
        yield running
        assert "ERROR" not in running.log


@pytest.fixture(scope="module")
def eight_http(eight: ServerProcess) -> Iterator[httpx.Client]:
    with eight.http() as client:
        yield client


def contents(answers: list[Answer]) -> list[Any]:
    return [answer.content for answer in answers]


@pytest.mark.parametrize("mix", MIXES)
def test_four_streams_are_each_what_they_are_alone(
    server: ServerProcess, http: httpx.Client, mix: str
) -> None:
    alone = [ask(http, **asked) for asked in MIXES[mix]]
    assert all(answer.token_ids for answer in alone)
    together = ask_together(server, http, 4, [{**asked, "stream": True} for asked in MIXES[mix]])
    assert contents(together) == contents(alone)
    streamed_alone = [ask(http, stream=True, **asked) for asked in MIXES[mix]]
    assert contents(streamed_alone) == contents(alone)


def test_the_ninth_request_is_refused_and_told_when_to_come_back(
    server: ServerProcess, http: httpx.Client
) -> None:
    before = batcher(http)["queue_rejected"]
    with held(server, http, active=4, queued=4):
        for refusals, (path, body) in enumerate(
            (
                ("/v1/completions", {"prompt": "Hello", "max_tokens": 1}),
                ("/v1/completions", {"prompt": "Hello", "max_tokens": 1, "stream": True}),
                ("/v1/chat/completions", {"messages": QUESTION, "stream": True, "temperature": 1}),
            ),
            start=1,
        ):
            refused = http.post(path, json={"model": MODEL, **body})
            assert refused.status_code == 429
            assert refused.headers["content-type"] == "application/json"
            assert int(refused.headers["retry-after"]) >= 1
            error = refused.json()["error"]
            assert error.keys() == {"message", "type", "param", "code"}
            assert error["type"] == "rate_limit_error"
            assert "--max-batch-queue" in error["message"]
            assert batcher(http)["queue_rejected"] == before + refusals
        assert batcher(http)["queue_depth"] == 4
        assert http.get("/health").json()["ready"] is True
    wait_until_idle(http)
    assert ask(http, prompt="Hello", max_tokens=1).completion_tokens == 1


def test_the_seed_s_command_on_qwen(qwen_path: Path) -> None:
    requests: list[dict[str, Any]] = [
        {"messages": QUESTION, "max_tokens": 10},
        {"prompt": "def fibonacci(n):\n", "max_tokens": 16},
        {"prompt": "Paris, Rome, Berlin,", "max_tokens": 16, "temperature": 1, "seed": 7},
        {"prompt": "To be, or not", "max_tokens": 12, "frequency_penalty": 1, "repetition_penalty": 1.2},
    ]
    model_id = "qwen2.5-0.5b-q4_k_m"
    options = ("--model-id", model_id, *SEED_COMMAND, "--ctx-size", "2048")
    with ferrite_server(qwen_path, *options) as server, server.http() as http:
        alone = [ask(http, model=model_id, **asked) for asked in requests]
        with ThreadPoolExecutor(4) as callers:
            together = list(
                callers.map(lambda asked: ask(http, model=model_id, stream=True, **asked), requests)
            )
        assert contents(together) == contents(alone)


@pytest.mark.parametrize("namespaces", [["a"], ["x", "y"]], ids=["one", "two"])
def test_equal_prompts_are_evaluated_once_for_each_namespace(
    eight: ServerProcess, eight_http: httpx.Client, namespaces: list[str]
) -> None:
    prompt = {"prompt": token_ids(10 + len(namespaces), 600), "max_tokens": 4, "logit_bias": END_IDS}
    keys = namespaces * (8 // len(namespaces))
    with ThreadPoolExecutor(8) as callers:
        with held(eight, eight_http, active=8):
            before = batcher(eight_http)["prefill_tokens"]
            asked = [callers.submit(ask, eight_http, prompt_cache_key=key, **prompt) for key in keys]
            wait_for_load(eight_http, active=8, queued=8)
        answers = [answer.result() for answer in asked]
    assert batcher(eight_http)["prefill_tokens"] - before == 600 * len(namespaces)
    assert {answer.cached_tokens for answer in answers} == {0}
    assert set(contents(answers)) == {ask(eight_http, **prompt).content}


def test_a_stream_advances_in_every_step_while_long_prompts_come(
    eight: ServerProcess, eight_http: httpx.Client
) -> None:
    def steps_without_decoding() -> int:
        samples = eight_http.get("/metrics").text
        counts = [
            re.search(rf"(?m)^ferrite_{name} ([\d.]+)$", samples)
            for name in ("step_seconds_count", "decode_steps_total")
        ]
        every, decoding = (int(float(count[1])) for count in counts if count)
        return every - decoding

    running = {"prompt": "The weather today is", "logit_bias": END_IDS, "return_token_ids": True}
    prompts = [token_ids(20 + index, 240 + 40 * index) for index in range(4)]
    wait_until_idle(eight_http)
    before, steps_before = steps_without_decoding(), batcher(eight_http)["decode_steps"]
    body = {"model": MODEL, "max_tokens": 3500, "stream": True, **running}
    seen: list[int] = []
    with eight_http.stream("POST", "/v1/completions", json=body) as stream, ThreadPoolExecutor(4) as callers:
        events = (json.loads(line.removeprefix("data: ")) for line in stream.iter_lines() if line)
        seen += next(events)["choices"][0]["token_ids"]
        # All that come are evaluated beside the stream, and every one ends.
        list(callers.map(lambda prompt: ask(eight_http, prompt=prompt, max_tokens=1), prompts))
        steps = batcher(eight_http)["decode_steps"] - steps_before
        while len(seen) < steps:
            seen += next(events)["choices"][0]["token_ids"]
    wait_until_idle(eight_http)
    # The only step without a token of the stream is that of its own prompt.
    assert steps_without_decoding() - before == 1
    assert ask(eight_http, max_tokens=len(seen), **running).token_ids == tuple(seen)
