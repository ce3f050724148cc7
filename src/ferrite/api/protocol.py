"""HTTP/1.1 on one connection: uvicorn's protocol, with bounds on head and time, and refusals in JSON."""

import asyncio
import logging
from typing import Any, cast

import httptools
from starlette.types import Scope
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState as ConnectionState

from ferrite.api.context import context_of, new_request_id
from ferrite.api.errors import ApiError

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers together; also trailers, and the framing between two pieces of a body."""
MAX_REQUEST_SECONDS = 60.0
"""From the first byte of a request (or from connecting) to its last."""
MAX_STALLED_SECONDS = 60.0
"""How long a client may take nothing of an answer that fills the buffers before it counts as gone."""
LINGER_SECONDS = 1.0
"""How long a refused client may go on sending before the connection is cut, so that it reads the refusal."""

_FRAMING_HEADERS = (b"content-length", b"transfer-encoding")


class BoundedProtocol(HttpToolsProtocol):
    """What uvicorn leaves to a proxy, since clients reach this server directly.

    A head that never ends or a body that trickles would hold memory or a connection for ever, before any key
    is checked; an answer that is not read would hold a permit and KV blocks. A request sent before the answer
    to the last one would hide that its client has gone. A body behind ``Upgrade: h2c`` (Java's client sends
    that by default) would be taken for another protocol.
    """

    def __init__(
        self,
        config: Config,
        server_state: ConnectionState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._deadline: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._unsent = 0
        """Bytes that waited for the client when it was last looked at."""
        self._undelivered = 0
        """Bytes since the parser last gave something to the application."""
        self._deaf = False
        """What the client still sends is thrown away; the connection closes when it has its answer."""
        self._in_head = False
        self._resuming = False
        """The parser reads a head that we wrote ourselves."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadlines with the connection."""
        self._clear_deadline()
        self._clear_stall()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Hold the application back: the client reads more slowly than it writes."""
        super().pause_writing()
        self._watch_stall()

    def resume_writing(self) -> None:
        """Let the application write again."""
        self._clear_stall()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Parse the next bytes."""
        if self._is_answering:
            self._stop_listening()
        if self._deaf:
            return
        self._unset_keepalive_if_required()
        if self._deadline is None:
            self._set_deadline()
        self._undelivered += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self._refuse(ApiError(400, "This is not a valid HTTP/1.1 request.", code="invalid_http"))
            return
        if self._undelivered > MAX_HEAD_BYTES:
            message = f"The head of the request is larger than {MAX_HEAD_BYTES} bytes."
            self._refuse(ApiError(431, message, code="headers_too_large"))

    def on_message_begin(self) -> None:
        """Start a request."""
        if not self._resuming:
            self._in_head = True
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Take a piece of the path."""
        if not self._resuming:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; trailers are dropped, nobody reads them."""
        if self._in_head and not self._resuming:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the application, unless the client did not wait for its last answer."""
        self._undelivered = 0
        if self._resuming:
            return
        running = self.cycle
        super().on_headers_complete()
        self._in_head = False
        if self.pipeline:
            self.pipeline.clear()
            self.cycle = running
            self._stop_listening()

    def on_body(self, body: bytes) -> None:
        """Hand over a piece of the body."""
        self._undelivered = 0
        if not self._deaf:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """End the request, unless the parser only believes that another protocol follows."""
        if self._deaf or self.parser.should_upgrade():
            return
        self._undelivered = 0
        self._clear_deadline()
        super().on_message_complete()

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # We stay with HTTP/1.1, so what follows is the body: a new parser reads it behind its framing.
            (consumed,) = upgrade.args
            framing = [b"%s: %s\r\n" % header for header in self.headers if header[0] in _FRAMING_HEADERS]
            self.parser = httptools.HttpRequestParser(self)
            self._resuming = True
            self.parser.feed_data(b"".join([b"POST / HTTP/1.1\r\n", *framing, b"\r\n"]))
            self._resuming = False
            if data[consumed:]:
                self._parse(data[consumed:])

    @property
    def _is_answering(self) -> bool:
        """A request has arrived whole and its answer is not complete."""
        return self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete

    def _stop_listening(self) -> None:
        """Close behind the running answer: a request queued behind it would hide that the client has gone."""
        self._deaf = True
        self._clear_deadline()
        self.cycle.keep_alive = False
        self.flow.resume_reading()

    def _set_deadline(self) -> None:
        self._deadline = self.loop.call_later(MAX_REQUEST_SECONDS, self._on_deadline)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _watch_stall(self) -> None:
        self._unsent = self.transport.get_write_buffer_size()
        self._stall = self.loop.call_later(MAX_STALLED_SECONDS, self._on_stall)

    def _clear_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _on_stall(self) -> None:
        if self.transport.get_write_buffer_size() < self._unsent:
            self._watch_stall()
            return
        if self.cycle is not None:
            context_of(cast("Scope", self.cycle.scope)).log_fields["client_stalled"] = True
        # Closing would wait until the client has taken the rest.
        self.transport.abort()

    def _on_deadline(self) -> None:
        message = f"The request did not arrive within {MAX_REQUEST_SECONDS:.0f} seconds."
        self._refuse(ApiError(408, message, code="request_timeout"))

    def _refuse(self, error: ApiError) -> None:
        """Close for what never became a whole request; answer it, unless it has an answer already."""
        self._deaf = True
        self._clear_deadline()
        cycle = self.cycle
        if self._in_head or (cycle is not None and not cycle.response_started):
            self._answer(error)
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _answer(self, error: ApiError) -> None:
        request_id = new_request_id()
        fields = {"request_id": request_id, "status": error.status, "error": error.body.code}
        logger.info("request", extra={"fields": fields})
        body = error.encode()
        head = [
            STATUS_LINE[error.status],
            b"content-type: application/json\r\n",
            b"content-length: %d\r\n" % len(body),
            b"x-request-id: %s\r\n" % request_id.encode(),
            b"connection: close\r\n\r\n",
        ]
        self.transport.write(b"".join([*head, body]))
