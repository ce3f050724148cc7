"""The conversation as the template sees it: messages, tool calls, and the two ways it can fail."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Role: TypeAlias = Literal["developer", "system", "user", "assistant", "tool", "function"]

Segments: TypeAlias = list[str | int]
"""A rendered prompt: ids are control tokens the template wrote, strings are text and never control tokens."""


class ChatTemplateError(ValueError):
    """Messages the template does not render. ``message`` is the template's own sentence where it gave one."""

    def __init__(self, message: str) -> None:
        # The exact type, which every JSON encoder knows, also where the template's own text comes in.
        self.message = str.__str__(message)
        super().__init__(self.message)


class TemplateRefusedError(ValueError):
    """A template that cannot be used at all; the text names the metadata key, the line and the reason."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the assistant made earlier. ``arguments`` is the parsed JSON object."""

    id: str
    name: str
    arguments: Mapping[str, object]
    written: str | None = None
    """The arguments as they came, for templates that want text; None: as JSON is usually written."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. Text parts are already joined; None and "" both mean a turn without text."""

    role: Role
    content: str | None = None
    name: str | None = None
    tool_calls: Sequence[ToolCall] = ()
    tool_call_id: str | None = None
    reasoning_content: str | None = None
