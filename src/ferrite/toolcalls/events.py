"""What an answer is made of, in the order in which the model writes it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    """Content for the person; never a part of a call or of a reasoning section."""

    delta: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of the reasoning section, without its markers."""

    delta: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of a declared function begins; nothing of its arguments is out yet."""

    index: int
    """0, 1, 2 … in the order of the answer."""
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the call's arguments; all pieces of a complete call join to the text of one JSON object."""

    index: int
    delta: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The call is over. ``complete`` is false where its arguments were cut and are no whole JSON object."""

    index: int
    complete: bool


AnswerEvent = Text | Reasoning | CallStart | CallArguments | CallEnd
