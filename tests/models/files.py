"""Taking a model file apart, to write it again with one thing changed."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ferrite.gguf import ValueType, open_gguf
from tests.gguf.build import ARRAY, Build, Tensor, array, raw_pair, value

ALIGNMENT = 32
BYTES_PER_BLOCK = {0: (1, 4), 1: (1, 2), 2: (32, 18), 8: (32, 34), 14: (256, 210), 30: (1, 2)}
"""Elements and bytes of a block of those types that tests write: F32, F16, Q4_0, Q8_0, Q6_K, BF16."""


@dataclass
class Stored:
    """One tensor: its shape in the file's order, its type and its bytes."""

    shape: tuple[int, ...]
    type_id: int
    data: bytes


@dataclass
class Parts:
    """A whole file, with metadata values as they stand in it."""

    pairs: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    tensors: dict[str, Stored] = field(default_factory=dict)

    def copy(self) -> "Parts":
        """Return a copy whose tensors may change."""
        tensors = {name: Stored(t.shape, t.type_id, t.data) for name, t in self.tensors.items()}
        return Parts(dict(self.pairs), tensors)

    def set(self, key: str, type_id: int, content: object) -> None:
        """Set a lone value."""
        self.pairs[key] = (type_id, value(type_id, content))

    def set_array(self, key: str, element_type: int, items: list[object]) -> None:
        """Set an array."""
        self.pairs[key] = (ARRAY, array(element_type, items))

    def set_tensor(self, name: str, shape: tuple[int, ...], type_id: int = 0) -> None:
        """Put a tensor of zeros in the place of ``name``."""
        elements, n_bytes = BYTES_PER_BLOCK[type_id]
        self.tensors[name] = Stored(
            shape, type_id, bytes(int(np.prod(shape, dtype=object)) // elements * n_bytes)
        )

    def floats(self, name: str) -> npt.NDArray[np.float32]:
        """Return a copy of an F32 tensor's values, flat; hand it to ``set_floats`` when changed."""
        assert self.tensors[name].type_id == 0
        return np.frombuffer(self.tensors[name].data, np.float32).copy()

    def set_floats(self, name: str, values: npt.NDArray[np.float32]) -> None:
        """Replace the values of an F32 tensor."""
        self.tensors[name] = Stored(self.tensors[name].shape, 0, values.tobytes())

    def write(self, path: Path) -> Path:
        """Write the file."""
        tensors, data = [], b""
        for name, stored in self.tensors.items():
            tensors.append(Tensor(name, stored.shape, stored.type_id, len(data)))
            data += stored.data + bytes(-len(stored.data) % ALIGNMENT)
        pairs = [raw_pair(key, type_id, payload) for key, (type_id, payload) in self.pairs.items()]
        path.write_bytes(bytes(Build(pairs=pairs, tensors=tensors, data=data)))
        return path


def take_apart(path: Path) -> Parts:
    """Read a complete file; its arrays must not be nested."""
    parts = Parts()
    with open_gguf(path) as file:
        for key in file.metadata:
            entry = file.metadata.entry(key)
            if entry.type is ValueType.ARRAY:
                content = file.metadata.get(key)
                assert isinstance(content, list)
                parts.set_array(key, entry.item_type, list(content))
            else:
                parts.set(key, entry.type, file.metadata.get(key))
        for name, tensor in file.tensors.items():
            parts.tensors[name] = Stored(tensor.shape, tensor.type.id, bytes(file.data(name)))
    return parts
