"""One server over HTTP: plain requests, measured generations, and streams that can be left early."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp
import msgspec

from ferrite.operations.answers import Answer, AnswerReader, ErrorBody, read_error
from ferrite.operations.sse import SseError, SseEvent, SseReader

IDLE_CONNECTION_SECONDS = 2.0
"""Below the 5 s after which the server closes one: a request on a closing connection would be lost."""
MAX_RETRY_AFTER_SECONDS = 60.0
_encoder = msgspec.json.Encoder()


class TransportError(Exception):
    """No HTTP answer came; the message is one line."""


@dataclass(frozen=True, slots=True)
class Target:
    """The server and how to talk to it. ``base_url`` has no slash at its end and no ``/v1``."""

    base_url: str
    api_key: str | None = field(default=None, repr=False)
    timeout_seconds: float = 300.0
    """For one request, from connecting to the last byte."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A plain HTTP answer; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Exchange:
    """One generation request and what came of it. Times are seconds since it was sent."""

    status: int | None
    """None when no answer came."""
    headers: Mapping[str, str]
    failure: str | None
    """A short word, None for success: a code of the server, ``http_N``, ``timeout``, ``connection``,
    ``broken_stream``, ``malformed_answer`` or ``malformed_error``."""
    error: ErrorBody | None
    """The error object of a refusal, where it has OpenAI's form."""
    answer: Answer
    seconds: float
    content_times: tuple[float, ...] | None
    """When chunks with text or token ids came; None when the answer was not a stream."""
    finish_time: float | None
    """When the finish reason came; None when the answer was not a stream."""

    @property
    def ok(self) -> bool:
        """The request was answered, and completely."""
        return self.failure is None

    @property
    def busy(self) -> bool:
        """The server had no room for it."""
        return self.status == 429


def retry_after_seconds(headers: Mapping[str, str], default: float = 1.0) -> float:
    """Return how long a busy server asks to wait, bounded; ``default`` where it does not say."""
    written = headers.get("retry-after", "")
    if not (written.isascii() and written.isdigit()):
        return default
    return min(float(written[:9]), MAX_RETRY_AFTER_SECONDS)


class LiveStream:
    """An answer whose head has come; leaving it closes the connection."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers = lower_headers(response)

    @property
    def is_stream(self) -> bool:
        """The server answers with events and not with one body."""
        return self.headers.get("content-type", "").startswith("text/event-stream")

    async def events(self) -> AsyncIterator[SseEvent]:
        """Yield events as they come; raises ``aiohttp.ClientError``, ``TimeoutError`` or ``SseError``."""
        reader = SseReader()
        async for data in self._response.content.iter_any():
            for event in reader.feed(data):
                yield event

    async def body(self) -> bytes:
        """Return the whole body."""
        return await self._response.read()


class Client:
    """Connections to one server. Proxies of the environment are not used."""

    def __init__(self, target: Target, *, connections: int = 1, keep_alive: bool = True) -> None:
        """``connections``: most at one moment; without ``keep_alive`` every request has its own."""
        self._target = target
        self._connections = connections
        self._keep_alive = keep_alive
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = (
            aiohttp.TCPConnector(limit=self._connections, keepalive_timeout=IDLE_CONNECTION_SECONDS)
            if self._keep_alive
            else aiohttp.TCPConnector(limit=self._connections, force_close=True)
        )
        timeout = aiohttp.ClientTimeout(total=self._target.timeout_seconds)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str) -> Reply:
        """Send a GET with the API key; raises ``TransportError``."""
        return await self.send("GET", path)

    async def send(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Send a request; ``headers`` replace the usual ones. Raises ``TransportError``."""
        try:
            async with self._request(method, path, body, headers) as response:
                return Reply(response.status, lower_headers(response), await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise TransportError(f"{self._target.base_url}{path}: {reason(error)}") from error

    @asynccontextmanager
    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[LiveStream]:
        """Send a generation request and give its answer from the head on; closes what is not read."""
        async with self._request("POST", path, _encoder.encode(body), None) as response:
            try:
                yield LiveStream(response)
            finally:
                # Only a connection whose answer was read to its end can serve another request.
                if not response.content.is_eof():
                    response.close()

    async def generate(self, path: str, body: Mapping[str, Any]) -> Exchange:
        """Send a generation request and measure it; a failure is part of the result."""
        started = time.perf_counter()
        reader = AnswerReader()
        status: int | None = None
        headers: Mapping[str, str] = {}
        error: ErrorBody | None = None
        streamed = False
        try:
            async with self.stream(path, body) as live:
                status, headers, streamed = live.status, live.headers, live.is_stream
                if status != 200:
                    error = read_error(await live.body())
                    reader.failure = f"http_{status}" if error is None else error.code or error.type
                elif streamed:
                    async for event in live.events():
                        reader.add_event(event, time.perf_counter() - started)
                    reader.close()
                else:
                    reader.add_whole(await live.body())
        except TimeoutError:
            reader.failure = "timeout"
        except SseError:
            reader.failure = "broken_stream"
        except (aiohttp.ClientError, OSError):
            reader.failure = "broken_stream" if streamed else "connection"
        return Exchange(
            status=status,
            headers=headers,
            failure=reader.failure,
            error=error,
            answer=reader.answer(),
            seconds=time.perf_counter() - started,
            content_times=tuple(reader.content_times) if streamed else None,
            finish_time=reader.finish_time,
        )

    def _request(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str] | None) -> Any:
        if self._session is None:
            raise RuntimeError("the client is used outside its context")
        usual = {} if body is None else {"content-type": "application/json"}
        if self._target.api_key is not None:
            usual["authorization"] = f"Bearer {self._target.api_key}"
        url = f"{self._target.base_url}{path}"
        return self._session.request(
            method, url, data=body, headers=usual if headers is None else headers, allow_redirects=False
        )


def lower_headers(response: aiohttp.ClientResponse) -> dict[str, str]:
    """Return the headers of an answer under names in lower case."""
    return {name.lower(): value for name, value in response.headers.items()}


def reason(error: BaseException) -> str:
    """Return why no answer came, as one line."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        return f"cannot connect: {os.strerror(number) if number else error.os_error}"
    if isinstance(error, asyncio.IncompleteReadError | aiohttp.ServerDisconnectedError):
        return "the server closed the connection"
    return " ".join(str(error).split()) or type(error).__name__
