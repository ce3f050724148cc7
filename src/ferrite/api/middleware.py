"""Around every request: its id, its log line, CORS, and an answer whatever happens."""

import asyncio
import logging
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ferrite.api.body import ClientGone
from ferrite.api.context import RequestContext, context_of, open_context
from ferrite.api.errors import ApiError, api_error_of, not_ready

logger = logging.getLogger(__name__)

CLIENT_GONE_STATUS = 499
"""In the log only: the client closed the connection before the answer was complete."""


class RequestMiddleware:
    """Gives a request its context and makes sure that it ends with an answer and a log line."""

    def __init__(self, app: ASGIApp, *, access_log: bool) -> None:
        self._app = app
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = open_context(scope)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                context.status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in context.answer_headers.items():
                    headers[name] = value
            await send(message)

        try:
            await self._run(context, scope, receive, send_with_headers)
        finally:
            if self._access_log:
                self._log(context, scope)

    async def _run(self, context: RequestContext, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except ClientGone:
            context.log_fields["client_gone"] = True
        except asyncio.CancelledError:
            # Only the end of the drain time cancels a request; the client hears it from us, not from uvicorn.
            context.log_fields["error"] = "not_ready"
            if context.status is None:
                await not_ready("draining").response()(scope, receive, send)
        except Exception as error:
            answer = api_error_of(error, context.request_id)
            if context.status is None:
                await answer.response()(scope, receive, send)

    @staticmethod
    def _log(context: RequestContext, scope: Scope) -> None:
        milliseconds = (time.monotonic() - context.started) * 1000
        fields = {
            "request_id": context.request_id,
            "method": scope["method"],
            "path": scope.get("raw_path", scope["path"].encode()).decode("ascii", "replace"),
            "status": context.status if context.status is not None else CLIENT_GONE_STATUS,
            "milliseconds": round(milliseconds, 1),
            **context.log_fields,
        }
        logger.info("request", extra={"fields": fields})


class CorsMiddleware:
    """Cross-origin access for browsers of the configured origins; every other origin gets no header."""

    def __init__(self, app: ASGIApp, *, origins: tuple[str, ...]) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a preflight, or add the headers to the answer."""
        origin = Headers(scope=scope).get("origin") if scope["type"] == "http" else None
        if origin is None or not self._origins:
            await self._app(scope, receive, send)
            return
        allowed = origin in self._origins or "*" in self._origins
        if scope["method"] == "OPTIONS" and "access-control-request-method" in Headers(scope=scope):
            await self._preflight(scope, origin, allowed=allowed)(scope, receive, send)
            return
        # Through the context, so that error answers have them too.
        answer_headers = context_of(scope).answer_headers
        answer_headers["Vary"] = "Origin"
        if allowed:
            answer_headers["Access-Control-Allow-Origin"] = origin
            answer_headers["Access-Control-Expose-Headers"] = "x-request-id, x-ferrite-ignored, Retry-After"
        await self._app(scope, receive, send)

    @staticmethod
    def _preflight(scope: Scope, origin: str, *, allowed: bool) -> Response:
        if not allowed:
            message = "This origin is not allowed (--cors-origin)."
            return ApiError(403, message, code="origin_not_allowed").response()
        wanted = Headers(scope=scope).get("access-control-request-headers", "authorization, content-type")
        headers = {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Methods": "GET, POST",
            "Access-Control-Allow-Headers": wanted,
            "Access-Control-Max-Age": "600",
            "Vary": "Origin, Access-Control-Request-Headers",
        }
        return Response(None, 204, headers)
