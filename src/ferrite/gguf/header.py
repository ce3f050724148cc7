"""Reading one file's header: magic, counts, key/value pairs and tensor descriptions, every step bounded."""

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from mmap import mmap
from pathlib import Path
from struct import Struct

from ferrite import _native
from ferrite.gguf import limits
from ferrite.gguf.errors import GGUFError, gguf_error, quoted
from ferrite.gguf.metadata import ARRAY_HEAD, FIXED_STRUCTS, LENGTH, Metadata, MetadataEntry
from ferrite.gguf.types import GGML_TYPES, REMOVED_GGML_TYPES, GGMLType, TensorInfo, ValueType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
FOREIGN_MAGIC = {
    b"vers": "a Git LFS pointer; fetch the file it stands for",
    b"lmgg": "the older GGML format",
    b"fmgg": "the older GGMF format",
    b"tjgg": "the older GGJT format",
}

U32 = Struct("<I")
VALUE_TYPES = {value_type.value: value_type for value_type in ValueType}
MIN_BYTES = {value_type: fixed.size for value_type, fixed in FIXED_STRUCTS.items()} | {
    ValueType.STRING: LENGTH.size,
    ValueType.ARRAY: ARRAY_HEAD.size,
}
"""Fewest bytes one value takes, so that a claimed count can be held against the bytes left."""
MIN_PAIR_BYTES = LENGTH.size + 1 + U32.size + 1
MIN_TENSOR_BYTES = LENGTH.size + 1 + U32.size + U32.size + LENGTH.size


@dataclass(frozen=True, slots=True)
class Header:
    """Everything before the tensor data of one file."""

    version: int
    metadata: Metadata
    tensors: dict[str, TensorInfo]


@dataclass(frozen=True, slots=True)
class _Description:
    """A tensor description as written, before the start of the data section is known."""

    name: bytes
    shape: tuple[int, ...]
    type: GGMLType
    n_bytes: int
    relative_offset: int
    field_at: int
    """where ``relative_offset`` stands in the file"""


class _Cursor:
    """A position in the mapped file that cannot move past its end."""

    __slots__ = ("at", "buffer", "end", "path", "walked")

    def __init__(self, path: Path, buffer: mmap) -> None:
        self.path = path
        self.buffer = buffer
        self.end = len(buffer)
        self.at = 0
        self.walked = 0

    def error(self, problem: str, offset: int | None = None) -> GGUFError:
        return gguf_error(self.path, problem, self.at if offset is None else offset)

    def skip(self, n_bytes: int, what: str) -> int:
        """Move over ``n_bytes`` and return where they start."""
        start = self.at
        if n_bytes > self.end - start:
            left = self.end - start
            raise self.error(f"the file ends inside {what}: {n_bytes} bytes needed, {left} left")
        self.at = start + n_bytes
        return start

    def u32(self, what: str) -> int:
        value: int = U32.unpack_from(self.buffer, self.skip(U32.size, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = LENGTH.unpack_from(self.buffer, self.skip(LENGTH.size, what))[0]
        return value

    def name(self, what: str, max_bytes: int) -> bytes:
        """Read a name that must be UTF-8 and not empty."""
        start = self.at
        length = self.u64(f"the length of {what}")
        if not 0 < length <= max_bytes:
            raise self.error(f"{what} is {length} bytes long, must be 1 to {max_bytes}", start)
        text = self.buffer[self.skip(length, what) : self.at]
        try:
            text.decode()
        except UnicodeDecodeError as error:
            raise self.error(f"{what} is not UTF-8: {quoted(text)}", start) from error
        return text

    def walk(self, n_items: int, what: str) -> None:
        """Account for items that have to be visited one by one."""
        self.walked += n_items
        if self.walked > limits.MAX_WALKED_ITEMS:
            raise self.error(f"the arrays up to {what} hold more than {limits.MAX_WALKED_ITEMS} items")

    def count(self, what: str, maximum: int, min_bytes: int) -> int:
        """Read a count of things that take at least ``min_bytes`` each."""
        start = self.at
        count = self.u64(f"the number of {what}")
        if count > maximum:
            raise self.error(f"{count} {what} are more than the {maximum} supported", start)
        if count * min_bytes > self.end - self.at:
            left = self.end - self.at
            raise self.error(f"{count} {what} cannot fit into the {left} bytes left in the file", start)
        return count


def read_header(path: Path, buffer: mmap, shard: int) -> Header:
    """Read and check the header of one mapped file, down to the place of every tensor's data."""
    cursor = _Cursor(path, buffer)
    version = _read_version(cursor)
    n_tensors = cursor.count("tensors", limits.MAX_TENSORS, MIN_TENSOR_BYTES)
    n_pairs = cursor.count("metadata pairs", limits.MAX_METADATA_PAIRS, MIN_PAIR_BYTES)
    metadata = Metadata(path, buffer, _read_entries(cursor, n_pairs))
    alignment = _alignment(metadata)
    descriptions = _read_descriptions(cursor, n_tensors)
    data_start = -(-cursor.at // alignment) * alignment
    return Header(version, metadata, _place(cursor, descriptions, data_start, alignment, shard))


def _read_version(cursor: _Cursor) -> int:
    magic = cursor.buffer[:4]
    if magic != MAGIC:
        hint = FOREIGN_MAGIC.get(magic)
        found = f"it is {hint}" if hint else f"it starts with {quoted(magic)}"
        raise cursor.error(f"not a GGUF file: {found}")
    cursor.skip(4, "the magic")
    version = cursor.u32("the version")
    if version & 0xFFFF == 0 and version:
        raise cursor.error("big-endian GGUF is not supported", 4)
    if version not in VERSIONS:
        raise cursor.error(f"GGUF version {version} is not supported, only 2 and 3 are", 4)
    return version


def _read_entries(cursor: _Cursor, n_pairs: int) -> dict[str, MetadataEntry]:
    entries: dict[str, MetadataEntry] = {}
    for index in range(n_pairs):
        start = cursor.at
        key = cursor.name(f"metadata key {index}", limits.MAX_KEY_BYTES).decode()
        if key in entries:
            raise cursor.error(f"key {quoted(key)} appears twice", start)
        entries[key] = _read_entry(cursor, f"key {quoted(key)}")
    return entries


def _read_entry(cursor: _Cursor, what: str) -> MetadataEntry:
    value_type = _read_value_type(cursor, what)
    if value_type is ValueType.ARRAY:
        element_type, count = _read_array_head(cursor, what)
        start = cursor.at
        _skip_values(cursor, element_type, count, what, depth=1)
        return MetadataEntry(value_type, element_type, count, start)
    start = cursor.at
    _skip_values(cursor, value_type, 1, what, depth=0)
    return MetadataEntry(value_type, None, 1, start)


def _read_value_type(cursor: _Cursor, what: str) -> ValueType:
    type_id = cursor.u32(f"the type of {what}")
    value_type = VALUE_TYPES.get(type_id)
    if value_type is None:
        raise cursor.error(f"{what} has the unknown value type {type_id}", cursor.at - U32.size)
    return value_type


def _read_array_head(cursor: _Cursor, what: str) -> tuple[ValueType, int]:
    element_type = _read_value_type(cursor, what)
    return element_type, cursor.count(f"elements of {what}", limits.MAX_ARRAY_ITEMS, MIN_BYTES[element_type])


def _skip_values(cursor: _Cursor, value_type: ValueType, count: int, what: str, *, depth: int) -> None:
    """Check ``count`` values of one type and move behind them; ``depth`` counts the arrays around them."""
    if value_type is ValueType.STRING:
        _skip_strings(cursor, count, what)
    elif value_type is ValueType.ARRAY:
        if depth == limits.MAX_ARRAY_DEPTH:
            raise cursor.error(f"{what} nests arrays more than {limits.MAX_ARRAY_DEPTH} deep")
        cursor.walk(count * limits.NESTED_ARRAY_WALK, what)
        for _ in range(count):
            element_type, inner_count = _read_array_head(cursor, what)
            _skip_values(cursor, element_type, inner_count, what, depth=depth + 1)
    else:
        start = cursor.skip(count * FIXED_STRUCTS[value_type].size, what)
        if value_type is ValueType.BOOL and cursor.buffer[start : cursor.at].strip(b"\0\1"):
            raise cursor.error(f"{what} holds a bool that is neither 0 nor 1", start)


def _skip_strings(cursor: _Cursor, count: int, what: str) -> None:
    """Walk over ``count`` strings; a vocabulary has hundreds of thousands."""
    cursor.walk(count, what)
    index, at = _native.walk_strings(cursor.buffer, count, cursor.at, limits.MAX_STRING_BYTES)
    if index < count:
        if at > cursor.end - LENGTH.size:
            raise cursor.error(f"the file ends inside {what}, before the length of string {index}", at)
        length = LENGTH.unpack_from(cursor.buffer, at)[0]
        raise cursor.error(
            f"{what} holds a string of {length} bytes, more than {limits.MAX_STRING_BYTES}", at
        )
    if at > cursor.end:
        raise cursor.error(f"the file ends inside {what}, {at - cursor.end} bytes too early", cursor.end)
    cursor.at = at


def _alignment(metadata: Metadata) -> int:
    key = "general.alignment"
    alignment = metadata.integer(
        key, limits.DEFAULT_ALIGNMENT, minimum=limits.MIN_ALIGNMENT, maximum=limits.MAX_ALIGNMENT
    )
    if alignment & (alignment - 1):
        raise metadata.error(key, f"is {alignment}, not a power of two")
    return alignment


def _read_descriptions(cursor: _Cursor, n_tensors: int) -> list[_Description]:
    descriptions: list[_Description] = []
    seen: set[bytes] = set()
    for index in range(n_tensors):
        start = cursor.at
        name = cursor.name(f"the name of tensor {index}", limits.MAX_TENSOR_NAME_BYTES)
        if name in seen:
            raise cursor.error(f"tensor {quoted(name)} appears twice", start)
        seen.add(name)
        descriptions.append(_read_description(cursor, name))
    return descriptions


def _read_description(cursor: _Cursor, name: bytes) -> _Description:
    what = f"tensor {quoted(name)}"
    start = cursor.at
    rank = cursor.u32(f"the rank of {what}")
    if rank > limits.MAX_RANK:
        raise cursor.error(f"{what} has {rank} dimensions, more than {limits.MAX_RANK}", start)
    shape = tuple(cursor.u64(f"the shape of {what}") for _ in range(rank))
    if 0 in shape:
        raise cursor.error(f"{what} has a dimension of 0", start)
    n_elements = prod(shape)
    if n_elements > limits.MAX_ELEMENTS:
        raise cursor.error(f"{what} has a shape whose product overflows 63 bits", start)
    ggml_type = _read_ggml_type(cursor, what)
    row = shape[0] if shape else 1
    if row % ggml_type.block_size:
        raise cursor.error(
            f"{what} has rows of {row} elements, not a multiple of the {ggml_type.block_size} "
            f"in a {ggml_type.name} block",
            start,
        )
    n_bytes = n_elements // ggml_type.block_size * ggml_type.block_bytes
    field_at = cursor.at
    relative_offset = cursor.u64(f"the offset of {what}")
    return _Description(name, shape, ggml_type, n_bytes, relative_offset, field_at)


def _read_ggml_type(cursor: _Cursor, what: str) -> GGMLType:
    start = cursor.at
    type_id = cursor.u32(f"the type of {what}")
    ggml_type = GGML_TYPES.get(type_id)
    if ggml_type is None:
        removed = REMOVED_GGML_TYPES.get(type_id)
        known = f"type {removed}, which ggml has retired" if removed else f"the unknown type {type_id}"
        raise cursor.error(f"{what} has {known}", start)
    return ggml_type


def _place(
    cursor: _Cursor, descriptions: list[_Description], data_start: int, alignment: int, shard: int
) -> dict[str, TensorInfo]:
    """Turn offsets into the data section into file offsets; check alignment, file end and overlaps."""
    tensors: dict[str, TensorInfo] = {}
    for it in descriptions:
        offset = data_start + it.relative_offset
        if it.relative_offset % alignment:
            raise cursor.error(
                f"tensor {quoted(it.name)} has offset {it.relative_offset}, "
                f"not a multiple of the alignment {alignment}",
                it.field_at,
            )
        if offset + it.n_bytes > cursor.end:
            raise cursor.error(
                f"tensor {quoted(it.name)} ends at byte {offset + it.n_bytes} of a file of {cursor.end}",
                it.field_at,
            )
        name = it.name.decode()
        tensors[name] = TensorInfo(name, it.shape, it.type, it.n_bytes, offset, shard)
    ordered = sorted(tensors.values(), key=lambda tensor: tensor.offset)
    for before, after in pairwise(ordered):
        if before.offset + before.n_bytes > after.offset:
            raise cursor.error(
                f"tensors {quoted(before.name)} and {quoted(after.name)} overlap", after.offset
            )
    return tensors
