"""Tools and text format of a Responses request: flat, and among functions perhaps hosted tools."""

from collections.abc import Mapping
from typing import Any

import msgspec

from ferrite.api.errors import invalid
from ferrite.api.responses_wire import FlatJsonSchemaFormat, ResponsesBody
from ferrite.api.structured import JsonForm
from ferrite.api.tools import Tools, read_tools
from ferrite.api.wire import JsonObjectFormat

_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "allowed_callers": (None, ["direct"]),
    "async": (None, False),
    "defer_loading": (None, False),
    "output_schema": (None,),
}
"""Fields of a function that ask for what happens anyway."""
_HONOURED = ("type", "name", "description", "parameters", "strict")


def tools_of(body: ResponsesBody) -> Tools:
    """Return what the request says of tools; raises 400 for a hosted one."""
    for index, tool in enumerate(body.tools or []):
        if not _is_function(tool):
            at = f"tools[{index}].type"
            hint = "only functions are supported (--unknown-fields ignore drops others)"
            if "type" not in tool:
                raise invalid(f"`{at}` is required; {hint}.", at, "missing_field")
            raise invalid(f"`{at}`: {hint}.", at, "unsupported_value")
    tools = [_without_neutral(tool) for tool in body.tools or []]
    choice = msgspec.to_builtins(body.tool_choice)
    return read_tools(tools, choice, parallel=body.parallel_tool_calls, flat=True)


def drop_foreign(body: ResponsesBody) -> list[str]:
    """Remove hosted tools, and what functions have beyond what is honoured; return the removed paths."""
    dropped = []
    for index, tool in enumerate(body.tools or []):
        at = f"tools[{index}]"
        if _is_function(tool):
            dropped += [f"{at}.{name}" for name in tool if name not in _HONOURED]
        else:
            dropped.append(at)
    body.tools = [
        {name: tool[name] for name in tool if name in _HONOURED}
        for tool in body.tools or []
        if _is_function(tool)
    ]
    return dropped


def form_of(body: ResponsesBody) -> JsonForm | None:
    """Return the form that the text must have; None for plain text."""
    match body.text and body.text.format:
        case JsonObjectFormat():
            return JsonForm(None, strict=False, param="text.format")
        case FlatJsonSchemaFormat(schema=schema, strict=strict):
            return JsonForm(schema, strict=bool(strict), param="text.format.schema")
        case _:
            return None


def _is_function(tool: Mapping[str, Any]) -> bool:
    return tool.get("type") == "function"


def _without_neutral(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in tool.items() if value not in _NEUTRAL.get(name, ())}
