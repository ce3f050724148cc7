"""The ASGI application: routes inside, what surrounds every request outside."""

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from ferrite.api.config import ServerConfig
from ferrite.api.errors import method_not_allowed
from ferrite.api.middleware import CorsMiddleware, RequestMiddleware
from ferrite.api.model import ServerState
from ferrite.api.routes import build_routes, unknown_route

PROMPT_WORKERS = 2
"""Threads that render and tokenize; more would take the cores from inference."""


def build_app(config: ServerConfig, state: ServerState) -> Starlette:
    """Return the application that serves ``state.model``."""
    executor = ThreadPoolExecutor(PROMPT_WORKERS, thread_name_prefix="ferrite-prompt")

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        executor.shutdown(wait=False, cancel_futures=True)

    app = Starlette(
        routes=build_routes(config, state, executor),
        middleware=[
            Middleware(RequestMiddleware, access_log=config.access_log),
            Middleware(CorsMiddleware, origins=config.cors_origin),
        ],
        exception_handlers={HTTPException: _on_http_exception},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.router.default = unknown_route(config)
    return app


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """Answer what the router itself refuses: a method that a known path does not take."""
    if not isinstance(error, HTTPException) or error.status_code != 405:
        raise error
    allowed = (error.headers or {}).get("Allow", "").split(", ")
    return method_not_allowed(request.method, ", ".join(sorted(allowed))).response()
