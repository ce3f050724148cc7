"""The table of routes, and the small ones."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

import msgspec
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ferrite.api import chat, completions, openapi, responses, stats, tokenize
from ferrite.api.auth import check_api_key, is_protected
from ferrite.api.config import ServerConfig
from ferrite.api.errors import not_found, not_implemented
from ferrite.api.generate import GenerationEndpoint
from ferrite.api.listing import ModelList, health_answer, model_answer
from ferrite.api.services import Services
from ferrite.api.tokenize import TokenEndpoint

Handler = Callable[[Scope], Awaitable[Response]]

LATER_ROUTES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "/": ("GET", "A page about the server is"),
        "/v1/embeddings": ("POST", "Embeddings are"),
        "/v1/messages": ("POST", "Anthropic's messages are"),
        "/v1/messages/count_tokens": ("POST", "Anthropic's token counts are"),
    }
)
"""Routes that are part of the product and answer 501 until they are built: method, and what they are."""


@dataclass(frozen=True, slots=True)
class Guarded:
    """An ASGI application behind the API key, where its path needs one."""

    app: ASGIApp
    api_key: str | None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the key before the application sees the request."""
        if is_protected(scope["path"]):
            check_api_key(scope, self.api_key)
        await self.app(scope, receive, send)


def build_routes(services: Services) -> list[Route]:
    """Return every route."""
    config, state = services.config, services.state
    vocab_size = None if state.model is None else state.model.tokenizer.vocab_size

    @cache
    def api_document() -> bytes:
        return msgspec.json.encode(openapi.document(config, vocab_size))

    async def health(_: Scope) -> Response:
        return _json(health_answer(config, state))

    async def models(_: Scope) -> Response:
        return _json(ModelList("list", [model_answer(config, state.model)]))

    async def model(scope: Scope) -> Response:
        asked = scope["path_params"]["id"]
        if asked != config.model_id:
            raise not_found(
                f"The model {asked[:256]!r} does not exist.", param="model", code="model_not_found"
            )
        return _json(model_answer(config, state.model))

    async def admin(_: Scope) -> Response:
        return _json(stats.admin_stats(services))

    async def serving(_: Scope) -> Response:
        return _json(stats.serving_stats(services))

    async def requests(scope: Scope) -> Response:
        return _json(stats.request_page(services, scope["query_string"]))

    async def prometheus(_: Scope) -> Response:
        # Imported with the first scrape, because most servers never see one: 20 ms of each start.
        from ferrite.api import metrics

        return Response(metrics.exposition(services), headers={"content-type": metrics.CONTENT_TYPE})

    async def described(_: Scope) -> Response:
        # Made with the first request, for some 30 ms that no stream should wait for.
        loop = asyncio.get_running_loop()
        content = await loop.run_in_executor(services.workers.small, api_document)
        return Response(content, media_type="application/json")

    async def later(scope: Scope) -> Response:
        path = scope["path"]
        raise not_implemented(f"{LATER_ROUTES[path][1]} ({scope['method']} {path}) not supported yet.")

    apps: list[tuple[str, str, ASGIApp]] = [
        ("/health", "GET", _answering(health)),
        ("/openapi.json", "GET", _answering(described)),
        ("/v1/models", "GET", _answering(models)),
        ("/v1/models/{id:path}", "GET", _answering(model)),
        ("/metrics", "GET", _answering(prometheus)),
        ("/admin/stats", "GET", _answering(admin)),
        ("/v1/stats", "GET", _answering(serving)),
        ("/v1/requests", "GET", _answering(requests)),
        ("/v1/chat/completions", "POST", GenerationEndpoint(chat.ROUTE, services)),
        ("/v1/completions", "POST", GenerationEndpoint(completions.ROUTE, services)),
        ("/v1/responses", "POST", GenerationEndpoint(responses.ROUTE, services)),
        ("/v1/tokenize", "POST", TokenEndpoint(tokenize.TOKENIZE, services)),
        ("/v1/detokenize", "POST", TokenEndpoint(tokenize.DETOKENIZE, services)),
        ("/v1/chat/completions/render", "POST", TokenEndpoint(tokenize.RENDER, services)),
        *((path, method, _answering(later)) for path, (method, _) in LATER_ROUTES.items()),
    ]
    return [
        Route(path, endpoint=Guarded(app, config.api_key), methods=[method]) for path, method, app in apps
    ]


def unknown_route(config: ServerConfig) -> ASGIApp:
    """Return what answers every other path: 401 where a key is needed and missing, else 404."""

    async def answer(scope: Scope) -> Response:
        raise not_found(f"There is no route {scope['path'][:256]!r}.", code="unknown_route")

    return Guarded(_answering(answer), config.api_key)


def _answering(handler: Handler) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        response = await handler(scope)
        await response(scope, receive, send)

    return app


def _json(answer: object) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
