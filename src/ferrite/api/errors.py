"""Refusals and failures as a client sees them: OpenAI's error object, always JSON."""

import logging
from collections.abc import Mapping
from types import MappingProxyType

import msgspec
from starlette.responses import Response

logger = logging.getLogger(__name__)
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_NO_RETRY: Mapping[str, str] = MappingProxyType({"x-should-retry": "false"})
"""Tells the official clients not to repeat a request that will fail again."""


class ErrorBody(msgspec.Struct, frozen=True):
    """What stands under ``error`` in an answer."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(msgspec.Struct, frozen=True):
    """The whole answer of a failed request, also the data of an SSE ``error`` event."""

    error: ErrorBody


class ApiError(Exception):
    """A request that ends with an error answer. ``param`` is the JSON path the client wrote."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",  # noqa: A002 - the name on the wire
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = ErrorBody(message, type, param, code)
        self.headers = headers

    def encode(self) -> bytes:
        """Return the JSON of the answer."""
        return msgspec.json.encode(ErrorAnswer(self.body))

    def response(self) -> Response:
        """Return the HTTP answer."""
        return Response(self.encode(), self.status, dict(self.headers), media_type="application/json")


def invalid(message: str, param: str | None, code: str | None = None) -> ApiError:
    """400: the request is wrong."""
    return ApiError(400, message, param=param, code=code)


def unauthorized(message: str) -> ApiError:
    """401: no key, or not the key."""
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def not_found(message: str, *, param: str | None = None, code: str = "not_found") -> ApiError:
    """404: no such route or model."""
    return ApiError(404, message, param=param, code=code)


def method_not_allowed(method: str, allowed: str) -> ApiError:
    """405 with the ``Allow`` header."""
    message = f"This route does not take {method}; it takes {allowed}."
    return ApiError(405, message, code="method_not_allowed", headers={"Allow": allowed})


def body_too_large(limit: int) -> ApiError:
    """413: more bytes than the server reads."""
    message = f"The request body is larger than {limit} bytes (--max-body-bytes)."
    return ApiError(413, message, code="request_too_large")


def unsupported_media_type(message: str) -> ApiError:
    """415: not JSON, or packed."""
    return ApiError(415, message, code="unsupported_media_type")


def busy(message: str, retry_after_seconds: int) -> ApiError:
    """429: the same request may succeed later."""
    return ApiError(
        429,
        message,
        type="rate_limit_error",
        code="rate_limit_exceeded",
        headers={"Retry-After": str(max(1, retry_after_seconds))},
    )


def server_error(message: str) -> ApiError:
    """500: our fault."""
    return ApiError(500, message, type="server_error", code="internal_error")


def not_implemented(message: str, param: str | None = None) -> ApiError:
    """501: recognised, and not done."""
    return ApiError(
        501, message, type="not_implemented_error", param=param, code="not_implemented", headers=_NO_RETRY
    )


def not_ready(reason: str) -> ApiError:
    """503: no model, draining, or the engine is gone."""
    return ApiError(503, f"The server is not ready: {reason}.", type="server_error", code="not_ready")


def timed_out(limit_ms: int) -> ApiError:
    """504: the operator's time limit has passed."""
    message = f"The request took longer than {limit_ms} ms (--request-timeout-ms)."
    return ApiError(504, message, type="server_error", code="request_timeout", headers=_NO_RETRY)


def api_error_of(error: Exception, request_id: str) -> ApiError:
    """Return what the client is told of ``error``; one that nobody foresaw is logged and stays vague."""
    if isinstance(error, ApiError):
        return error
    logger.error("internal error in request %s", request_id, exc_info=error)
    return server_error("An internal error occurred.")
