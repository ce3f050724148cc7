"""The schemas of ``/openapi.json``: msgspec's of the wire types, and what only this server's limits say."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ferrite.api import chat_reply, completion_reply
from ferrite.api.answers import Answer, ChatChoice, ChatChunkChoice, CompletionChoice
from ferrite.api.config import ServerConfig
from ferrite.api.errors import ErrorAnswer
from ferrite.api.fields import CHAT_FIELDS, COMPLETION_FIELDS, RESPONSE_FIELDS, Field, Support
from ferrite.api.limits import CACHE_TRACE
from ferrite.api.listing import HealthAnswer, ModelAnswer, ModelList
from ferrite.api.responses_answers import ResponseAnswer, ResponseEvent
from ferrite.api.responses_wire import ResponsesBody
from ferrite.api.stats import AdminStats, ServingAnswer
from ferrite.api.tokenize import (
    DetokenizeAnswer,
    DetokenizeBody,
    RenderAnswer,
    TokenizeAnswer,
    TokenizeChatBody,
    TokenizeTextBody,
)
from ferrite.api.wire import MAX_PROMPTS, AssistantMessage, ChatBody, CompletionBody
from ferrite.telemetry import Page

Schema = dict[str, Any]

_REFERENCE = "#/components/schemas/{name}"
_BODIES: Mapping[type, Mapping[str, Field]] = {
    ChatBody: CHAT_FIELDS,
    CompletionBody: COMPLETION_FIELDS,
    ResponsesBody: RESPONSE_FIELDS,
    TokenizeTextBody: {},
    TokenizeChatBody: CHAT_FIELDS,
    DetokenizeBody: {},
}
_ANSWERS = (
    Answer, ChatChoice, ChatChunkChoice, CompletionChoice, ErrorAnswer, HealthAnswer, ModelAnswer, ModelList,
    AdminStats, ServingAnswer, Page, TokenizeAnswer, DetokenizeAnswer, RenderAnswer, ResponseAnswer,
    *ResponseEvent.__subclasses__(),
)  # fmt: skip
_SAID: list[Schema] = [
    {"required": [name], "properties": {name: {"type": kind, **more}}}
    for name, kind, more in (
        ("content", ["string", "array"], {}),
        ("refusal", "string", {}),
        ("tool_calls", "array", {"minItems": 1}),
        ("function_call", "object", {}),
    )
]
"""An assistant's turn has one of these."""
_BUDGETS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


@dataclass(frozen=True, slots=True)
class Schemas:
    """Every schema that the paths name."""

    components: dict[str, Schema]
    references: Mapping[str, Schema]
    """Name of a type, or of an answer that has none of its own, → ``$ref`` object."""


def build_schemas(config: ServerConfig, vocab_size: int | None) -> Schemas:
    """Return the schemas of a server; ``vocab_size`` None: no model, so the bound on token ids is unknown."""
    types = (*_BODIES, *_ANSWERS)
    written, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    references = {body.__name__: reference for body, reference in zip(types, written, strict=True)}
    for body, fields in _BODIES.items():
        schema = _resolved(components, references[body.__name__])
        _narrow(schema["properties"], fields, config)
        if config.unknown_fields == "ignore":
            _open(schema, components, set())
    token = {"type": "integer", "minimum": 0, **({} if vocab_size is None else {"maximum": vocab_size - 1})}
    completion = _resolved(components, references[CompletionBody.__name__])
    completion["properties"]["prompt"] = _completion_prompt(token)
    detokenize = _resolved(components, references[DetokenizeBody.__name__])
    detokenize["properties"]["tokens"] = {"type": "array", "items": token}
    for component in components.values():
        if component.get("title") == AssistantMessage.__name__:
            component["anyOf"] = _SAID
    for name, choice, kind in (
        ("ChatCompletion", ChatChoice, chat_reply.WHOLE_OBJECT),
        ("ChatCompletionChunk", ChatChunkChoice, chat_reply.CHUNK_OBJECT),
        ("Completion", CompletionChoice, completion_reply.OBJECT),
    ):
        generic = _resolved(components, references[Answer.__name__])
        components[name] = _specific(generic, name, references[choice.__name__], kind)
        references[name] = {"$ref": _REFERENCE.format(name=name)}
    del components[Answer.__name__], references[Answer.__name__]
    events = [references[event.__name__] for event in ResponseEvent.__subclasses__()]
    components[ResponseEvent.__name__] = {"title": ResponseEvent.__name__, "oneOf": events}
    references[ResponseEvent.__name__] = {"$ref": _REFERENCE.format(name=ResponseEvent.__name__)}
    for schema in components.values():
        if "description" in schema:
            schema["description"] = schema["description"].replace("``", "`")
    return Schemas(components, references)


def _narrow(properties: Schema, fields: Mapping[str, Field], config: ServerConfig) -> None:
    """Say of a body's properties what the type does not: this server's limits, and fields not honoured."""
    for name, field in fields.items():
        if field.support is Support.NEVER:
            properties[name] = {
                "enum": [None, *msgspec.to_builtins(field.neutral)],
                "default": None,
                "description": "Any other value is refused (400).",
            }
    properties["model"] = {"type": "string", "const": config.model_id}
    for name, keyword, value in (
        ("logit_bias", "propertyNames", {"pattern": "^(0|[1-9][0-9]{0,9})$"}),
        ("metadata", "properties", {CACHE_TRACE: {"enum": ["true", "false"]}}),
    ):
        for alternative in properties.get(name, {}).get("anyOf", ()):
            if alternative.get("type") == "object":
                alternative[keyword] = value
    # Only a text completion may have no token: it has then no text.
    least = 0 if fields is COMPLETION_FIELDS else 1
    for name, low, high in (
        *((budget, least, config.hard_max_tokens) for budget in _BUDGETS),
        ("n", 1, config.sessions),
    ):
        if name in properties and fields[name].support is Support.HONOURED:
            number = {"type": "integer", "minimum": low, "maximum": high}
            properties[name] = {"anyOf": [number, {"type": "null"}], "default": None}


def _completion_prompt(token: Schema) -> Schema:
    text = {"type": "string"}
    ids = {"type": "array", "items": token, "minItems": 1}
    several = [
        {"type": "array", "items": each, "minItems": 1, "maxItems": MAX_PROMPTS} for each in (text, ids)
    ]
    return {"anyOf": [text, ids, *several]}


def _specific(generic: Schema, name: str, choice: Schema, kind: str) -> Schema:
    """Return the schema of one route's answers or chunks; the type itself leaves the choices open."""
    properties = {
        **generic["properties"],
        "object": {"const": kind},
        "choices": {"type": "array", "items": choice},
    }
    return {**generic, "title": name, "properties": properties}


def _resolved(components: dict[str, Schema], reference: Schema) -> Schema:
    return components[reference["$ref"].rpartition("/")[2]]


def _open(value: Any, components: dict[str, Schema], seen: set[str]) -> None:
    """Let the objects at and below ``value``, also behind references, have fields that are not named."""
    if isinstance(value, dict):
        if "properties" in value:
            value.pop("additionalProperties", None)
        reference = value.get("$ref")
        if isinstance(reference, str) and reference not in seen:
            seen.add(reference)
            _open(_resolved(components, value), components, seen)
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            _open(each, components, seen)
