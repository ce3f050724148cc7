"""SIGTERM while a real model serves: what runs ends well or is told, what comes is refused, exit status 0."""

import json
import signal
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.client import END_IDS, ENDLESS, MODEL, ask, read_until, send, wait_for_load
from tests.e2e.process import ServerProcess, eventually, ferrite_server

pytestmark = pytest.mark.model

BATCH = (
    "--experimental-batched-decode", "--max-batch-streams", "4", "--max-batch-queue", "4",
    "--ctx-size", "4096", "--hard-max-tokens", "3500",
)  # fmt: skip
ASKED: list[dict[str, Any]] = [
    {"prompt": "The weather today is", "max_tokens": 40, "logit_bias": END_IDS, "stream": True},
    {"prompt": "Paris, Rome, Berlin,", "max_tokens": 40, "logit_bias": END_IDS, "temperature": 1, "seed": 7},
    {"prompt": "Once upon a time", "max_tokens": 40, "logit_bias": END_IDS, "stream": True},
    {"prompt": "def fibonacci(n):", "max_tokens": 40, "logit_bias": END_IDS},
    {"prompt": "To be, or not", "max_tokens": 4, "logit_bias": END_IDS, "stream": True},
]


def refused_or_closed(client: httpx.Client) -> Callable[[], bool]:
    """A new request gets a 503, or nobody listens any more."""

    def check() -> bool:
        try:
            answer = client.post("/v1/completions", json={"model": MODEL, "prompt": "x", "max_tokens": 1})
        except httpx.TransportError:
            return True
        return answer.status_code == 503 and answer.json()["error"]["code"] == "not_ready"

    return check


def drain_begins(server: ServerProcess, client: httpx.Client) -> None:
    server.process.send_signal(signal.SIGTERM)
    eventually(refused_or_closed(client))


def test_what_runs_and_waits_ends_as_if_nothing_were(smollm2_path: Path) -> None:
    with (
        ferrite_server(smollm2_path, *BATCH) as server,
        server.http() as client,
        ThreadPoolExecutor(len(ASKED)) as callers,
    ):
        alone = [ask(client, **asked).content for asked in ASKED]
        running: list[Future[Any]] = [callers.submit(ask, client, **asked) for asked in ASKED[:4]]
        wait_for_load(client, active=4, queued=0)
        running.append(callers.submit(ask, client, **ASKED[4]))
        wait_for_load(client, active=4, queued=1)
        drain_begins(server, client)
        assert [answer.result().content for answer in running] == alone
        assert server.process.wait(60) == 0
        assert "ERROR" not in server.log


def test_what_does_not_end_in_the_drain_time_is_told(smollm2_path: Path) -> None:
    with ferrite_server(smollm2_path, *BATCH, "--drain-timeout-ms", "300") as server, server.http() as client:
        with ExitStack() as connections:
            streams = [connections.enter_context(send(server, stream=True, **ENDLESS)) for _ in range(3)]
            for stream in streams:
                read_until(stream, b'"text":')
            whole = connections.enter_context(send(server, **ENDLESS))
            wait_for_load(client, active=4, queued=0)
            drain_begins(server, client)
            for stream in streams:
                end = read_to_end(stream)
                assert b"event: error\ndata: " in end
                assert b"[DONE]" not in end
                data = end.rpartition(b"data: ")[2].partition(b"\n")[0]
                assert json.loads(data)["error"]["type"] == "server_error"
            answer = read_to_end(whole)
            assert answer.split(b" ", 2)[1] in (b"500", b"503")
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "server_error"
        assert server.process.wait(60) == 0


def read_to_end(connection: Any) -> bytes:
    data = b""
    while piece := connection.recv(65536):
        data += piece
    return data
