"""Hand-built GGUF files: every field can be set, also to what no writer would produce."""

import struct
from dataclasses import dataclass, field

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)

CODES = {
    U8: "B",
    I8: "b",
    U16: "H",
    I16: "h",
    U32: "I",
    I32: "i",
    F32: "f",
    BOOL: "?",
    U64: "Q",
    I64: "q",
    F64: "d",
}


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def value(type_id: int, content: object) -> bytes:
    if type_id == STRING:
        assert isinstance(content, str | bytes)
        return string(content)
    return struct.pack("<" + CODES[type_id], content)


def pair(key: str | bytes, type_id: int, content: object) -> bytes:
    return raw_pair(key, type_id, value(type_id, content))


def raw_pair(key: str | bytes, type_id: int, payload: bytes) -> bytes:
    return string(key) + struct.pack("<I", type_id) + payload


def array(element_type: int, items: list[object], *, count: int | None = None) -> bytes:
    head = struct.pack("<IQ", element_type, len(items) if count is None else count)
    return head + b"".join(value(element_type, item) for item in items)


def array_pair(key: str, element_type: int, items: list[object], *, count: int | None = None) -> bytes:
    return raw_pair(key, ARRAY, array(element_type, items, count=count))


@dataclass(frozen=True)
class Tensor:
    name: str | bytes
    shape: tuple[int, ...] = (8,)
    type_id: int = 0
    offset: int = 0

    def __bytes__(self) -> bytes:
        rank = len(self.shape)
        return string(self.name) + struct.pack(f"<I{rank}QIQ", rank, *self.shape, self.type_id, self.offset)


@dataclass(frozen=True)
class Build:
    """A file in parts; ``n_tensors`` and ``n_pairs`` default to the truth."""

    pairs: list[bytes] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    data: bytes = b""
    version: int = 3
    alignment: int = 32
    n_tensors: int | None = None
    n_pairs: int | None = None
    magic: bytes = b"GGUF"

    def __bytes__(self) -> bytes:
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_pairs = len(self.pairs) if self.n_pairs is None else self.n_pairs
        head = self.magic + struct.pack("<IQQ", self.version, n_tensors, n_pairs)
        head += b"".join(self.pairs) + b"".join(bytes(tensor) for tensor in self.tensors)
        return head + bytes(-len(head) % self.alignment if self.data else 0) + self.data
