"""The reasoning section at the beginning of an answer, told apart from the answer itself.

A section begins with its mark, blanks before it aside, or in the prompt already; a mark anywhere later is
text. Newlines at both ends of the section and behind it are the template's, not the model's, and are
dropped. An answer that ends inside the section is reasoning as a whole.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ferrite.chat import Segments
from ferrite.toolcalls.families import ReasoningMarks

_BLANKS = " \t\r\n"


@dataclass(frozen=True, slots=True)
class ReasoningState:
    """Where the answer stands: at its ``start``, ``inside`` the section, ``behind`` it, in the ``rest``."""

    mode: Literal["start", "inside", "behind", "rest"] = "start"
    held: str = ""
    """Blanks before an opening mark, or newlines inside, whose fate is open."""
    partial: str = ""
    """The beginning of a mark."""
    empty: bool = True
    """Nothing of the section has come out yet."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of text of one kind."""

    text: str
    reasoning: bool


def prompt_opens(marks: ReasoningMarks, prompt: Segments, token_text: Callable[[int], str]) -> bool:
    """Whether a rendered prompt ends in the opening mark, so that the answer begins inside the section.

    ``token_text`` spells a control token.
    """
    tail = ""
    for piece in reversed(prompt):
        tail = (piece if isinstance(piece, str) else token_text(piece)) + tail
        if len(tail.strip()) >= len(marks.opening):
            break
    return tail.rstrip().endswith(marks.opening)


def start(*, opened: bool) -> ReasoningState:
    """State before any text; ``opened``: the prompt ends inside a section."""
    return ReasoningState("inside" if opened else "start")


def feed(marks: ReasoningMarks, state: ReasoningState, piece: str) -> tuple[ReasoningState, list[Part]]:
    """Take the next piece of text; neighbouring parts are of different kinds."""
    parts: list[Part] = []
    at = 0
    while at < len(piece):
        if state.mode == "rest":
            _add(parts, piece[at:], reasoning=False)
            break
        if state.mode == "inside" and not (state.held or state.partial or state.empty):
            stop = re.compile(f"[\n{re.escape(marks.closing[0])}]").search(piece, at)
            end = stop.start() if stop else len(piece)
            _add(parts, piece[at:end], reasoning=True)
            at = end
            if stop is None:
                break
        state = _read(marks, state, piece[at], parts)
        at += 1
    return state, parts


def finish(state: ReasoningState) -> list[Part]:
    """End the text."""
    parts: list[Part] = []
    if state.mode == "start":
        _add(parts, state.held + state.partial, reasoning=False)
    elif state.partial:
        _add(parts, state.held + state.partial, reasoning=True)
    return parts


def _read(marks: ReasoningMarks, state: ReasoningState, character: str, parts: list[Part]) -> ReasoningState:
    seen = state.partial + character
    if state.mode == "behind":
        if character == "\n":
            return state
        _add(parts, character, reasoning=False)
        return ReasoningState("rest")
    if state.mode == "start":
        if marks.opening.startswith(seen):
            return (
                ReasoningState("inside")
                if seen == marks.opening
                else ReasoningState("start", state.held, seen)
            )
        if not state.partial and character in _BLANKS:
            return ReasoningState("start", state.held + character)
        _add(parts, state.held + seen, reasoning=False)
        return ReasoningState("rest")
    return _inside(marks, state, character, parts)


def _inside(
    marks: ReasoningMarks, state: ReasoningState, character: str, parts: list[Part]
) -> ReasoningState:
    seen = state.partial + character
    if marks.closing.startswith(seen):
        if seen == marks.closing:
            return ReasoningState("behind")
        return ReasoningState("inside", state.held, seen, state.empty)
    if state.partial:
        _add(parts, state.held + state.partial[0], reasoning=True)
        state = ReasoningState("inside", empty=False)
        for again in seen[1:]:
            state = _inside(marks, state, again, parts)
        return state
    if character == "\n":
        return state if state.empty else ReasoningState("inside", state.held + character, empty=False)
    _add(parts, state.held + character, reasoning=True)
    return ReasoningState("inside", empty=False)


def _add(parts: list[Part], text: str, *, reasoning: bool) -> None:
    if parts and parts[-1].reasoning == reasoning:
        parts[-1] = Part(parts[-1].text + text, reasoning)
    elif text:
        parts.append(Part(text, reasoning))
