"""Metadata and float32 tensors of a trusted GGUF file."""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import gguf
import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Scalar = str | int | float | bool
Value = Scalar | list[int | float | bool] | None

_SCALAR_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class _TensorInfo:
    shape: tuple[int, ...]
    """Row-major, the reverse of the file's order."""
    kind: gguf.GGMLQuantizationType
    offset: int
    """Bytes from the start of the file."""


class _Cursor:
    """Reads little-endian GGUF values one after the other."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.offset = 0

    def scalar(self, code: str) -> int | float | bool:
        (value,) = struct.unpack_from("<" + code, self.data, self.offset)
        self.offset += struct.calcsize("<" + code)
        assert isinstance(value, int | float)
        return value

    def count(self) -> int:
        return int(self.scalar("Q"))

    def string(self) -> str:
        length = self.count()
        self.offset += length
        return self.data[self.offset - length : self.offset].decode()

    def value(self, kind: int) -> Value:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.scalar(_SCALAR_FORMATS[kind])
        element, length = int(self.scalar("I")), self.count()
        if element == _STRING:
            for _ in range(length):
                length_of_one = self.count()
                self.offset += length_of_one
            return None
        return [self.scalar(_SCALAR_FORMATS[element]) for _ in range(length)]


class Weights:
    """An open GGUF file. Tensors are de-quantised on each call and not kept.

    The file's word is taken for every size: only for files the test suite made or pinned. Arrays of
    strings (the vocabulary) are skipped and read as ``None``.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        cursor = _Cursor(self._data)
        if self._data[:4] != b"GGUF":
            raise ValueError(f"{path.name}: not a GGUF file")
        cursor.offset = 8
        n_tensors, n_keys = cursor.count(), cursor.count()
        self.metadata: dict[str, Value] = {}
        for _ in range(n_keys):
            key = cursor.string()
            self.metadata[key] = cursor.value(int(cursor.scalar("I")))
        infos: dict[str, _TensorInfo] = {}
        for _ in range(n_tensors):
            name = cursor.string()
            shape = tuple(cursor.count() for _ in range(int(cursor.scalar("I"))))[::-1]
            kind = gguf.GGMLQuantizationType(int(cursor.scalar("I")))
            infos[name] = _TensorInfo(shape, kind, cursor.count())
        alignment = self.integer("general.alignment", 32)
        start = -(-cursor.offset // alignment) * alignment
        self._infos = {name: _TensorInfo(i.shape, i.kind, start + i.offset) for name, i in infos.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._data.close()

    def __contains__(self, name: str) -> bool:
        return name in self._infos

    @property
    def architecture(self) -> str:
        """The value of ``general.architecture``."""
        return str(self.metadata["general.architecture"])

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer of the metadata; ``KeyError`` when it is absent and has no default."""
        value = self.metadata.get(key, default)
        if not isinstance(value, int):
            raise KeyError(key)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number of the metadata; ``KeyError`` when it is absent and has no default."""
        value = self.metadata.get(key, default)
        if not isinstance(value, int | float):
            raise KeyError(key)
        return float(value)

    def shape(self, name: str) -> tuple[int, ...]:
        """Row-major shape of a tensor: a matrix is [outputs, inputs]."""
        return self._infos[name].shape

    def tensor(self, name: str) -> Float32:
        """A whole tensor as float32 in row-major shape."""
        info = self._infos[name]
        return self._dequantise(self._packed_rows(info), info).reshape(info.shape)

    def rows(self, name: str, indices: npt.NDArray[np.int64]) -> Float32:
        """The chosen rows of a matrix, [len(indices), inputs]."""
        info = self._infos[name]
        return self._dequantise(self._packed_rows(info)[indices], info)

    def _packed_rows(self, info: _TensorInfo) -> npt.NDArray[np.uint8]:
        block, block_bytes = gguf.GGML_QUANT_SIZES[info.kind]
        n_rows = int(np.prod(info.shape[:-1], dtype=np.int64))
        row_bytes = info.shape[-1] // block * block_bytes
        # A copy, not a view: a view would keep the map from being closed.
        data = self._data[info.offset : info.offset + n_rows * row_bytes]
        return np.frombuffer(data, np.uint8).reshape(n_rows, row_bytes)

    @staticmethod
    def _dequantise(packed: npt.NDArray[np.uint8], info: _TensorInfo) -> Float32:
        if info.kind == gguf.GGMLQuantizationType.F32:
            return packed.view(np.float32)
        if info.kind == gguf.GGMLQuantizationType.F16:
            return packed.view(np.float16).astype(np.float32)
        return np.asarray(gguf.quants.dequantize(packed, info.kind), np.float32)
