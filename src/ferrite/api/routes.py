"""The table of routes, and the small ones."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import msgspec
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ferrite.api import chat, completions
from ferrite.api.auth import check_api_key, is_protected
from ferrite.api.body import BodyMemory
from ferrite.api.config import ServerConfig
from ferrite.api.errors import not_found, not_implemented
from ferrite.api.generate import GenerationEndpoint
from ferrite.api.model import LoadedModel, ServerState
from ferrite.api.prompts import PromptWorkers

Handler = Callable[[Scope], Awaitable[Response]]

LATER_ROUTES: Mapping[str, str] = MappingProxyType(
    {
        "/": "GET",
        "/openapi.json": "GET",
        "/metrics": "GET",
        "/admin/stats": "GET",
        "/v1/stats": "GET",
        "/v1/requests": "GET",
        "/v1/responses": "POST",
        "/v1/embeddings": "POST",
        "/v1/messages": "POST",
        "/v1/messages/count_tokens": "POST",
        "/v1/tokenize": "POST",
        "/v1/detokenize": "POST",
    }
)
"""Routes that are part of the product and answer 501 until they are built, with their method."""


class ModelDetails(msgspec.Struct):
    """What the model file says; null while no model is loaded."""

    context_length: int | None
    n_params: int | None
    quantisation: str | None
    architecture: str | None


class ModelAnswer(msgspec.Struct):
    """The entry of the one model."""

    id: str
    object: str
    created: int
    owned_by: str
    context_length: int | None
    ferrite: ModelDetails


class ModelList(msgspec.Struct):
    """``GET /v1/models``."""

    object: str
    data: list[ModelAnswer]


class HealthAnswer(msgspec.Struct):
    """``GET /health``."""

    model: str
    ready: bool
    reason: str | None


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


def build_routes(
    config: ServerConfig, state: ServerState, workers: PromptWorkers, bodies: BodyMemory
) -> list[Route]:
    """Return every route; ``workers`` run templates and tokenizers, ``bodies`` bounds what arrives."""

    async def health(_: Scope) -> Response:
        reason = state.unready_reason
        return _json(HealthAnswer(config.model_id, reason is None, reason))

    async def models(_: Scope) -> Response:
        return _json(ModelList("list", [_model_answer(config, state.model)]))

    async def model(scope: Scope) -> Response:
        asked = scope["path_params"]["id"]
        if asked != config.model_id:
            raise not_found(
                f"The model {asked[:256]!r} does not exist.", param="model", code="model_not_found"
            )
        return _json(_model_answer(config, state.model))

    async def later(scope: Scope) -> Response:
        raise not_implemented(f"{scope['path']} is not supported yet.")

    apps: list[tuple[str, str, ASGIApp]] = [
        ("/health", "GET", _answering(health)),
        ("/v1/models", "GET", _answering(models)),
        ("/v1/models/{id:path}", "GET", _answering(model)),
        ("/v1/chat/completions", "POST", GenerationEndpoint(chat.ROUTE, config, state, workers, bodies)),
        ("/v1/completions", "POST", GenerationEndpoint(completions.ROUTE, config, state, workers, bodies)),
        *((path, method, _answering(later)) for path, method in LATER_ROUTES.items()),
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


def _model_answer(config: ServerConfig, model: LoadedModel | None) -> ModelAnswer:
    if model is None:
        details = ModelDetails(None, None, None, None)
        return ModelAnswer(config.model_id, "model", 0, "ferrite", None, details)
    details = ModelDetails(model.context_length, model.n_params, model.quantisation, model.architecture)
    return ModelAnswer(model.id, "model", model.created, "ferrite", model.context_length, details)


def _json(answer: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
