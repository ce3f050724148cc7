"""Typed access to a file's key/value pairs; strings and arrays are decoded when they are asked for."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum
from math import isfinite
from mmap import mmap
from pathlib import Path
from struct import Struct
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from ferrite import _native
from ferrite.gguf.errors import GGUFError, gguf_error, quoted
from ferrite.gguf.packed import PackedBytes
from ferrite.gguf.types import FIXED_FORMATS, FLOAT_TYPES, INTEGER_TYPES, ValueType

Value: TypeAlias = bool | int | float | str | list["Value"]
Default = TypeVar("Default")

LENGTH = Struct("<Q")
ARRAY_HEAD = Struct("<IQ")
FIXED_STRUCTS = {value_type: Struct("<" + code) for value_type, code in FIXED_FORMATS.items()}


class Required(Enum):
    """Type of ``REQUIRED``, the default that makes a missing key an error."""

    REQUIRED = "required"


REQUIRED: Final = Required.REQUIRED


@dataclass(frozen=True, slots=True)
class MetadataEntry:
    """Type and place of one value, already checked to lie inside the file."""

    type: ValueType
    element_type: ValueType | None
    """None unless ``type`` is ARRAY"""
    count: int
    """elements of an array, 1 for anything else"""
    offset: int
    """byte offset of the value, or of an array's first element"""

    @property
    def item_type(self) -> ValueType:
        """Type of an array's elements, or of a lone value."""
        return self.type if self.element_type is None else self.element_type

    @property
    def kind(self) -> str:
        """The type in words, such as ``uint32`` or ``array of string``."""
        if self.element_type is None:
            return self.type.name.lower()
        return f"array of {self.element_type.name.lower()}"


class Metadata:
    """The key/value pairs of one file. Read values before the file is closed.

    Every getter raises ``GGUFError`` naming the key when the value has another type, or when the key is
    missing and no ``default`` is given. Integers of any width count as integers; a float is never an
    integer nor the other way round.
    """

    def __init__(self, path: Path, buffer: mmap, entries: dict[str, MetadataEntry]) -> None:
        self._path = path
        self._buffer = buffer
        self._entries = entries

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def entry(self, key: str) -> MetadataEntry:
        """Return type and place of a value without decoding it."""
        entry = self._entries.get(key)
        if entry is None:
            raise gguf_error(self._path, f"key {quoted(key)} is missing")
        return entry

    def error(self, key: str, problem: str) -> GGUFError:
        """Build the error for a value that its user cannot accept; ``problem`` follows the key's name."""
        entry = self._entries.get(key)
        return gguf_error(self._path, f"key {quoted(key)} {problem}", entry.offset if entry else None)

    def get(self, key: str, default: Default | None = None) -> Value | Default | None:
        """Return a value as its natural Python type, whatever that is."""
        if key not in self._entries:
            return default
        entry = self._entries[key]
        if entry.element_type is not None:
            return self.head(key, entry.count)
        return self.head(key, 1)[0]

    def head(self, key: str, n: int) -> list[Value]:
        """Return the first ``n`` elements of an array (a lone value counts as an array of one)."""
        entry = self.entry(key)
        try:
            values, _ = _decode(self._buffer, entry.item_type, min(n, entry.count), entry.offset)
        except UnicodeDecodeError as error:
            raise self.error(key, "holds text that is not UTF-8") from error
        return values

    def string(self, key: str, default: Default | Required = REQUIRED) -> str | Default:
        """Return a text value; bytes that are not UTF-8 are an error."""
        if key not in self._entries and default is not REQUIRED:
            return default
        entry = self._typed(key, (ValueType.STRING,), "string")
        try:
            return _raw_strings(self._buffer, 1, entry.offset)[0][0].decode()
        except UnicodeDecodeError as error:
            raise self.error(key, "is not UTF-8 text") from error

    def integer(
        self,
        key: str,
        default: Default | Required = REQUIRED,
        *,
        minimum: int | None = None,
        maximum: int | None = None,
    ) -> int | Default:
        """Return an integer of any width; one outside ``minimum`` .. ``maximum`` is an error."""
        if key not in self._entries and default is not REQUIRED:
            return default
        entry = self._typed(key, INTEGER_TYPES, "integer")
        value: int = FIXED_STRUCTS[entry.type].unpack_from(self._buffer, entry.offset)[0]
        if minimum is not None and value < minimum:
            raise self.error(key, f"is {value}, below the minimum of {minimum}")
        if maximum is not None and value > maximum:
            raise self.error(key, f"is {value}, above the maximum of {maximum}")
        return value

    def u32(self, key: str, default: Default | Required = REQUIRED) -> int | Default:
        """Return an integer of any width whose value fits in 32 unsigned bits."""
        return self.integer(key, default, minimum=0, maximum=(1 << 32) - 1)

    def number(self, key: str, default: Default | Required = REQUIRED) -> float | Default:
        """Return a finite float."""
        if key not in self._entries and default is not REQUIRED:
            return default
        entry = self._typed(key, FLOAT_TYPES, "float")
        value: float = FIXED_STRUCTS[entry.type].unpack_from(self._buffer, entry.offset)[0]
        if not isfinite(value):
            raise self.error(key, f"is {value}, not a finite number")
        return value

    def boolean(self, key: str, default: Default | Required = REQUIRED) -> bool | Default:
        """Return a truth value."""
        if key not in self._entries and default is not REQUIRED:
            return default
        entry = self._typed(key, (ValueType.BOOL,), "bool")
        return bool(self._buffer[entry.offset])

    def packed_strings(self, key: str) -> PackedBytes:
        """Return an array of texts as their UTF-8; an element that is not is an error naming its index."""
        entry = self._array(key, (ValueType.STRING,), "string")
        try:
            data, offsets = _native.pack_strings(self._buffer, entry.count, entry.offset)
        except OverflowError as error:
            raise self.error(key, "holds 4 GiB of text or more") from error
        packed = PackedBytes(data, np.frombuffer(offsets, np.uint32))
        if not _all_utf8(packed):
            index = next(index for index, text in enumerate(packed) if not _is_utf8(text))
            raise self.error(key, f"is not UTF-8 text at index {index}")
        return packed

    def strings(self, key: str, default: Default | Required = REQUIRED) -> list[str] | Default:
        """Return an array of texts; an element that is not UTF-8 is an error naming its index."""
        if key not in self._entries and default is not REQUIRED:
            return default
        return self.packed_strings(key).texts()

    def integers(self, key: str, default: Default | Required = REQUIRED) -> npt.NDArray[np.integer] | Default:
        """Return an array of integers, of the width that the file has."""
        if key not in self._entries and default is not REQUIRED:
            return default
        entry = self._array(key, INTEGER_TYPES, "integer")
        # A view of the file would keep it open.
        return _fixed_array(self._buffer, entry.item_type, entry.count, entry.offset).copy()

    def numbers(self, key: str, default: Default | Required = REQUIRED) -> npt.NDArray[np.floating] | Default:
        """Return an array of floats, of the width that the file has."""
        if key not in self._entries and default is not REQUIRED:
            return default
        entry = self._array(key, FLOAT_TYPES, "float")
        return _fixed_array(self._buffer, entry.item_type, entry.count, entry.offset).copy()

    def _typed(self, key: str, types: Collection[ValueType], expected: str) -> MetadataEntry:
        entry = self.entry(key)
        if entry.type not in types:
            raise self.error(key, f"is {entry.kind}, expected {expected}")
        return entry

    def _array(self, key: str, element_types: Collection[ValueType], expected: str) -> MetadataEntry:
        entry = self.entry(key)
        if entry.element_type not in element_types:
            raise self.error(key, f"is {entry.kind}, expected array of {expected}")
        return entry


def _decode(buffer: mmap, value_type: ValueType, count: int, offset: int) -> tuple[list[Value], int]:
    """Decode ``count`` checked values from ``offset`` on; return them and the offset behind them."""
    if value_type is ValueType.STRING:
        texts, end = _raw_strings(buffer, count, offset)
        return [text.decode() for text in texts], end
    if value_type is not ValueType.ARRAY:
        values = _fixed_array(buffer, value_type, count, offset)
        return values.tolist(), offset + values.nbytes
    arrays: list[Value] = []
    for _ in range(count):
        element_type, inner_count = ARRAY_HEAD.unpack_from(buffer, offset)
        inner, offset = _decode(buffer, ValueType(element_type), inner_count, offset + ARRAY_HEAD.size)
        arrays.append(inner)
    return arrays, offset


def _raw_strings(buffer: mmap, count: int, offset: int) -> tuple[list[bytes], int]:
    unpack = LENGTH.unpack_from
    texts = []
    for _ in range(count):
        start = offset + LENGTH.size
        offset = start + unpack(buffer, offset)[0]
        texts.append(buffer[start:offset])
    return texts, offset


def _all_utf8(texts: PackedBytes) -> bool:
    begins = np.frombuffer(texts.data, np.int8)[texts.offsets[texts.offsets < len(texts.data)]]
    # No continuation byte: then what is UTF-8 all together is so piece by piece.
    return bool((begins >= -64).all()) and _is_utf8(texts.data)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _fixed_array(buffer: mmap, value_type: ValueType, count: int, offset: int) -> npt.NDArray[Any]:
    return np.frombuffer(buffer, "<" + FIXED_FORMATS[value_type], count, offset)
