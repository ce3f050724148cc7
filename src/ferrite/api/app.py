"""The ASGI application: routes inside, what surrounds every request outside."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from ferrite.api.auth import check_api_key, is_protected
from ferrite.api.config import ServerConfig
from ferrite.api.errors import method_not_allowed
from ferrite.api.middleware import CorsMiddleware, RequestMiddleware
from ferrite.api.model import ServerState
from ferrite.api.routes import build_routes, unknown_route
from ferrite.api.services import build_services


def build_app(config: ServerConfig, state: ServerState) -> Starlette:
    """Return the application that serves ``state.model``."""
    services = build_services(config, state)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        services.workers.shut_down()

    app = Starlette(
        routes=build_routes(services),
        middleware=[
            Middleware(RequestMiddleware, access_log=config.access_log),
            Middleware(CorsMiddleware, origins=config.cors_origin),
        ],
        exception_handlers={HTTPException: partial(_on_http_exception, config.api_key)},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.router.default = unknown_route(config)
    return app


async def _on_http_exception(api_key: str | None, request: Request, error: Exception) -> Response:
    """Answer what the router itself refuses: a method that a known path does not take.

    Who has no key is not told which methods a protected path takes.
    """
    if not isinstance(error, HTTPException) or error.status_code != 405:
        raise error
    if is_protected(request.scope["path"]):
        check_api_key(request.scope, api_key)
    allowed = (error.headers or {}).get("Allow", "").split(", ")
    return method_not_allowed(request.method, ", ".join(sorted(allowed))).response()
