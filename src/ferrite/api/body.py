"""Reading a JSON body: content type, then the declared length, then the bytes as they come."""

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.datastructures import Headers
from starlette.types import Receive, Scope

from ferrite.api.errors import body_too_large, busy, unsupported_media_type


class ClientGone(Exception):  # noqa: N818 - not a fault
    """The client closed the connection; there is nobody to answer."""


class BodyMemory:
    """What bodies may take together that arrive or wait to be decoded, however many clients there are."""

    def __init__(self, limit: int) -> None:
        """``limit``: bytes."""
        self._free = limit

    def take(self, size: int) -> None:
        """Count ``size`` more bytes; raises 429 when there is no room for them."""
        if size > self._free:
            raise busy("Too many requests with large bodies have come at once.", 1)
        self._free -= size

    @contextmanager
    def held(self, size: int) -> Iterator[None]:
        """Count ``size`` bytes that have arrived and wait; raises 429 when there is no room for them."""
        self.take(size)
        try:
            yield
        finally:
            self.give_back(size)

    def give_back(self, size: int) -> None:
        """Stop counting ``size`` bytes."""
        self._free += size


async def read_body(scope: Scope, receive: Receive, limit: int, memory: BodyMemory) -> bytes:
    """Return the body of at most ``limit`` bytes, counted in ``memory`` while it arrives.

    Raises ``ApiError`` 415 for another content type, 413 for too many bytes and 429 for too many bodies,
    ``ClientGone`` when the connection closes.
    """
    headers = Headers(scope=scope)
    _check_content_type(headers)
    declared = headers.get("content-length")
    if declared is not None and int(declared) > limit:
        raise body_too_large(limit)
    body = bytearray()
    try:
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            piece = message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) + len(piece) > limit:
                raise body_too_large(limit)
            memory.take(len(piece))
            body += piece
        return bytes(body)
    finally:
        memory.give_back(len(body))


def _check_content_type(headers: Headers) -> None:
    media_type, _, parameters = headers.get("content-type", "").partition(";")
    if media_type.strip().lower() != "application/json":
        raise unsupported_media_type("The request needs the header 'Content-Type: application/json'.")
    charset = parameters.strip().lower()
    if charset and charset.replace('"', "") not in {"charset=utf-8", "charset=utf8"}:
        raise unsupported_media_type("JSON must be UTF-8.")
    if headers.get("content-encoding", "identity").strip().lower() not in {"", "identity"}:
        raise unsupported_media_type("A body with a content encoding is not supported.")
