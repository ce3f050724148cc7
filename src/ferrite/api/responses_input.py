"""From the input of a Responses request to the conversation that the template renders."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from ferrite.api.errors import invalid
from ferrite.api.responses_wire import (
    MAX_INPUT_BYTES,
    InputItem,
    InputTextPart,
    OutputTextPart,
    Part,
    ReasoningTextPart,
    ResponsesBody,
    ResultTextPart,
)
from ferrite.api.wire import RefusalPart
from ferrite.chat import Message, ToolCall


@dataclass(frozen=True, slots=True)
class _Kind:
    """Which fields one type of item has beside ``type``, ``id`` and ``status``."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()


_KINDS: Mapping[str, _Kind] = {
    "message": _Kind(("role", "content")),
    "function_call": _Kind(("call_id", "name", "arguments")),
    "function_call_output": _Kind(("call_id", "output"), ("name",)),
    "reasoning": _Kind((), ("content", "summary")),
}
_EVERYWHERE = ("type", "id", "status")


def conversation(body: ResponsesBody, *, with_instructions: bool = True) -> list[Message]:
    """Return instructions and input as the messages of a chat; raises 400 naming what does not fit.

    An assistant's turn is one message: its reasoning, its text and its calls are neighbouring items.
    """
    if body.input is None:
        raise invalid("`input` is required.", "input", "missing_field")
    turns = [Message("system", body.instructions)] if body.instructions and with_instructions else []
    if isinstance(body.input, str):
        _check_size(_bytes(body.input))
        return [*turns, Message("user", body.input)]
    if not body.input:
        raise invalid("`input` must not be empty.", "input")
    made = _Conversation(turns)
    for index, item in enumerate(body.input):
        made.add(item, f"input[{index}]")
    return made.messages()


class _Conversation:
    """Messages while their items come in."""

    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages
        self._reasoning: str | None = None
        self._in_turn = False
        """The last message is an assistant's, and calls that follow are of its turn."""
        self._call_ids: set[str] = set()
        self._n_bytes = 0

    def add(self, item: InputItem, at: str) -> None:
        """Take the next item, which stands at the path ``at``."""
        kind = item.type or "message"
        _check_fields(item, kind, at)
        match kind:
            case "message":
                self._add_message(item, at)
            case "function_call":
                self._add_call(item, at)
            case "function_call_output":
                self._add_output(item, at)
            case "reasoning":
                self._add_reasoning(item, at)
        _check_size(self._n_bytes)

    def messages(self) -> list[Message]:
        """Return what was added; reasoning that nothing followed is a turn of its own."""
        self._flush_reasoning()
        return self._messages

    def _add_message(self, item: InputItem, at: str) -> None:
        role, content = item.role, item.content
        assert role is not None
        assert content is not None
        text = self._text(content, role, f"{at}.content")
        if role == "assistant":
            self._append_turn(Message("assistant", text))
        else:
            self._append(Message(role, text))

    def _add_call(self, item: InputItem, at: str) -> None:
        assert item.call_id is not None
        assert item.name is not None
        assert item.arguments is not None
        self._n_bytes += _bytes(item.arguments)
        call = ToolCall(
            item.call_id, item.name, _arguments(item.arguments, f"{at}.arguments"), item.arguments or None
        )
        self._call_ids.add(item.call_id)
        if self._in_turn and self._reasoning is None:
            turn = self._messages[-1]
            self._messages[-1] = replace(turn, tool_calls=(*turn.tool_calls, call))
        else:
            self._append_turn(Message("assistant", None, tool_calls=(call,)))

    def _add_output(self, item: InputItem, at: str) -> None:
        if item.call_id not in self._call_ids:
            raise invalid("No item before this one made a call with this id.", f"{at}.call_id")
        assert item.output is not None
        text = self._text(item.output, "tool", f"{at}.output")
        self._append(Message("tool", text, name=item.name, tool_call_id=item.call_id))

    def _add_reasoning(self, item: InputItem, at: str) -> None:
        if item.content:
            text = self._text(item.content, "reasoning", f"{at}.content")
        else:
            text = "\n".join(part.text for part in item.summary or [])
            self._n_bytes += _bytes(text)
        self._in_turn = False
        self._reasoning = (self._reasoning or "") + text

    def _append(self, message: Message) -> None:
        self._flush_reasoning()
        self._messages.append(message)
        self._in_turn = False

    def _append_turn(self, message: Message) -> None:
        self._messages.append(replace(message, reasoning_content=self._reasoning or None))
        self._reasoning = None
        self._in_turn = True

    def _flush_reasoning(self) -> None:
        if self._reasoning:
            self._append_turn(Message("assistant", ""))

    def _text(self, content: str | Sequence[Part | ResultTextPart], role: str, at: str) -> str:
        if not isinstance(content, str):
            if not content:
                raise invalid(f"`{at}` must not be empty.", at)
            content = "".join(_part_text(part, role, f"{at}[{index}]") for index, part in enumerate(content))
        elif role == "reasoning":
            raise invalid(f"`{at}` must be a list of parts.", at)
        self._n_bytes += _bytes(content)
        return content


def _check_fields(item: InputItem, kind: str, at: str) -> None:
    fields = _KINDS[kind]
    for name in fields.required:
        if getattr(item, name) is None:
            raise invalid(f"`{at}.{name}` is required.", f"{at}.{name}", "missing_field")
    for name in item.__struct_fields__:
        known = name in _EVERYWHERE or name in fields.required or name in fields.optional
        if not known and getattr(item, name) is not None:
            raise invalid(f"An item of the type {kind!r} has no `{name}`.", f"{at}.{name}", "unknown_field")


def _part_text(part: Part | ResultTextPart, role: str, at: str) -> str:
    match part:
        case InputTextPart() | ResultTextPart():
            is_right = role != "reasoning"
        case OutputTextPart() | RefusalPart():
            is_right = role == "assistant"
        case ReasoningTextPart():
            is_right = role == "reasoning"
    if not is_right:
        owner = "reasoning" if role == "reasoning" else f"a {role} message"
        raise invalid(f"This part does not belong in {owner}.", f"{at}.type")
    return part.refusal if isinstance(part, RefusalPart) else part.text


def _arguments(written: str, param: str) -> dict[str, object]:
    # Clients send "" for calls without parameters.
    try:
        return msgspec.json.decode(written or "{}", type=dict[str, object])
    except (msgspec.DecodeError, RecursionError):
        raise invalid("The arguments of a call must be a JSON object.", param) from None


def _check_size(n_bytes: int) -> None:
    if n_bytes > MAX_INPUT_BYTES:
        raise invalid(f"The texts of `input` have more than {MAX_INPUT_BYTES} bytes.", "input")


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
