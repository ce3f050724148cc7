"""The tables of docs/openai-api.md: what becomes of every field that the installed openai client can send.

``python -m tests.clients.field_table`` writes them anew into the document, between its ``table`` marks.
"""

import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from openai.types import chat as chat_types
from openai.types import completion_create_params, shared_params
from openai.types.chat import chat_completion_content_part_param as content_parts
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from ferrite.api import fields, responses_wire, wire
from ferrite.api.fields import Field, Support

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "openai-api.md"
_MARKED = re.compile(r"(?s)(<!-- table: (?P<name>[a-z-]+) -->\n).*?(<!-- end -->)")
_LARGE = 2**31 - 1
"""Bounds from here on are those of the number type, and not told."""


@dataclass(frozen=True, slots=True)
class Route:
    """One route: its request types in the client, and ours."""

    path: str
    params: tuple[Any, ...]
    body: type[msgspec.Struct]
    table: Mapping[str, Field]


ROUTES: dict[str, Route] = {
    "chat": Route(
        "/v1/chat/completions",
        (chat_create_params.CompletionCreateParamsBase, chat_create_params.CompletionCreateParamsStreaming),
        wire.ChatBody,
        fields.CHAT_FIELDS,
    ),
    "completions": Route(
        "/v1/completions",
        (
            completion_create_params.CompletionCreateParamsBase,
            completion_create_params.CompletionCreateParamsStreaming,
        ),
        wire.CompletionBody,
        fields.COMPLETION_FIELDS,
    ),
    "responses": Route(
        "/v1/responses",
        (
            response_create_params.ResponseCreateParamsBase,
            response_create_params.ResponseCreateParamsStreaming,
        ),
        responses_wire.ResponsesBody,
        fields.RESPONSE_FIELDS,
    ),
}

OBJECTS: Mapping[str, tuple[Any, type[msgspec.Struct] | None]] = {
    "message `developer`": (chat_types.ChatCompletionDeveloperMessageParam, wire.DeveloperMessage),
    "message `system`": (chat_types.ChatCompletionSystemMessageParam, wire.SystemMessage),
    "message `user`": (chat_types.ChatCompletionUserMessageParam, wire.UserMessage),
    "message `assistant`": (chat_types.ChatCompletionAssistantMessageParam, wire.AssistantMessage),
    "message `tool`": (chat_types.ChatCompletionToolMessageParam, wire.ToolMessage),
    "message `function`": (chat_types.ChatCompletionFunctionMessageParam, wire.FunctionMessage),
    "part `text`": (chat_types.ChatCompletionContentPartTextParam, wire.TextPart),
    "part `refusal`": (chat_types.ChatCompletionContentPartRefusalParam, wire.RefusalPart),
    "part `image_url`": (chat_types.ChatCompletionContentPartImageParam, None),
    "part `input_audio`": (chat_types.ChatCompletionContentPartInputAudioParam, None),
    "part `file`": (content_parts.File, None),
    "call `function`": (chat_types.ChatCompletionMessageFunctionToolCallParam, wire.ToolCall),
    "call `custom`": (chat_types.ChatCompletionMessageCustomToolCallParam, None),
    "tool `function`": (chat_types.ChatCompletionFunctionToolParam, wire.FunctionTool),
    "its `function`": (shared_params.FunctionDefinition, wire.FunctionDefinition),
    "tool `custom`": (chat_types.ChatCompletionCustomToolParam, None),
    "format `json_schema`": (
        shared_params.response_format_json_schema.JSONSchema,
        wire.JsonSchema,
    ),
    "`stream_options`": (chat_types.ChatCompletionStreamOptionsParam, wire.StreamOptions),
}


def client_fields(params: tuple[Any, ...]) -> set[str]:
    """Return the names of a request type of the client."""
    return {name for each in params for name in typing.get_type_hints(each)}


def tables() -> dict[str, str]:
    """Return each table's Markdown by its name."""
    return {**{name: _fields_table(route) for name, route in ROUTES.items()}, "objects": _objects_table()}


def rewritten(document: str) -> str:
    """Return the document with the tables of now."""
    found = tables()
    marks = [match["name"] for match in _MARKED.finditer(document)]
    if sorted(marks) != sorted(found):
        raise ValueError(f"the document has the tables {marks}, there are {list(found)}")
    return _MARKED.sub(lambda match: f"{match[1]}{found[match['name']]}\n{match[3]}", document)


def _fields_table(route: Route) -> str:
    known = client_fields(route.params)
    lines = ["| Field | Ferrite | Values |", "|---|---|---|"]
    for name in sorted(known | set(route.table)):
        field = route.table.get(name)
        if field is None:
            lines.append(f"| `{name}` | unknown: refused (400) | |")
            continue
        mark = "" if name in known else " (ours)"
        restricted = field.support is Support.NEVER
        if mark and restricted:
            continue
        values = "" if restricted else _values(_property(route.body, name))
        if name.startswith("max_") and not restricted:
            values = "at most `--hard-max-tokens`"
        lines.append(f"| `{name}`{mark} | {_becomes(field)} | {values} |")
    return "\n".join(lines)


def _becomes(field: Field) -> str:
    neutral = ", ".join(f"`{msgspec.json.encode(value).decode()}`" for value in (None, *field.neutral))
    match field.support:
        case Support.HONOURED:
            return "honoured"
        case Support.LABEL:
            return "accepted, without effect"
        case Support.NEVER:
            return f"refused (400), all but {neutral}"


def _objects_table() -> str:
    lines = ["| Object | Taken | Refused (400) |", "|---|---|---|"]
    for name, (params, ours) in OBJECTS.items():
        known = typing.get_type_hints(params)
        taken = dict(_taken(ours)) if ours is not None else {}
        if ours is not None:
            for tag in ("type", "role"):
                if tag in known:
                    taken[tag] = f"`{tag}`"
        also = (f"{taken[field]} (ours)" for field in taken if field not in known)
        first = ", ".join([*(taken[field] for field in sorted(known) if field in taken), *also])
        rest = "all" if not taken else ", ".join(f"`{field}`" for field in sorted(set(known) - set(taken)))
        lines.append(f"| {name} | {first} | {rest} |")
    return "\n".join(lines)


def _taken(struct: type[msgspec.Struct]) -> Iterator[tuple[str, str]]:
    for name, schema in _properties(struct).items():
        kinds = schema.get("anyOf", [schema])
        if all(kind.get("type") == "null" for kind in kinds):
            yield name, f"`{name}` (only `null`)"
        elif any(kind.get("maxItems") == 0 for kind in kinds):
            yield name, f"`{name}` (only empty)"
        else:
            yield name, f"`{name}`"


def _properties(struct: type[msgspec.Struct]) -> dict[str, Any]:
    (reference,), components = msgspec.json.schema_components([struct], ref_template="{name}")
    found: dict[str, Any] = components[reference["$ref"]]["properties"]
    return found


def _property(struct: type[msgspec.Struct], name: str) -> dict[str, Any]:
    found: dict[str, Any] = _properties(struct)[name]
    return found


def _values(schema: dict[str, Any]) -> str:
    kinds = [kind for kind in schema.get("anyOf", [schema]) if kind.get("type") != "null"]
    texts = [text for text in map(_bounds, kinds) if text]
    if texts and any("$ref" in kind for kind in kinds):
        texts.append("an object")
    return " or ".join(texts)


def _bounds(kind: dict[str, Any]) -> str:
    if "enum" in kind:
        return " or ".join(f"`{value}`" for value in kind["enum"])
    low, high = kind.get("minimum"), kind.get("maximum")
    if low is not None or high is not None:
        low = None if low is not None and low <= -_LARGE else low
        high = None if high is not None and high >= _LARGE else high
        if low is not None and high is not None:
            return f"{low} to {high}"
        return f"at least {low}" if low is not None else ""
    if kind.get("type") == "string" and "maxLength" in kind:
        return f"{kind.get('minLength', 0)} to {kind['maxLength']} characters"
    if kind.get("type") == "array" and "maxItems" in kind:
        return f"a list of at most {kind['maxItems']}"
    if kind.get("type") == "object" and isinstance(kind.get("additionalProperties"), dict):
        each = _bounds(kind["additionalProperties"])
        most = f"at most {kind['maxProperties']} keys" if "maxProperties" in kind else ""
        return ", ".join(text for text in (most, f"each {each}" if each else "") if text)
    return ""


def main() -> None:
    """Write the tables of now into the document."""
    DOCUMENT.write_text(rewritten(DOCUMENT.read_text()))


if __name__ == "__main__":
    main()
