"""One answer of a model, from its text to events and from events to the whole message."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from ferrite.toolcalls import calls, reasoning
from ferrite.toolcalls.call_state import CallState, CallSyntax
from ferrite.toolcalls.events import AnswerEvent, CallArguments, CallEnd, CallStart, Reasoning, Text
from ferrite.toolcalls.families import ReasoningMarks
from ferrite.toolcalls.reasoning import Part, ReasoningState

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ID_LENGTH = 24


def call_ids(unique: str) -> Callable[[int], str]:
    """Ids for the calls of one answer: ``call_`` and 24 letters or digits made of ``unique`` and the index.

    ``unique`` must be random where ids must not be guessed; equal ones give equal ids.
    """

    def call_id(index: int) -> str:
        number = int.from_bytes(hashlib.sha256(f"{index}:{unique}".encode()).digest(), "big")
        letters = []
        for _ in range(_ID_LENGTH):
            number, letter = divmod(number, len(_ALPHABET))
            letters.append(_ALPHABET[letter])
        return "call_" + "".join(letters)

    return call_id


class AnswerStream:
    """The events of one answer, whose text comes in pieces."""

    __slots__ = (
        "_calls",
        "_complete",
        "_incomplete",
        "_marks",
        "_reasoning",
        "_syntax",
        "_undecided_tokens",
        "reasoning_tokens",
    )

    def __init__(
        self, *, calls: CallSyntax | None = None, marks: ReasoningMarks | None = None, opened: bool = False
    ) -> None:
        """``calls`` None: no call is looked for; ``marks`` None: no reasoning section.

        ``opened``: the prompt ends inside a reasoning section.
        """
        self._syntax = calls
        self._marks = marks
        self._calls = CallState()
        self._reasoning = reasoning.start(opened=opened) if marks else ReasoningState("rest")
        self._complete = 0
        self._incomplete = False
        self._undecided_tokens = 0
        """Tokens of what may become the opening mark."""
        self.reasoning_tokens = 0
        """Tokens of the reasoning section, its marks included."""

    @property
    def ended(self) -> bool:
        """Nothing more can come out: the generation may be cancelled, and has stopped as it should."""
        return self._calls.ended

    @property
    def in_reasoning(self) -> bool:
        """What was read last is of the reasoning section, or its end, or between it and the answer."""
        return self._reasoning.mode in ("inside", "behind")

    def push(self, text: str, n_tokens: int = 1) -> list[AnswerEvent]:
        """Take a piece of text and the number of tokens that it is made of."""
        inside = self._reasoning.mode == "inside"
        parts = [Part(text, reasoning=False)] if text else []
        if self._marks is not None:
            self._reasoning, parts = reasoning.feed(self._marks, self._reasoning, text)
        if inside or self._reasoning.mode == "inside":
            self.reasoning_tokens += n_tokens + self._undecided_tokens
        self._undecided_tokens = self._undecided_tokens + n_tokens if self._reasoning.mode == "start" else 0
        return self._noted([event for part in parts for event in self._take(part)])

    def finish(self) -> list[AnswerEvent]:
        """End the text."""
        parts = reasoning.finish(self._reasoning)
        events = [event for part in parts for event in self._take(part)]
        if self._syntax is not None:
            events += calls.finish(self._syntax, self._calls)
        return self._noted(events)

    def finish_reason(self, reason: Literal["stop", "length"]) -> Literal["stop", "length", "tool_calls"]:
        """Why the answer ended, given why the generation did; to be asked behind ``finish``.

        ``length`` also where a call's arguments broke off or exceeded their limit.
        """
        if self._incomplete or (reason == "length" and not self.ended):
            return "length"
        return "tool_calls" if self._complete else "stop"

    def _take(self, part: Part) -> list[AnswerEvent]:
        if part.reasoning:
            return [Reasoning(part.text)]
        if self._syntax is None:
            return [Text(part.text)]
        self._calls, events = calls.feed(self._syntax, self._calls, part.text)
        return events

    def _noted(self, events: list[AnswerEvent]) -> list[AnswerEvent]:
        ends = [event.complete for event in events if isinstance(event, CallEnd)]
        self._complete += sum(ends)
        self._incomplete |= not all(ends)
        return events


@dataclass(frozen=True, slots=True)
class Call:
    """A whole call; ``complete`` false: ``arguments`` are cut and no JSON object."""

    id: str
    name: str
    arguments: str
    complete: bool


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """What a not streamed answer holds."""

    content: str | None
    """None where there are calls and no text."""
    reasoning: str | None
    calls: tuple[Call, ...]


def whole(events: Iterable[AnswerEvent]) -> WholeAnswer:
    """Join the events of one answer; the pieces of a stream join to the same values."""
    text: list[str] = []
    thought: list[str] = []
    starts: list[CallStart] = []
    arguments: dict[int, list[str]] = {}
    complete: set[int] = set()
    for event in events:
        match event:
            case Text():
                text.append(event.delta)
            case Reasoning():
                thought.append(event.delta)
            case CallStart():
                starts.append(event)
            case CallArguments():
                arguments.setdefault(event.index, []).append(event.delta)
            case CallEnd():
                complete |= {event.index} if event.complete else set()
    made = tuple(
        Call(start.id, start.name, "".join(arguments.get(start.index, ())), start.index in complete)
        for start in starts
    )
    return WholeAnswer("".join(text) if text or not made else None, "".join(thought) or None, made)
