"""How one template wants its turns: role names, the form of arguments, the form of call ids.

Most of it cannot be seen in a template's text, so it is asked for with small conversations when the
template is loaded.
"""

import hashlib
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ferrite.chat.messages import ChatTemplateError, Message, ToolCall
from ferrite.chat.meter import Meter
from ferrite.chat.sandbox import CompiledTemplate, StrftimeNow
from ferrite.chat.text import Written
from ferrite.chat.tools_as_text import arguments_text

_NINE_LETTERS = re.compile(r"length\s*!=\s*9\b")
_ID_ALPHABET = string.ascii_letters + string.digits
_PROBE_CALL = ToolCall("abcdefghi", "probe", {"needle": "thread"})
_PROBE_TOOL = {"type": "function", "function": {"name": "probe", "description": "Probe.", "parameters": {}}}
_PROBE_TIME = datetime(2000, 1, 1)


@dataclass(frozen=True, slots=True)
class TurnStyle:
    """What a template makes of turns."""

    developer_role: bool
    """It knows the role ``developer``; elsewhere that is ``system``."""
    function_role: bool
    """It knows the role ``function``; elsewhere that is ``tool``."""
    system_turn: bool = True
    """A system turn reaches the prompt."""
    arguments_as_text: bool = False
    """It wants the arguments of a call as text instead of as an object."""
    short_ids: bool = False
    """It refuses call ids that are not nine letters or digits."""


def style_of(source: str, compiled: CompiledTemplate, tokens: Mapping[str, str]) -> TurnStyle:
    """Find out how a template wants its turns; ``tokens`` are the texts it gets for BOS and EOS."""
    style = TurnStyle(
        developer_role="developer" in source,
        function_role="function" in compiled.compared_roles,
        short_ids=_NINE_LETTERS.search(source) is not None,
    )
    return TurnStyle(
        style.developer_role,
        style.function_role,
        system_turn=_shows_system(compiled, style, tokens),
        arguments_as_text=_wants_text(compiled, style, tokens),
        short_ids=style.short_ids,
    )


def seen_turn(message: Message, style: TurnStyle) -> dict[str, Any]:
    """The message as the template sees it."""
    role: str = message.role
    if role == "developer" and not style.developer_role:
        role = "system"
    elif role == "function" and not style.function_role:
        role = "tool"
    # Roles are a closed set, and some templates build control tokens around them: '<|' + role + '|>'.
    seen: dict[str, Any] = {"role": Written(role), "content": message.content or ""}
    if message.reasoning_content:
        # Most templates read the first name, gpt-oss the second.
        seen["reasoning_content"] = seen["thinking"] = message.reasoning_content
    if message.name is not None:
        seen["name"] = message.name
    if message.tool_calls:
        seen["tool_calls"] = [
            {
                "id": _seen_id(call.id, style),
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": arguments_text(call) if style.arguments_as_text else dict(call.arguments),
                },
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        seen["tool_call_id"] = _seen_id(message.tool_call_id, style)
    return seen


def _seen_id(call_id: str, style: TurnStyle) -> str:
    if not style.short_ids or (len(call_id) == 9 and set(call_id) <= set(_ID_ALPHABET)):
        return call_id
    digest = hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).digest()
    return "".join(_ID_ALPHABET[byte % len(_ID_ALPHABET)] for byte in digest[:9])


def _shows_system(compiled: CompiledTemplate, style: TurnStyle, tokens: Mapping[str, str]) -> bool:
    turns = [Message("system", "needle"), Message("user", "thread")]
    return "needle" in (_probed(compiled, style, tokens, turns) or "")


def _wants_text(compiled: CompiledTemplate, style: TurnStyle, tokens: Mapping[str, str]) -> bool:
    turns = [
        Message("user", "x"),
        Message("assistant", tool_calls=[_PROBE_CALL]),
        Message("tool", "x", tool_call_id=_PROBE_CALL.id, name=_PROBE_CALL.name),
    ]
    as_object = _probed(compiled, style, tokens, turns)
    if as_object is not None and "needle" in as_object and "'needle'" not in as_object:
        return False
    textual = TurnStyle(
        style.developer_role, style.function_role, arguments_as_text=True, short_ids=style.short_ids
    )
    return arguments_text(_PROBE_CALL) in (_probed(compiled, textual, tokens, turns) or "")


def _probed(
    compiled: CompiledTemplate, style: TurnStyle, tokens: Mapping[str, str], turns: Sequence[Message]
) -> str | None:
    variables = {
        "messages": [seen_turn(turn, style) for turn in turns],
        "tools": [_PROBE_TOOL] if any(turn.tool_calls for turn in turns) else None,
        "documents": None,
        "add_generation_prompt": True,
        "strftime_now": StrftimeNow(_PROBE_TIME),
        **tokens,
    }
    try:
        return str(compiled.render(variables, Meter()))
    except ChatTemplateError:
        return None
