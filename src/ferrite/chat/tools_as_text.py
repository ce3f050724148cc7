"""Tools for templates that know none: declarations, calls and results as ordinary text.

The declarations go into the system turn, or into the first user turn where the template has no system
turn. A call is what the declarations ask for: a ``<tool_call>`` element with a JSON object. Results come back
as a user turn with one ``<tool_response>`` element each.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ferrite.chat.messages import Message, ToolCall

INSTRUCTIONS = """\
You can call functions. Each of these lines declares one, as JSON:
{declarations}

To call a function, answer with nothing but this, once for each call:
<tool_call>
{{"name": "name of the function", "arguments": {{"name of a parameter": "value"}}}}
</tool_call>
The results come back in <tool_response> elements. Where no function helps, answer in plain text."""


def told_as_text(
    messages: Sequence[Message], tools: Sequence[Mapping[str, object]], *, system_turn: bool
) -> list[Message]:
    """Return the conversation without tools, calls and results, all of them told in its turns.

    ``system_turn``: the template has one.
    """
    told = _joined_results([_told(message) for message in messages])
    if not tools:
        return told
    declarations = "\n".join(json.dumps(tool.get("function"), ensure_ascii=False) for tool in tools)
    return _with_instructions(told, INSTRUCTIONS.format(declarations=declarations), system_turn=system_turn)


def arguments_text(call: ToolCall) -> str:
    """The arguments of a call as JSON text."""
    return json.dumps(call.arguments, ensure_ascii=False) if call.written is None else call.written


def _told(message: Message) -> Message:
    if message.role in ("tool", "function"):
        return Message("tool", f"<tool_response>\n{message.content or ''}\n</tool_response>")
    if not message.tool_calls:
        return message
    calls = (_call_text(call) for call in message.tool_calls)
    content = "\n".join([*([message.content] if message.content else []), *calls])
    return replace(message, content=content, tool_calls=())


def _call_text(call: ToolCall) -> str:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {arguments}}}\n</tool_call>'


def _joined_results(messages: Sequence[Message]) -> list[Message]:
    """Results become user turns; neighbours, and what the user says behind them, are one turn."""
    joined: list[Message] = []
    after_result = False
    for message in messages:
        result = message.role == "tool"
        if after_result and (result or message.role == "user"):
            gap = "\n" if result else "\n\n"
            joined[-1] = replace(joined[-1], content=f"{joined[-1].content}{gap}{message.content or ''}")
        else:
            joined.append(replace(message, role="user") if result else message)
        after_result = result
    return joined


def _with_instructions(messages: list[Message], text: str, *, system_turn: bool) -> list[Message]:
    first = messages[0] if messages else None
    if first is not None and first.role in ("system", "developer"):
        return [
            replace(first, content=f"{first.content}\n\n{text}" if first.content else text),
            *messages[1:],
        ]
    if system_turn or first is None or first.role != "user":
        return [Message("system", text), *messages]
    return [replace(first, content=f"{text}\n\n{first.content or ''}"), *messages[1:]]
