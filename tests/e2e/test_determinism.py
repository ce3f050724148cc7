"""The same request gives the same tokens: alone, among others, again, and however the server is set up."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.process import ServerProcess, ferrite_server

pytestmark = pytest.mark.model

REQUESTS: list[dict[str, Any]] = [
    {"prompt": "The weather today is", "max_tokens": 24},
    {"prompt": "def fibonacci(n):\n", "max_tokens": 20},
    {"prompt": "Paris, Rome, Berlin,", "max_tokens": 16, "temperature": 1, "seed": 7},
    {"prompt": [1000 + index for index in range(150)], "max_tokens": 12},
    {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0.8, "top_k": 40, "seed": -1},
    {"prompt": "To be, or not", "max_tokens": 20, "frequency_penalty": 1, "repetition_penalty": 1.2},
    {"prompt": "A", "max_tokens": 20, "temperature": 1.5, "min_p": 0.05, "seed": 2**63 - 1},
    {"prompt": "日本語", "max_tokens": 16, "presence_penalty": 0.5},
]


@pytest.fixture(scope="module")
def alone(server: ServerProcess, http: httpx.Client) -> list[list[int]]:
    return [server.token_ids(http, **request) for request in REQUESTS]


def test_alone_and_among_others(server: ServerProcess, http: httpx.Client, alone: list[list[int]]) -> None:
    with ThreadPoolExecutor(len(REQUESTS)) as callers:
        for order in (REQUESTS, REQUESTS[::-1]):
            together = callers.map(lambda request: server.token_ids(http, **request), order)
            by_prompt = list(together) if order is REQUESTS else list(together)[::-1]
            assert by_prompt == alone


def test_seeds(server: ServerProcess, http: httpx.Client, alone: list[list[int]]) -> None:
    seeded = REQUESTS[2]
    assert server.token_ids(http, **seeded) == alone[2]
    assert server.token_ids(http, **{**seeded, "seed": 8}) != alone[2]
    unseeded = {**seeded, "seed": None, "temperature": 1.5}
    assert len({tuple(server.token_ids(http, **unseeded)) for _ in range(3)}) > 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("--kernel-provider", "portable", "--max-concurrent-inferences", "2"),
        ("--threads", "2", "--experimental-batched-decode", "--max-batch-streams", "2"),
        ("--threads", "3", "--kv-backend", "locus", "--kv-tokens-per-block", "32", "--kv-max-tokens", "128"),
    ],
    ids=["portable", "batching on 2 threads", "locus on 3 threads"],
)
def test_other_kernels_threads_and_storage(
    smollm2_path: Path, alone: list[list[int]], arguments: tuple[str, ...]
) -> None:
    with ferrite_server(smollm2_path, *arguments, "--ctx-size", "512") as server, server.http() as http:
        assert (server.ready["kernel_provider"] == "portable") == ("portable" in arguments)
        for index in (1, 2, 5):
            short = {**REQUESTS[index], "max_tokens": 6}
            assert server.token_ids(http, **short) == alone[index][:6]
