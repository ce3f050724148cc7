"""``GET /openapi.json``: what this server takes and answers, generated from the wire types.

The document is open, like ``/health``: it is not below ``/v1``, and of the configuration it tells only the
model id, the limits that a refusal names too, and whether a key is needed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

from ferrite.api.auth import is_protected
from ferrite.api.config import ServerConfig
from ferrite.api.errors import ErrorAnswer
from ferrite.api.openapi_schemas import Schema, Schemas, build_schemas
from ferrite.telemetry import MAX_PAGE

_JSON = "application/json"
_REQUEST_ID: Schema = {"$ref": "#/components/parameters/RequestId"}

_REFUSALS: Mapping[int, str] = MappingProxyType(
    {
        400: "The request is wrong; `param` is the path of what is wrong.",
        401: "The API key is missing or not right.",
        404: "There is no such model or route.",
        405: "The route does not take this method.",
        408: "The request did not arrive in time.",
        413: "The body is larger than --max-body-bytes.",
        415: "The body is not declared as JSON in UTF-8, or it has a content encoding.",
        429: "The server is full; the same request may succeed later.",
        431: "The head of the request is too large.",
        500: "The server failed.",
        503: "The server has no model, is going down, or its engine failed.",
        504: "The request took longer than --request-timeout-ms.",
    }
)
_CONNECTION = (400, 405, 408, 431, 500, 503)
"""What any request can get, also from what stands before the routes."""
_BODY = (404, 413, 415, 429)
"""What besides a request with a body can get."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One route as the document has it; types by their name in the schemas."""

    method: str
    path: str
    name: str
    summary: str
    answer: str
    """A type; for ``text/`` the media type of a plain text."""
    bodies: tuple[str, ...] = ()
    """The kinds of body that it takes."""
    chunk: str | None = None
    """Type of the events when the body asks for a stream."""
    done_mark: bool = True
    """Its streams end with ``[DONE]``."""
    parameters: tuple[Schema, ...] = ()
    statuses: tuple[int, ...] = ()
    """Refusals besides those of its kind."""


def _query(name: str, low: int, high: int, description: str) -> Schema:
    schema = {"type": "integer", "minimum": low, "maximum": high}
    return {"name": name, "in": "query", "schema": schema, "description": description}


OPERATIONS: tuple[Operation, ...] = (
    Operation("GET", "/health", "health", "Whether the server can generate; always 200.", "HealthAnswer"),
    Operation("GET", "/openapi.json", "openapi", "This document.", "object"),
    Operation("GET", "/metrics", "metrics", "Counters and gauges for Prometheus.", "text/plain"),
    Operation("GET", "/v1/models", "list_models", "The one model.", "ModelList"),
    Operation(
        "GET", "/v1/models/{id}", "retrieve_model", "The one model by its id.", "ModelAnswer",
        statuses=(404,),
    ),
    Operation(
        "POST", "/v1/chat/completions", "create_chat_completion", "Answer a conversation.", "ChatCompletion",
        bodies=("ChatBody",), chunk="ChatCompletionChunk",
    ),
    Operation(
        "POST", "/v1/chat/completions/render", "render_chat_completion",
        "The prompt that a chat request makes, without answering it.", "RenderAnswer",
        bodies=("ChatBody",),
    ),
    Operation(
        "POST", "/v1/completions", "create_completion", "Continue a text.", "Completion",
        bodies=("CompletionBody",), chunk="Completion",
    ),
    Operation(
        "POST", "/v1/responses", "create_response", "Answer a conversation, item by item.", "ResponseAnswer",
        bodies=("ResponsesBody",), chunk="ResponseEvent", done_mark=False,
    ),
    Operation(
        "POST", "/v1/tokenize", "tokenize", "The token ids of a text or of a chat.", "TokenizeAnswer",
        bodies=("TokenizeTextBody", "TokenizeChatBody"),
    ),
    Operation(
        "POST", "/v1/detokenize", "detokenize", "The text of token ids.", "DetokenizeAnswer",
        bodies=("DetokenizeBody",),
    ),
    Operation("GET", "/v1/stats", "serving_stats", "What the server does and how fast.", "ServingAnswer"),
    Operation(
        "GET", "/v1/requests", "finished_requests", "The last finished requests, page by page.", "Page",
        parameters=(
            _query("since", 0, 2**63 - 1, "Sequence number of the first row wanted: the last `next_cursor`."),
            _query("limit", 1, MAX_PAGE, "Most rows of the page."),
        ),
    ),
    Operation("GET", "/admin/stats", "admin_stats", "The engine's counters, and memory.", "AdminStats"),
)  # fmt: skip
"""Every route that does something."""


def document(config: ServerConfig, vocab_size: int | None) -> dict[str, Any]:
    """Return the OpenAPI document of a server; ``vocab_size``: of its model, None without one.

    Version 3.2, the first that can say what the events of a stream are.
    """
    schemas = build_schemas(config, vocab_size)
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(
            operation, config, schemas
        )
    components: dict[str, Any] = {
        "schemas": schemas.components,
        "responses": {str(status): _refusal(status, schemas) for status in _REFUSALS},
        "headers": {
            "RequestId": {
                "description": "The caller's id if it is sane, else a new one; also in the log.",
                "required": True,
                "schema": {"type": "string"},
            },
        },
        "parameters": {
            "RequestId": {
                "name": "x-request-id",
                "in": "header",
                "description": "1 to 128 of `A-Za-z0-9._-`; another value is replaced.",
                "schema": {"type": "string"},
            },
        },
    }
    if config.api_key is not None:
        components["securitySchemes"] = {"ApiKey": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.2.0",
        "info": {
            "title": "Ferrite",
            "version": version("ferrite-server"),
            "description": "A local language model behind an OpenAI-compatible API.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": components,
    }


def _operation(operation: Operation, config: ServerConfig, schemas: Schemas) -> Schema:
    written: Schema = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [*_path_parameters(operation.path, config), *operation.parameters, _REQUEST_ID],
    }
    if operation.bodies:
        forms = [schemas.references[body] for body in operation.bodies]
        schema = forms[0] if len(forms) == 1 else {"oneOf": forms}
        written["requestBody"] = {"required": True, "content": {_JSON: {"schema": schema}}}
    responses: dict[str, Schema] = {"200": _success(operation, schemas)}
    for status in _statuses(operation, config):
        responses[str(status)] = {"$ref": f"#/components/responses/{status}"}
    written["responses"] = responses
    if config.api_key is not None and is_protected(operation.path):
        written["security"] = [{"ApiKey": []}]
    return written


def _path_parameters(path: str, config: ServerConfig) -> list[Schema]:
    if "{id}" not in path:
        return []
    schema = {"type": "string", "enum": [config.model_id]}
    return [{"name": "id", "in": "path", "required": True, "schema": schema}]


def _statuses(operation: Operation, config: ServerConfig) -> list[int]:
    """Return the refusals that can really occur, in order."""
    statuses = {*_CONNECTION, *operation.statuses}
    if config.api_key is not None and is_protected(operation.path):
        statuses.add(401)
    if operation.bodies:
        statuses.update(_BODY)
        if config.request_timeout_ms:
            statuses.add(504)
    return sorted(statuses)


def _success(operation: Operation, schemas: Schemas) -> Schema:
    if operation.answer.startswith("text/"):
        content: Schema = {operation.answer: {"schema": {"type": "string"}}}
    elif operation.answer == "object":
        content = {_JSON: {"schema": {"type": "object"}}}
    else:
        content = {_JSON: {"schema": schemas.references[operation.answer]}}
    description = "The answer."
    if operation.chunk is not None:
        content["text/event-stream"] = {"itemSchema": _event(operation, schemas)}
        description = "The answer, whole; or, with `stream`, as events. An error ends them."
    return {"description": description, "headers": _headers(), "content": content}


def _event(operation: Operation, schemas: Schemas) -> Schema:
    kinds = [schemas.references[name] for name in (operation.chunk, ErrorAnswer.__name__) if name]
    data = [{"contentMediaType": _JSON, "contentSchema": {"anyOf": kinds}}]
    if operation.done_mark:
        data.append({"const": "[DONE]"})
    properties = {"data": {"type": "string", "anyOf": data}, "event": {"type": "string"}}
    return {"type": "object", "properties": properties, "required": ["data"]}


def _refusal(status: int, schemas: Schemas) -> Schema:
    headers = _headers()
    if status == 429:
        headers["Retry-After"] = _required_header("Seconds after which another try makes sense.", "integer")
    if status == 401:
        headers["WWW-Authenticate"] = _required_header("The scheme: `Bearer`.", "string")
    if status == 405:
        headers["Allow"] = _required_header("The methods that the route takes.", "string")
    return {
        "description": _REFUSALS[status],
        "headers": headers,
        "content": {_JSON: {"schema": schemas.references[ErrorAnswer.__name__]}},
    }


def _headers() -> Schema:
    return {"x-request-id": {"$ref": "#/components/headers/RequestId"}}


def _required_header(description: str, kind: str) -> Schema:
    return {"description": description, "required": True, "schema": {"type": kind}}
