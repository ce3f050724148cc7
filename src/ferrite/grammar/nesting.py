"""How deep a JSON text is nested, and which tokens would nest it too deep."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ferrite.gguf import PackedBytes
from ferrite.grammar.limits import MAX_OUTPUT_LEVELS

QUOTE, ESCAPE = b'"\\'
OPENING = frozenset(b"[{")
CLOSING = frozenset(b"]}")
STRUCTURE = b'"\\[]{}'
"""Every byte that changes where a text stands"""


@dataclass(frozen=True, slots=True)
class Nesting:
    """Where a JSON text stands."""

    level: int = 0
    in_string: bool = False
    escaped: bool = False

    @property
    def is_inside(self) -> bool:
        """The text is inside an array, an object or a string: it cannot be all of a value."""
        return self.level > 0 or self.in_string

    def after(self, text: bytes) -> "Nesting":
        """Return where the text stands after more of it."""
        return self._scan(text)[0]

    def highest(self, text: bytes) -> int:
        """Return the deepest level within more of the text."""
        return self._scan(text)[1]

    def _scan(self, text: bytes) -> tuple["Nesting", int]:
        level, in_string, escaped = self.level, self.in_string, self.escaped
        highest = level
        for byte in text:
            if escaped:
                escaped = False
            elif in_string:
                in_string = byte != QUOTE
                escaped = byte == ESCAPE
            elif byte == QUOTE:
                in_string = True
            elif byte in OPENING:
                level += 1
                highest = max(highest, level)
            elif byte in CLOSING:
                level -= 1
        return Nesting(level, in_string, escaped), highest


class NestingLimit:
    """What the tokens of a vocabulary do to the nesting. Immutable."""

    def __init__(self, tokens: PackedBytes) -> None:
        self._tokens = tokens
        opens = tokens.counts(OPENING)
        self._ids = np.nonzero(opens)[0]
        self._opens = opens[self._ids]
        self._most = int(self._opens.max(initial=0))
        self._matters = (tokens.counts(STRUCTURE) > 0).tobytes()

    def after(self, nesting: Nesting, token: int) -> Nesting:
        """Return where a text stands after the token."""
        if not self._matters[token] and not nesting.escaped:
            return nesting
        return nesting.after(self._tokens[token])

    def apply(self, nesting: Nesting, words: npt.NDArray[np.uint32]) -> bool:
        """Take the tokens that would nest deeper than the limit out of a mask; True when it had such ones."""
        if nesting.level + self._most <= MAX_OUTPUT_LEVELS:
            return False
        found = False
        for token in self._ids[nesting.level + self._opens > MAX_OUTPUT_LEVELS].tolist():
            bit = np.uint32(1 << token % 32)
            if words[token // 32] & bit and nesting.highest(self._tokens[token]) > MAX_OUTPUT_LEVELS:
                words[token // 32] &= ~bit
                found = True
        return found
