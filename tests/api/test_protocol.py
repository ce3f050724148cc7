"""Below the application: bytes that are no request, heads without end, clients that trickle or run ahead."""

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState as ConnectionState

from ferrite.api import protocol
from ferrite.api.services import MAX_ARRIVING_BODIES
from tests.api.support import (
    WAIT_SECONDS,
    Running,
    completion_body,
    eventually,
    gated_server,
    running_server,
)

COMPLETIONS = "/v1/completions"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running_server() as running:
        yield running


@pytest.fixture(autouse=True)
def _short_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "LINGER_SECONDS", 0.2)


@contextmanager
def connection(server: Running) -> Iterator[socket.socket]:
    with socket.create_connection((server.address.host, server.address.port), WAIT_SECONDS) as made:
        yield made


def head(length: int | None, *more: str) -> bytes:
    framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    lines = [f"POST {COMPLETIONS} HTTP/1.1", "Host: x", "Content-Type: application/json", framing, *more]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def request(body: dict[str, Any], *more: str) -> bytes:
    data = json.dumps(body).encode()
    return head(len(data), *more) + data


def read_answer(client: socket.socket) -> tuple[int, dict[str, str], Any]:
    """Read one answer that has a length."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += _some(client)
    top, _, body = data.partition(b"\r\n\r\n")
    status, *lines = top.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    while len(body) < int(headers["content-length"]):
        body += _some(client)
    return int(status.split()[1]), headers, json.loads(body)


def _some(client: socket.socket) -> bytes:
    data = client.recv(65536)
    assert data, "the connection closed early"
    return data


def read_to_end(client: socket.socket) -> bytes:
    pieces = []
    while piece := client.recv(65536):
        pieces.append(piece)
    return b"".join(pieces)


def assert_refused(client: socket.socket, status: int, code: str) -> None:
    got, headers, body = read_answer(client)
    assert (got, body["error"]["code"]) == (status, code)
    assert headers["content-type"] == "application/json"
    assert headers["x-request-id"].startswith("req-")
    assert headers["connection"] == "close"
    assert client.recv(1) == b""


@pytest.mark.parametrize(
    "data",
    [
        b"GARBAGE\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://[::1/health HTTP/1.1\r\nHost: x\r\n\r\n",
        head(5, "Transfer-Encoding: chunked"),
        head(None) + b"ZZ\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
    ],
)
def test_what_is_not_http_is_a_json_400(server: Running, data: bytes) -> None:
    with connection(server) as client:
        client.sendall(data)
        assert_refused(client, 400, "invalid_http")


ENDLESS = {
    "header": (b"GET /health HTTP/1.1\r\nX-Long: ", b"a" * 4096),
    "headers": (b"GET /health HTTP/1.1\r\n", b"X-Many: 1\r\n" * 400),
    "url": (b"GET /", b"a" * 4096),
    "trailers": (head(None) + b"2\r\n{}\r\n0\r\n", b"X-Many: 1\r\n" * 400),
    "chunk extension": (head(None) + b"2;", b"a" * 4096),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_head_that_never_ends_is_refused(server: Running, kind: str) -> None:
    begin, more = ENDLESS[kind]
    with connection(server) as client:
        client.sendall(begin)
        # Far more than the limit: what arrives in one piece with some of a body is not counted.
        client.sendall(more * ((1 << 20) // len(more)))
        assert_refused(client, 431, "headers_too_large")


def test_a_large_head_is_read(server: Running) -> None:
    with connection(server) as client:
        client.sendall(request(completion_body(), "X-Large: " + "a" * (protocol.MAX_HEAD_BYTES // 2)))
        assert read_answer(client)[0] == 200


def test_trailers_are_not_headers(server: Running) -> None:
    data = json.dumps(completion_body()).encode()
    with connection(server) as client:
        trailer = b"0\r\nx-request-id: from-a-trailer\r\n\r\n"
        client.sendall(head(None, "x-request-id: mine") + b"%x\r\n%s\r\n" % (len(data), data) + trailer)
        status, headers, _ = read_answer(client)
    assert (status, headers["x-request-id"]) == (200, "mine")


UPGRADE = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAA")


def test_an_offer_of_http_2_is_ignored_and_the_body_read(server: Running) -> None:
    data = json.dumps(completion_body()).encode()
    chunked = head(None, *UPGRADE) + b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data)
    with connection(server) as client:
        for sent in (request(completion_body(), *UPGRADE), chunked, request(completion_body())):
            client.sendall(sent)
            status, _, body = read_answer(client)
            assert (status, body["object"]) == (200, "text_completion")
        client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n" + "\r\n".join(UPGRADE).encode() + b"\r\n\r\n")
        assert read_answer(client)[0] == 200
        slowly = request(completion_body(), *UPGRADE)
        client.sendall(slowly[:-10])
        client.sendall(slowly[-10:])
        assert read_answer(client)[0] == 200


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /hea", 408),
        (head(1000)[:-2], 408),
        (head(1000) + b'{"model":', 408),
        (head(1000).replace(b"/json", b"/text") + b"{", 415),
    ],
)
def test_a_request_must_arrive_in_time(monkeypatch: pytest.MonkeyPatch, sent: bytes, status: int) -> None:
    monkeypatch.setattr(protocol, "MAX_REQUEST_SECONDS", 0.1)
    with running_server() as server, connection(server) as client:
        client.sendall(sent)
        got, _, body = read_answer(client)
        assert got == status
        assert status != 408 or body["error"]["code"] == "request_timeout"
        # Also one that was answered early and goes on trickling.
        assert client.recv(1) == b""


def test_a_connection_without_a_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_REQUEST_SECONDS", 0.1)
    with running_server() as server, connection(server) as client:
        assert client.recv(1) == b""


def test_the_time_to_arrive_does_not_limit_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_REQUEST_SECONDS", 0.1)
    with gated_server() as (running, gate), connection(running) as client:
        client.sendall(request(completion_body(max_tokens=3)))
        gate.wait_until_reached()
        with connection(running) as idle:
            assert idle.recv(1) == b""
        gate.open()
        assert read_answer(client)[2]["choices"][0]["text"] == "zzz"


@pytest.mark.parametrize("at_once", [True, False])
def test_a_request_before_the_answer_to_the_last_one_is_not_read(*, at_once: bool) -> None:
    body = completion_body(max_tokens=2)
    with gated_server() as (running, gate), connection(running) as client:
        client.sendall(request(body) * (2 if at_once else 1))
        gate.wait_until_reached()
        if not at_once:
            client.sendall(request(body))
        gate.open()
        answer = read_to_end(client)
        assert answer.count(b"HTTP/1.1 ") == answer.count(b"HTTP/1.1 200 OK") == 1
        assert b"connection: close" in answer
        assert answer.endswith(b"}")


def test_a_client_that_ran_ahead_and_left_stops_its_generation() -> None:
    with gated_server() as (running, gate):
        with connection(running) as client:
            client.sendall(request(completion_body(max_tokens=400)) * 2)
            gate.wait_until_reached()
        eventually(lambda: all(ticket.channel.cancelled for ticket in running.engine._unfinished))
        gate.pass_one()
        eventually(lambda: not running.engine._unfinished)


def test_noise_behind_a_request_does_not_disturb_its_stream() -> None:
    with gated_server() as (running, gate), connection(running) as client:
        client.sendall(request(completion_body(max_tokens=3, stream=True)))
        gate.wait_until_reached()
        client.sendall(b"GARBAGE\r\n\r\n")
        gate.open()
        assert read_to_end(client).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_many_connections_come_and_go(server: Running) -> None:
    before = len(server.server.server_state.connections)
    for index in range(300):
        with connection(server) as client:
            client.sendall((b"", b"POST /v1/com", head(1000), request(completion_body()))[index % 4])
    eventually(lambda: len(server.server.server_state.connections) <= before)
    with server.client() as http:
        assert http.post(COMPLETIONS, json=completion_body()).status_code == 200


def test_bodies_that_are_arriving_share_a_limit() -> None:
    with running_server(max_body_bytes=1000) as server, server.client() as http:
        waiting = [connection(server) for _ in range(MAX_ARRIVING_BODIES)]
        opened = [manager.__enter__() for manager in waiting]
        for client in opened:
            client.sendall(head(1000) + b"{" * 999)

        def refused() -> bool:
            answer = http.post(COMPLETIONS, json=completion_body())
            return answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1

        eventually(refused)
        for manager in waiting:
            manager.__exit__(None, None, None)
        eventually(lambda: http.post(COMPLETIONS, json=completion_body()).status_code == 200)


def test_every_answer_of_a_refused_method_and_route_is_json(server: Running) -> None:
    with httpx.Client(base_url=server.url, trust_env=False, verify=False) as http:
        for method, path in (("OPTIONS", "*"), ("PROPFIND", "/health"), ("TRACE", "/v1/models")):
            answer = http.request(method, path if path != "*" else "/nothing")
            assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_large_prompt_does_not_hold_up_small_ones() -> None:
    with running_server() as server:
        large = {"model": "maker/tiny-model", "messages": [{"role": "user", "content": "hold" * 20_000}]}
        with connection(server) as client, server.client() as http:
            data = json.dumps(large).encode()
            client.sendall(head(len(data)).replace(COMPLETIONS.encode(), b"/v1/chat/completions") + data)
            eventually(lambda: bool(server.conversations.seen))
            for _ in range(3):
                assert http.post(COMPLETIONS, json=completion_body()).status_code == 200
            server.conversations.held.set()
            status, _, body = read_answer(client)
            assert (status, body["error"]["code"]) == (400, "context_length_exceeded")


def test_connections_that_are_dropped_leave_nothing(server: Running) -> None:
    beginnings = (b"", b"POST /v1/comp", head(100), head(100) + b"{", request(completion_body()))
    for number in range(300):
        with connection(server) as client:
            client.sendall(beginnings[number % len(beginnings)])
    eventually(lambda: not server.server.server_state.connections)
    with server.client() as http:
        eventually(lambda: http.get("/v1/stats").json()["in_flight"] == 0)
        assert http.post(COMPLETIONS, json=completion_body()).status_code == 200


class SlowTransport(asyncio.Transport):
    """Says how much waits for the client; a test changes that."""

    def __init__(self) -> None:
        super().__init__()
        self.unsent = 0
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        pass


class Timers:
    """A loop of which only the timers are used, by hand."""

    def __init__(self) -> None:
        self.waiting: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, seconds: float, action: Callable[[], None]) -> "Timer":
        timer = seconds, action
        self.waiting.append(timer)
        return Timer(self, timer)

    def pass_time(self) -> None:
        (timer,) = self.waiting
        self.waiting.remove(timer)
        timer[1]()


@dataclass
class Timer:
    timers: Timers
    timer: tuple[float, Callable[[], None]]

    def cancel(self) -> None:
        self.timers.waiting.remove(self.timer)


async def no_application(scope: object, receive: object, send: object) -> None:
    raise AssertionError


def connected() -> tuple[protocol.BoundedProtocol, SlowTransport, Timers]:
    """A protocol that has no request yet, whose own deadline is out of the way."""
    timers, transport = Timers(), SlowTransport()
    made = protocol.BoundedProtocol(
        Config(no_application, lifespan="off", log_config=None),
        ConnectionState(),
        {},
        timers,  # type: ignore[arg-type]
    )
    made.connection_made(transport)
    made._clear_deadline()
    return made, transport, timers


def test_a_client_that_reads_slowly_is_not_cut_while_it_reads() -> None:
    made, transport, timers = connected()
    transport.unsent = 1000
    made.pause_writing()
    for _ in range(5):
        transport.unsent -= 1
        assert [seconds for seconds, _ in timers.waiting] == [protocol.MAX_STALLED_SECONDS]
        timers.pass_time()
        assert not transport.aborted
    timers.pass_time()
    assert transport.aborted


def test_a_client_that_catches_up_is_watched_no_more() -> None:
    made, transport, timers = connected()
    transport.unsent = 1000
    made.pause_writing()
    made.resume_writing()
    assert timers.waiting == []
    made.pause_writing()
    made.connection_lost(None)
    assert timers.waiting == []
    assert not transport.aborted
