"""Many byte strings in one piece of memory."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Self, overload

import numpy as np
import numpy.typing as npt

from ferrite import _native

Offsets = npt.NDArray[np.uint32]


class PackedBytes(Sequence[bytes]):
    """Immutable. 262,144 short strings take 4 MB; as ``bytes`` objects they would take 13."""

    __slots__ = ("_bounds", "data", "offsets")

    def __init__(self, data: bytes, offsets: Offsets) -> None:
        self.data = data
        self.offsets = offsets
        """Where each begins in ``data``; the last number is the end."""
        # A number of it is an int, and far sooner there than one of the array.
        self._bounds = offsets.data

    @classmethod
    def of(cls, strings: Iterable[bytes]) -> Self:
        """Pack ``strings``; raises ``OverflowError`` for 4 GiB or more."""
        found = list(strings)
        return cls(b"".join(found), np.fromiter(accumulate(map(len, found), initial=0), np.uint32))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int, /) -> bytes: ...
    @overload
    def __getitem__(self, index: slice, /) -> list[bytes]: ...

    def __getitem__(self, index: int | slice, /) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return [self[place] for place in range(len(self))[index]]
        place = range(len(self._bounds) - 1)[index]
        return self.data[self._bounds[place] : self._bounds[place + 1]]

    def __iter__(self) -> Iterator[bytes]:
        data = self.data
        return (data[start:end] for start, end in pairwise(self._bounds))

    def texts(self) -> list[str]:
        """Return all of them as text, if they are UTF-8: sooner than one by one."""
        return _native.unpack_texts(self.data, self.offsets)

    def pairs(self) -> list[tuple[str, str]]:
        """Return each of them, if they are UTF-8, as the two texts around its space.

        Raises ``ValueError`` where one has no space or several.
        """
        return _native.unpack_pairs(self.data, self.offsets)

    def lengths(self) -> Offsets:
        """Return how many bytes each has."""
        return np.diff(self.offsets)

    def counts(self, wanted: Iterable[int]) -> Offsets:
        """Return how many of the wanted bytes each has."""
        chosen = np.zeros(256, np.bool_)
        chosen[list(wanted)] = True
        return np.diff(_offsets_of(chosen[np.frombuffer(self.data, np.uint8)])[self.offsets])

    def replaced(self, changes: Mapping[int, bytes]) -> "PackedBytes":
        """Return a copy with other strings at some places."""
        if not changes:
            return self
        lengths = self.lengths()
        parts: list[bytes] = []
        done = 0
        for place in sorted(changes):
            parts += (self.data[done : self._bounds[place]], changes[place])
            done = self._bounds[place + 1]
            lengths[place] = len(changes[place])
        parts.append(self.data[done:])
        return PackedBytes(b"".join(parts), _offsets_of(lengths))

    def character_offsets(self) -> Offsets:
        """Return where each begins in characters, if all of them are UTF-8."""
        begins = np.frombuffer(self.data, np.int8) >= -64
        return _offsets_of(begins)[self.offsets]


def _offsets_of(lengths: npt.NDArray[np.integer] | npt.NDArray[np.bool_]) -> Offsets:
    """Return where things of these lengths begin, one behind the other, and where the last one ends."""
    offsets = np.zeros(len(lengths) + 1, np.uint32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
