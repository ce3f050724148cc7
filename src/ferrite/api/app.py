"""The ASGI application: routes inside, what surrounds every request outside."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from ferrite.api.body import BodyMemory
from ferrite.api.config import ServerConfig
from ferrite.api.errors import method_not_allowed
from ferrite.api.middleware import CorsMiddleware, RequestMiddleware
from ferrite.api.model import ServerState
from ferrite.api.prompts import PromptWorkers
from ferrite.api.routes import build_routes, unknown_route

MAX_ARRIVING_BODIES = 32
"""Bodies of the largest size that may be arriving at one moment; of smaller ones, more."""


def build_app(config: ServerConfig, state: ServerState) -> Starlette:
    """Return the application that serves ``state.model``."""
    workers = PromptWorkers()
    bodies = BodyMemory(MAX_ARRIVING_BODIES * config.max_body_bytes)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        workers.shut_down()

    app = Starlette(
        routes=build_routes(config, state, workers, bodies),
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
