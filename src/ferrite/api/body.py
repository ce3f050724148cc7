"""Reading a JSON body: content type, then the declared length, then the bytes as they come."""

from starlette.datastructures import Headers
from starlette.types import Receive, Scope

from ferrite.api.errors import body_too_large, unsupported_media_type


class ClientGone(Exception):  # noqa: N818 - not a fault
    """The client closed the connection; there is nobody to answer."""


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """Return the body of at most ``limit`` bytes.

    Raises ``ApiError`` 415 for another content type and 413 for too many bytes, ``ClientGone`` when the
    connection closes.
    """
    headers = Headers(scope=scope)
    _check_content_type(headers)
    declared = headers.get("content-length")
    if declared is not None and int(declared) > limit:
        raise body_too_large(limit)
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > limit:
            raise body_too_large(limit)
    return bytes(body)


def _check_content_type(headers: Headers) -> None:
    media_type, _, parameters = headers.get("content-type", "").partition(";")
    if media_type.strip().lower() != "application/json":
        raise unsupported_media_type("The request needs the header 'Content-Type: application/json'.")
    charset = parameters.strip().lower()
    if charset and charset.replace('"', "") not in {"charset=utf-8", "charset=utf8"}:
        raise unsupported_media_type("JSON must be UTF-8.")
    if headers.get("content-encoding", "identity").strip().lower() not in {"", "identity"}:
        raise unsupported_media_type("A body with a content encoding is not supported.")
