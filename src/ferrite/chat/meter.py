"""The work one rendering may do: counted, not timed, so that a limit always falls at the same place."""

from collections.abc import ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from itertools import chain
from typing import Any

from jinja2 import Undefined

from ferrite.chat.messages import ChatTemplateError

WORK_LIMIT = 2_000_000
"""Units for one rendering: one for each template node run, value visited, or 32 characters made. A second
of hostile work and 64 million characters in all; a conversation of a thousand turns takes a tenth of it."""

CHARACTERS_PER_UNIT = 32
MAX_TEXT = 16 << 20
"""Characters of one string, and bytes of the rendered prompt."""

MAX_CALL_DEPTH = 48
_MAX_NUMBER_BITS = 1024


class Meter:
    """One rendering's budget."""

    __slots__ = ("depth", "left")

    def __init__(self, limit: int = WORK_LIMIT) -> None:
        self.left = limit
        self.depth = 0

    def spend(self, units: int) -> None:
        """Take ``units`` from the budget, before doing the work. Raises ``ChatTemplateError`` at its end."""
        self.left -= units
        if self.left < 0:
            raise ChatTemplateError("the chat template does more work than one prompt may take")

    def make(self, characters: int) -> None:
        """Pay for a string about to be made."""
        if characters > MAX_TEXT:
            raise ChatTemplateError("the chat template makes a text of more than 16 MiB")
        self.spend(1 + characters // CHARACTERS_PER_UNIT)

    def search(self, text: str, part: str, *, backwards: bool = False) -> None:
        """Pay for a substring search.

        CPython searches long texts forwards in linear time (two-way), short texts and backwards in
        length times length at worst.
        """
        if backwards or len(text) < 30_000:
            self.spend(1 + len(text) * (len(part) + 1) // 64)
        else:
            self.spend(len(text) // 2)

    def weigh(self, value: Any) -> int:
        """Pay for visiting a value and all it holds, each time it is held; returns the levels of nesting.

        A list that holds one list many times, many levels deep, is small in memory and endless to
        print, compare or sort; the walk stops with the budget.
        """
        if not isinstance(value, (list, tuple, Mapping)):
            self.spend(1 + _leaf(value))
            return 1
        deepest = 0
        pending: list[tuple[Any, int]] = [(value, 1)]
        while pending:
            holder, level = pending.pop()
            deepest = max(deepest, level)
            self.spend(1 + 2 * len(holder))
            held = chain(holder, holder.values()) if isinstance(holder, Mapping) else holder
            for item in held:
                if isinstance(item, (list, tuple, Mapping)):
                    pending.append((item, level + 1))
                else:
                    self.left -= _leaf(item)
        self.spend(0)
        return deepest

    def text(self, value: Any) -> str:
        """``str(value)``, paid for."""
        if isinstance(value, str):
            self.make(len(value))
            return value
        self.weigh(value)
        return str(value)

    def settle(self, value: Any) -> Any:
        """Turn a view, a range or an iterator into a list, so that its length is known and paid for."""
        if isinstance(value, (KeysView, ValuesView, ItemsView, range)):
            self.spend(2 * len(value))
            return list(value)
        if isinstance(value, Iterator):
            settled = list(value)
            self.spend(2 * len(settled))
            return settled
        return value

    def shallow(self, value: Any) -> Any:
        """Settle ``value`` and pay for going through it once."""
        value = self.settle(value)
        if isinstance(value, (str, Sequence, Mapping)):
            self.spend(2 * len(value))
        return value


def _leaf(value: Any) -> int:
    """Extra units to visit a value that holds no others."""
    if isinstance(value, str):
        return len(value) // CHARACTERS_PER_UNIT
    if value is None or isinstance(value, (int, float, Undefined)):
        return 0
    raise ChatTemplateError(f"the chat template uses a {type(value).__name__} as text")


def bounded(value: Any) -> Any:
    """Refuse integers that arithmetic could grow without end."""
    if isinstance(value, int) and value.bit_length() > _MAX_NUMBER_BITS:
        raise ChatTemplateError("the chat template computes with too large a number")
    return value


def small(value: Any, limit: int) -> int:
    """A count that a template gives: an integer of at most ``limit``."""
    if not isinstance(value, int) or abs(value) > limit:
        raise ChatTemplateError(f"the chat template asks for a size above {limit}")
    return value


def size_of(text: str) -> int:
    """UTF-8 bytes. Raises ``UnicodeEncodeError`` for a lone surrogate."""
    return len(text) if text.isascii() else len(text.encode())
