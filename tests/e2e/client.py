"""What the end-to-end tests ask of a server: answers with their ids, its counters, requests held open."""

import json
import random
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from tests.e2e.process import API_KEY, WAIT_SECONDS, ServerProcess, eventually

MODEL = "ferrite-local"
END_IDS = {"0": -100, "2": -100}
"""Bans SmolLM2's end tokens, so that a text goes on to its limit."""
ENDLESS: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 3500, "logit_bias": END_IDS}
"""Takes longer than any test waits."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request generated, streamed or not."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    @property
    def content(self) -> tuple[str, tuple[int, ...], str]:
        """What must be equal however the request ran."""
        return self.text, self.token_ids, self.finish_reason


def token_ids(seed: int, count: int) -> list[int]:
    """Return a prompt of ordinary tokens that no other seed begins with."""
    return [random.Random(f"{seed} {index}").randrange(1000, 40_000) for index in range(count)]


def ask(client: httpx.Client, **fields: Any) -> Answer:
    """Send one request, a chat when it has ``messages``; it must be answered whole."""
    path = "/v1/chat/completions" if "messages" in fields else "/v1/completions"
    body = {"model": MODEL, "return_token_ids": True, **fields}
    if not body.get("stream"):
        answer = client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        whole = answer.json()
        return _answer([whole], whole["usage"])
    body["stream_options"] = {"include_usage": True}
    with client.stream("POST", path, json=body) as stream:
        assert stream.status_code == 200, stream.read()
        lines = [line for line in stream.iter_lines() if line]
    assert lines[-1] == "data: [DONE]", lines[-2:]
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert events[-1]["choices"] == []
    return _answer(events[:-1], events[-1]["usage"])


def _answer(parts: Sequence[Any], usage: Any) -> Answer:
    choices = [choice for part in parts for choice in part["choices"]]
    pieces = [choice.get("message") or choice.get("delta") or choice for choice in choices]
    (reason,) = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    return Answer(
        text="".join(piece.get("content") or piece.get("text") or "" for piece in pieces),
        token_ids=tuple(token for choice in choices for token in choice.get("token_ids") or ()),
        finish_reason=reason,
        prompt_tokens=usage["prompt_tokens"],
        completion_tokens=usage["completion_tokens"],
        cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
    )


def batcher(client: httpx.Client) -> dict[str, int]:
    """Return the engine's counters."""
    counters: dict[str, int] = client.get("/admin/stats").json()["batcher"]
    return counters


def serving(client: httpx.Client) -> dict[str, Any]:
    """Return ``/v1/stats``."""
    stats: dict[str, Any] = client.get("/v1/stats").json()
    return stats


def wait_until_idle(client: httpx.Client) -> None:
    """Wait until nothing runs or waits; all reserved blocks must then be free."""
    eventually(lambda: [serving(client)[name] for name in ("in_flight", "active", "queued")] == [0, 0, 0])
    counters = batcher(client)
    assert counters["kv_blocks_free"] == counters["kv_blocks_total"]


def wait_for_load(client: httpx.Client, *, active: int, queued: int) -> None:
    """Wait until so many requests run and so many wait."""
    eventually(lambda: (serving(client)["active"], serving(client)["queued"]) == (active, queued))


def send(server: ServerProcess, **fields: Any) -> socket.socket:
    """Send one completion over a connection of its own, without reading; closing it leaves the server."""
    body = json.dumps({"model": MODEL, **fields}).encode()
    host, _, port = str(server.ready["address"]).rpartition(":")
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {API_KEY}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    connection = socket.create_connection((host, int(port)), WAIT_SECONDS)
    connection.sendall(head.encode() + body)
    return connection


@contextmanager
def held(server: ServerProcess, client: httpx.Client, *, active: int, queued: int = 0) -> Iterator[None]:
    """Take all ``active`` permits with decoding streams, and ``queued`` places behind them, for the block."""
    with ExitStack() as connections:
        for stream in [
            connections.enter_context(send(server, stream=True, **ENDLESS)) for _ in range(active)
        ]:
            read_until(stream, b'"text":')
        for _ in range(queued):
            connections.enter_context(send(server, stream=True, **ENDLESS))
        wait_for_load(client, active=active, queued=queued)
        yield


def read_until(connection: socket.socket, mark: bytes) -> bytes:
    """Read until ``mark`` has come; return all that was read."""
    data = b""
    while mark not in data:
        piece = connection.recv(65536)
        assert piece, data
        data += piece
    return data


def ask_together(
    server: ServerProcess, client: httpx.Client, permits: int, asked: Sequence[dict[str, Any]]
) -> list[Answer]:
    """Let all requests wait behind ``permits`` held ones, so that they start together."""
    with ThreadPoolExecutor(len(asked)) as callers:
        with held(server, client, active=permits):
            answers = [callers.submit(ask, client, **fields) for fields in asked]
            wait_for_load(client, active=permits, queued=len(asked))
        return [answer.result() for answer in answers]
