"""Clients that misbehave: they stop reading, trickle, or come and go by the thousand."""

import json
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from ferrite.api import Address, protocol
from tests.api.support import WAIT_SECONDS, completion_body, eventually
from tests.e2e.process import ferrite_server
from tests.engine.fakes import ByteDetokenizer, next_token
from tests.robustness.support import COMPLETIONS, bench, call, expected

PROMPT, HUGE_PROMPT = (10, 11, 12), (99, 98, 97)
HUGE = 200
"""A token with more text than any buffer should hold many of."""
COUNT = 9


@contextmanager
def connection(address: Address, *, receive_buffer: int | None = None) -> Iterator[socket.socket]:
    with socket.socket() as made:
        made.settimeout(WAIT_SECONDS)
        if receive_buffer is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        made.connect((address.host, address.port))
        yield made


def completion(**fields: object) -> bytes:
    body = json.dumps(completion_body(**fields)).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
    return head.encode() + b"%d\r\n\r\n%s" % (len(body), body)


def test_a_client_that_stops_reading_pauses_itself_and_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    push = ByteDetokenizer.push
    monkeypatch.setattr(
        ByteDetokenizer,
        "push",
        lambda self, token: "x" * (256 << 10) if token == HUGE else push(self, token),
    )
    monkeypatch.setattr(protocol, "MAX_STALLED_SECONDS", 0.4)
    with bench(streams=2) as served:
        monkeypatch.setattr(
            served.runner, "sample", lambda seen: HUGE if seen[:3] == HUGE_PROMPT else next_token(seen)
        )
        served.gate.open()
        with connection(served.running.address, receive_buffer=4096) as stalled:
            stalled.sendall(completion(prompt=list(HUGE_PROMPT), max_tokens=200, stream=True))
            eventually(lambda: served.running.engine.active == 1)
            # The other stream of two goes on as if nothing were.
            for stream in (True, False, True):
                outcome = call(served.client, PROMPT, COUNT, stream=stream)
                assert outcome == expected(PROMPT, COUNT, streamed=stream)
            eventually(lambda: not served.running.engine._unfinished)
        generated = sum(list(batch.token_ids).count(HUGE) for batch in served.runner.batches)
        assert 0 < generated < 190
        served.check_idle()
        (row,) = [row for row in served.client.get("/v1/requests").json()["rows"] if row["cancelled"]]
        assert (row["streamed"], row["error"], row["finish_reason"]) == (True, None, None)


@pytest.mark.parametrize("sent_at_once", [0, 60, -100], ids=["first byte", "head", "body"])
def test_a_client_that_sends_byte_by_byte_is_cut(monkeypatch: pytest.MonkeyPatch, sent_at_once: int) -> None:
    monkeypatch.setattr(protocol, "MAX_REQUEST_SECONDS", 0.5)
    monkeypatch.setattr(protocol, "LINGER_SECONDS", 0.1)
    request = completion(prompt="x" * 4096)
    with bench() as served:
        served.gate.open()
        with connection(served.running.address) as slow:
            slow.sendall(request[:sent_at_once])
            slow.settimeout(0.02)
            answer = b""
            for byte in request[sent_at_once:]:
                try:
                    slow.sendall(bytes([byte]))
                    answer = slow.recv(4096)
                except TimeoutError:
                    continue
                break
        assert answer.startswith(b"HTTP/1.1 408"), answer
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_timeout"
        assert call(served.client, PROMPT, COUNT) == expected(PROMPT, COUNT, streamed=False)
        served.check_idle()
        assert len(served.runner.samplers) == 1


def test_ten_thousand_connections_come_and_go() -> None:
    pieces = (
        b"",
        b"GET /hea",
        b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
        completion()[:-5],
        completion(),
        b"\x16\x03\x01\x02\x00",
    )
    with ferrite_server(None, "--drain-timeout-ms", "1000") as server, server.http() as client:
        host, _, port = str(server.ready["address"]).rpartition(":")
        address = Address(host, int(port))

        def descriptors() -> int:
            return len(os.listdir(f"/proc/{server.process.pid}/fd"))

        health = {"model": "ferrite-local", "ready": False, "reason": "no_model"}
        assert client.get("/health").json() == health
        before = descriptors()
        for _ in range(100):
            with ExitStack() as open_together:
                for number in range(100):
                    made = open_together.enter_context(connection(address))
                    # A reset instead of a close, which would keep each port for a minute.
                    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    made.sendall(pieces[number % len(pieces)])
            # It is answered behind them, so that never many more than a hundred are open.
            assert client.get("/health").json() == health
        eventually(lambda: descriptors() <= before)
        assert "Traceback" not in server.log
        assert " ERROR " not in server.log
