"""From the file's tensors to packed matrices and float32 vectors, one copy in memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ferrite import _native
from ferrite.gguf import GGUFFile
from ferrite.program.ops import Embed, Linear, Logits, Program, RmsNorm, Rope
from ferrite.program.step import Float32Array

UInt8Array: TypeAlias = npt.NDArray[np.uint8]

NO_VECTOR: Float32Array = np.zeros(0, np.float32)


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """Weights by tensor name."""

    matrices: Mapping[str, _native.Weight] = field(default_factory=dict)
    vectors: Mapping[str, Float32Array] = field(default_factory=dict)

    def matrix(self, name: str) -> _native.Weight:
        """Return a packed matrix."""
        return self.matrices[name]

    def vector(self, name: str | None) -> Float32Array:
        """Return a vector; an empty one for None, which means the op does without."""
        return NO_VECTOR if name is None else self.vectors[name]

    @property
    def n_bytes(self) -> int:
        """Bytes of all weights as they lie in memory."""
        return sum(m.n_bytes for m in self.matrices.values()) + sum(v.nbytes for v in self.vectors.values())


def load_weights(file: GGUFFile, program: Program, *, threads: int) -> LoadedWeights:
    """Pack every tensor the program names; the file's pages are dropped behind the packing.

    Without the GIL but at the begin and the end: other threads may load the rest of the model meanwhile.
    Raises ``GGUFError`` naming the tensor whose type is not supported.
    """
    names = matrix_names(program)
    vectors = {name: _read_vector(file, name) for name in vector_names(program)}
    # The system maps up to 2 MiB around each page that is read, 20 MB for the vectors of a small model.
    file.drop_pages()
    packed = _native.Weight.pack_mapped([_matrix(file, name) for name in names], _native.Team(threads))
    file.drop_pages()
    return LoadedWeights(dict(zip(names, packed, strict=True)), vectors)


def _matrix(file: GGUFFile, name: str) -> tuple[UInt8Array, int, int, int]:
    """Return a matrix as it lies in the file: data, type number, rows, columns."""
    tensor = file.tensor(name)
    if not _native.supports_type(tensor.type.id):
        raise file.tensor_error(name, f"has type {tensor.type.name}, which is not supported")
    cols, rows = tensor.shape
    return np.frombuffer(file.data(name), np.uint8), tensor.type.id, rows, cols


def matrix_names(program: Program) -> list[str]:
    """Name the matrices of a program, each once, in the order of use."""
    tables = {op.table: None for op in program.ops if isinstance(op, Embed)}
    return list(tables | dict.fromkeys(multiplied_names(program)))


def multiplied_names(program: Program) -> list[str]:
    """Name the matrices every row is multiplied by, which is what a step must read and compute at least."""
    names: dict[str, None] = {}
    for op in program.ops:
        match op:
            case Linear():
                names.update((piece.weight, None) for piece in op.pieces)
            case Logits():
                names[op.weight] = None
            case _:
                pass
    return list(names)


def vector_names(program: Program) -> list[str]:
    """Name the norm weights and biases of a program, each once, in the order of use."""
    names: dict[str, None] = {}
    for op in program.ops:
        match op:
            case RmsNorm():
                names[op.weight] = None
            case Linear():
                names.update((piece.bias, None) for piece in op.pieces if piece.bias is not None)
            case Rope():
                names.update((norm, None) for norm in (op.q_norm, op.k_norm) if norm is not None)
            case _:
                pass
    return list(names)


def _read_vector(file: GGUFFile, name: str) -> Float32Array:
    tensor = file.tensor(name)
    data = file.data(name)
    match tensor.type.name:
        case "F32":
            return np.frombuffer(data, np.float32).copy()
        case "F16":
            return np.frombuffer(data, np.float16).astype(np.float32)
        case "BF16":
            return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
        case other:
            raise file.tensor_error(name, f"has type {other}; norms and biases must be F32, F16 or BF16")
