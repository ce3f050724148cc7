"""Texts read by the machines, in one piece or in many."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from ferrite.toolcalls import AnswerEvent, AnswerStream, CallSyntax, ReasoningMarks, Text, ToolFamily
from ferrite.toolcalls.events import CallArguments, Reasoning

NAMES = ("f", "g", "get_weather")
THINK = ReasoningMarks("<think>", "</think>")


def numbered(index: int) -> str:
    """An id source that tests can foretell."""
    return f"call_{index}"


def syntax(family: ToolFamily, **more: Any) -> CallSyntax:
    """Calls of ``NAMES``."""
    return CallSyntax(family, frozenset(NAMES), numbered, **more)


def read(pieces: Iterable[str], stream: AnswerStream) -> list[AnswerEvent]:
    """All events, neighbouring pieces joined."""
    events = [event for piece in pieces for event in stream.push(piece)]
    return joined([*events, *stream.finish()])


def read_calls(text: str, family: ToolFamily, **more: Any) -> list[AnswerEvent]:
    """Read character by character; every other cut must give the same."""
    events = read(text, AnswerStream(calls=syntax(family, **more)))
    assert read([text], AnswerStream(calls=syntax(family, **more))) == events
    return events


def joined(events: Sequence[AnswerEvent]) -> list[AnswerEvent]:
    """Neighbouring pieces of one kind as one."""
    made: list[AnswerEvent] = []
    for event in events:
        last = made[-1] if made else None
        match last, event:
            case (Text(), Text()):
                made[-1] = Text(last.delta + event.delta)
            case (Reasoning(), Reasoning()):
                made[-1] = Reasoning(last.delta + event.delta)
            case (CallArguments(), CallArguments()):
                made[-1] = CallArguments(event.index, last.delta + event.delta)
            case _:
                made.append(event)
    return made


def cut(text: str, places: Iterable[int]) -> list[str]:
    """The text in pieces."""
    bounds = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in pairwise(bounds)]
