"""Tokens to text that is safe to send: whole characters, and nothing of a stop string.

The stop-string matcher is a value: an immutable definition, and a state that goes in and comes out.
"""

from dataclasses import dataclass
from typing import Protocol


class Detokenizer(Protocol):
    """Incremental token-to-text conversion of one generation."""

    def push(self, token_id: int, /) -> str:
        """Return the text that is complete with this token; bytes of an unfinished character stay inside."""

    def finish(self) -> str:
        """Return what is left at the end; an unfinished character becomes one U+FFFD."""


@dataclass(frozen=True, slots=True)
class StopStrings:
    """Stop strings prepared for matching across pieces (Knuth-Morris-Pratt)."""

    stops: tuple[str, ...]
    borders: tuple[tuple[int, ...], ...]
    """``borders[k][m]``: the longest proper prefix of ``stops[k][:m]`` that is also its suffix."""


@dataclass(frozen=True, slots=True)
class StopState:
    """How much of each stop string the text ends in, and the text held back for it."""

    matched: tuple[int, ...]
    held: str
    """The last ``max(matched)`` characters."""


@dataclass(frozen=True, slots=True)
class StopStep:
    """The outcome of one piece of text."""

    state: StopState
    text: str
    """Safe to send now."""
    stop: str | None
    """The stop string that this piece completed."""


def compile_stops(stops: tuple[str, ...]) -> StopStrings:
    """Prepare non-empty ``stops``; linear in their length."""
    return StopStrings(stops, tuple(_borders(stop) for stop in stops))


def initial_state(definition: StopStrings) -> StopState:
    """State before any text."""
    return StopState((0,) * len(definition.stops), "")


def feed(definition: StopStrings, state: StopState, piece: str) -> StopStep:
    """Append ``piece`` (one token's text) to the text seen so far.

    Of several stop strings that this piece completes, the one that starts first wins, and of those the
    shortest.
    """
    buffer = state.held + piece
    matched = list(state.matched)
    found: tuple[int, int, str] | None = None
    for k, stop in enumerate(definition.stops):
        matched[k], end = _advance(stop, definition.borders[k], matched[k], piece)
        if end is not None:
            start = len(state.held) + end - len(stop)
            found = min(found or (start, len(stop), stop), (start, len(stop), stop))
    if found is not None:
        return StopStep(initial_state(definition), buffer[: found[0]], found[2])
    safe = len(buffer) - max(matched, default=0)
    return StopStep(StopState(tuple(matched), buffer[safe:]), buffer[:safe], None)


def _advance(stop: str, borders: tuple[int, ...], matched: int, piece: str) -> tuple[int, int | None]:
    """Return the new match length and, when ``stop`` was completed, how much of ``piece`` that took."""
    for index, character in enumerate(piece):
        while matched and stop[matched] != character:
            matched = borders[matched]
        if stop[matched] == character:
            matched += 1
        if matched == len(stop):
            return matched, index + 1
    return matched, None


def _borders(stop: str) -> tuple[int, ...]:
    borders = [0, 0]
    for character in stop[1:]:
        border = borders[-1]
        while border and stop[border] != character:
            border = borders[border]
        borders.append(border + 1 if stop[border] == character else 0)
    return tuple(borders)


class TextStream:
    """Safe text of one generation: the detokenizer followed by the stop strings."""

    __slots__ = ("_definition", "_detokenizer", "_state", "stop")

    def __init__(self, detokenizer: Detokenizer, stops: StopStrings) -> None:
        self._detokenizer = detokenizer
        self._definition = stops
        self._state = initial_state(stops)
        self.stop: str | None = None
        """The stop string that ended the text; no more may be pushed then."""

    def push(self, token_id: int) -> str:
        """Append one token; returns the text that is safe now."""
        return self._feed(self._detokenizer.push(token_id))

    def finish(self) -> str:
        """End the text; returns all that was held back and turned out to be no stop string."""
        text = self._feed(self._detokenizer.finish())
        return text if self.stop is not None else text + self._state.held

    def _feed(self, piece: str) -> str:
        if not self._definition.stops:
            return piece
        step = feed(self._definition, self._state, piece)
        self._state = step.state
        self.stop = step.stop
        return step.text
