"""Server-sent events, and noticing that a client has gone."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.types import Message, Receive, Send

from ferrite.api.body import ClientGone
from ferrite.api.errors import ApiError, ErrorAnswer

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    # Reverse proxies that buffer answers would hold the tokens back.
    (b"x-accel-buffering", b"no"),
]
_FAREWELL_SECONDS = 5.0
_DONE_MARK = b"data: [DONE]\n\n"
_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class Sent:
    """One server-sent event; ``event`` None: it has no name of its own."""

    data: msgspec.Struct
    event: str | None = None

    def encode(self) -> bytes:
        """Return the bytes on the wire."""
        name = b"" if self.event is None else b"event: %s\n" % self.event.encode()
        return name + b"data: " + _encoder.encode(self.data) + b"\n\n"


def failure_events(error: ApiError) -> list[Sent]:
    """Return how a stream says that it failed: an ``error`` event with the usual error object."""
    return [Sent(ErrorAnswer(error.body), "error")]


class Reply:
    """How an answer travels: as one JSON body, or as server-sent events."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.streaming = False
        """The 200 of a stream has gone out; from here on an error is an event."""
        self.failure: Callable[[ApiError], Sequence[Sent]] = failure_events
        """How this stream says that it failed."""

    async def send_whole(self, body: bytes) -> None:
        """Send the whole answer."""
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await self._put({"type": "http.response.start", "status": 200, "headers": headers})
        await self._put({"type": "http.response.body", "body": body, "more_body": False})

    async def send_events(self, events: Sequence[Sent]) -> None:
        """Send events, the headers before the first; waits while the client's connection takes no more."""
        if not self.streaming:
            self.streaming = True
            await self._put({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        if events:
            await self._put({"type": "http.response.body", "body": _joined(events), "more_body": True})

    async def end(self, events: Sequence[Sent], *, done_mark: bool) -> None:
        """Send the last events and, for clients that wait for it, ``[DONE]``."""
        await self.send_events(events)
        mark = _DONE_MARK if done_mark else b""
        await self._put({"type": "http.response.body", "body": mark, "more_body": False})

    async def fail(self, error: ApiError) -> None:
        """Send the error and close; gives up on a client that does not read."""
        body = _joined(self.failure(error))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL_SECONDS):
                await self._put({"type": "http.response.body", "body": body, "more_body": False})

    async def _put(self, message: Message) -> None:
        try:
            await self._send(message)
        except OSError:
            # How servers of ASGI 2.4 and later say that the client has gone.
            raise ClientGone from None


def _joined(events: Sequence[Sent]) -> bytes:
    return b"".join(event.encode() for event in events)


async def run_while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run ``work``, whose request body has been read, until it ends or the client is gone.

    A silent generation sends nothing, so a failing send would notice far too late: the connection is
    watched beside the work. Raises ``ClientGone`` after cancelling it, else what the work raises.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        gone = not task.done()
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.wait((task, watcher))
    if gone:
        raise ClientGone
    task.result()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
