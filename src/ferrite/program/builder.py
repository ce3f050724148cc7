"""Traces a model file's calls into a ``Program``, checking every tensor name and shape on the way."""

from collections.abc import Iterable
from math import prod

from ferrite.gguf import GGUFFile
from ferrite.program.ops import (
    Activation,
    Add,
    Angles,
    Attention,
    Buffer,
    Embed,
    Gate,
    Heads,
    Linear,
    Logits,
    Op,
    Piece,
    Program,
    RmsNorm,
    Rope,
    RowSpace,
    SelectRows,
)

LARGEST_DIMENSION = 1 << 20
"""Rows or columns of any matrix: four times the largest vocabulary, and products cannot overflow."""


class ProgramBuilder:
    """Appends ops. Buffers are named and shared: the same name in every layer is the same memory."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self._ops: list[Op] = []
        self._buffers: dict[str, Buffer] = {}
        self._used: set[str] = set()

    def has(self, tensor: str) -> bool:
        """Say whether the file holds a tensor of this name."""
        return tensor in self._file.tensors

    def ignore(self, tensor: str) -> None:
        """Count a tensor as used although no op reads it."""
        self._used.add(tensor)

    def embed(self, table: str, width: int, vocab_size: int, *, scale: float = 1.0) -> Buffer:
        """Start the residual stream from the token embedding."""
        out = self._buffer("residual", width)
        self._matrix(table, width, vocab_size)
        self._ops.append(Embed(table, out, scale))
        return out

    def norm(self, source: Buffer, weight: str, eps: float, *, out: str) -> Buffer:
        """RMS norm into the buffer named ``out``."""
        self._vector(weight, source.cols)
        target = self._buffer(out, source.cols, source.space)
        self._ops.append(RmsNorm(source, weight, target, eps))
        return target

    def linear(self, source: Buffer, pieces: Iterable[tuple[str, str, int]]) -> list[Buffer]:
        """Multiply by several matrices: (tensor prefix, output buffer, rows) each; biases if present."""
        built = []
        for prefix, out, rows in pieces:
            weight, bias = f"{prefix}.weight", f"{prefix}.bias"
            self._matrix(weight, source.cols, rows)
            if self.has(bias):
                self._vector(bias, rows)
            built.append(
                Piece(weight, self._buffer(out, rows, source.space), bias if self.has(bias) else None)
            )
        self._ops.append(Linear(source, tuple(built)))
        return [piece.out for piece in built]

    def linear_add(self, source: Buffer, prefix: str, target: Buffer) -> None:
        """Multiply by one matrix and add the product to ``target``."""
        weight = f"{prefix}.weight"
        self._matrix(weight, source.cols, target.cols)
        self._ops.append(Linear(source, (Piece(weight, target),), accumulate=True))

    def angles(self, frequencies: tuple[float, ...], *, out: str = "angles") -> Buffer:
        """Prepare the rotation angles of this step's positions."""
        target = self._buffer(out, 2 * len(frequencies))
        self._ops.append(Angles(frequencies, target))
        return target

    def rope(
        self,
        q: Buffer,
        k: Buffer,
        v: Buffer,
        angles: Buffer,
        heads: Heads,
        layer: int,
        *,
        adjacent: bool,
        q_scale: float,
        q_norm: str | None = None,
        k_norm: str | None = None,
        eps: float = 0.0,
    ) -> None:
        """Rotate q and k and store k and v."""
        for norm in (q_norm, k_norm):
            if norm is not None:
                self._vector(norm, heads.head_dim)
        self._ops.append(
            Rope(q, k, v, angles, heads, layer, adjacent, q_scale, q_norm=q_norm, k_norm=k_norm, eps=eps)
        )

    def attention(self, q: Buffer, heads: Heads, layer: int, *, window: int = 0) -> Buffer:
        """Attend to the sequence so far."""
        out = self._buffer("attention", q.cols)
        self._ops.append(Attention(q, out, heads, layer, window))
        return out

    def gate(self, activation: Activation, gate: Buffer, up: Buffer) -> Buffer:
        """Gated activation, in place."""
        self._ops.append(Gate(activation, gate, up))
        return gate

    def add(self, target: Buffer, source: Buffer) -> None:
        """Add one buffer to another."""
        self._ops.append(Add(target, source))

    def logits(self, residual: Buffer, norm: str, output: str, eps: float, vocab_size: int) -> None:
        """Final norm and output matrix, for the rows that are sampled."""
        rows = self._buffer("last", residual.cols, RowSpace.LOGITS)
        self._ops.append(SelectRows(residual, rows))
        normed = self.norm(rows, norm, eps, out="last_normed")
        self._matrix(output, residual.cols, vocab_size)
        out = self._buffer("logits", vocab_size, RowSpace.LOGITS)
        self._ops.append(Logits(normed, output, out))

    def program(
        self, *, architecture: str, heads: Heads, n_layers: int, vocab_size: int, context_length: int
    ) -> Program:
        """Finish: every tensor of the file must have been used."""
        for name in self._file.tensors:
            if name not in self._used:
                raise self._file.tensor_error(name, f"is not part of the {architecture} architecture")
        return Program(architecture, tuple(self._ops), heads, n_layers, vocab_size, context_length)

    def _buffer(self, name: str, cols: int, space: RowSpace = RowSpace.TOKENS) -> Buffer:
        wanted = Buffer(name, cols, space)
        if self._buffers.setdefault(name, wanted) != wanted:
            raise ValueError(f"buffer {name} is used with two shapes")
        return wanted

    def _matrix(self, name: str, cols: int, rows: int) -> None:
        shape = self._file.tensor(name).shape
        if shape != (cols, rows):
            raise self._file.tensor_error(name, f"has shape {list(shape)}, expected {[cols, rows]}")
        if max(shape) > LARGEST_DIMENSION:
            raise self._file.tensor_error(name, f"has shape {list(shape)}, above {LARGEST_DIMENSION}")
        self._used.add(name)

    def _vector(self, name: str, size: int) -> None:
        shape = self._file.tensor(name).shape
        if prod(shape) != size:
            raise self._file.tensor_error(name, f"has shape {list(shape)}, expected [{size}]")
        self._used.add(name)
