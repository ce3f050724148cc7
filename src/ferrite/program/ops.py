"""The operations a program is made of. Each is data; the native executor and `docs` read the same list.

Shapes: ``n`` rows (tokens of the step), ``m`` rows whose logits are wanted. Buffers hold float32.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

Activation: TypeAlias = Literal["silu", "gelu_tanh"]


class RowSpace(Enum):
    """Which rows a buffer has."""

    TOKENS = "tokens"
    LOGITS = "logits"


@dataclass(frozen=True, slots=True)
class Buffer:
    """[n or m, cols] float32, reused by every op that names it."""

    name: str
    cols: int
    space: RowSpace = RowSpace.TOKENS


@dataclass(frozen=True, slots=True)
class Embed:
    """``out = scale * table[token]``."""

    table: str
    out: Buffer
    scale: float


@dataclass(frozen=True, slots=True)
class SelectRows:
    """``out[m] = source[n]`` for the rows whose logits are wanted."""

    source: Buffer
    out: Buffer


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """``out = source / sqrt(mean(source ** 2) + eps) * weight`` (Zhang and Sennrich 2019)."""

    source: Buffer
    weight: str
    out: Buffer
    eps: float


@dataclass(frozen=True, slots=True)
class Piece:
    """One matrix of a linear op: tensor names and where its product goes."""

    weight: str
    out: Buffer
    bias: str | None = None


@dataclass(frozen=True, slots=True)
class Linear:
    """``piece.out (+)= source @ weight.T + bias`` for each piece, as one op without a barrier between."""

    source: Buffer
    pieces: tuple[Piece, ...]
    accumulate: bool = False


@dataclass(frozen=True, slots=True)
class Angles:
    """``out = [cos, sin](position * frequency)``, once a step for all layers that rotate alike."""

    frequencies: tuple[float, ...]
    out: Buffer


@dataclass(frozen=True, slots=True)
class Heads:
    """The attention geometry of a layer."""

    n_heads: int
    n_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Rope:
    """Normalise (Gemma 3) and rotate q and k, scale q, and write k and v to the layer's KV cache."""

    q: Buffer
    k: Buffer
    v: Buffer
    angles: Buffer
    heads: Heads
    layer: int
    adjacent: bool
    """rotate pairs (2i, 2i + 1), as llama files are permuted for; otherwise (i, i + half)"""
    q_scale: float
    q_norm: str | None = None
    k_norm: str | None = None
    eps: float = 0.0


@dataclass(frozen=True, slots=True)
class Attention:
    """Causal attention of each row to its sequence's KV cache; ``window`` 0 sees all positions."""

    q: Buffer
    out: Buffer
    heads: Heads
    layer: int
    window: int = 0


@dataclass(frozen=True, slots=True)
class Gate:
    """``gate = activation(gate) * up``."""

    activation: Activation
    gate: Buffer
    up: Buffer


@dataclass(frozen=True, slots=True)
class Add:
    """``target += source``."""

    target: Buffer
    source: Buffer


@dataclass(frozen=True, slots=True)
class Logits:
    """``out[m, vocab] = source @ weight.T``, and each row's argmax on the way."""

    source: Buffer
    weight: str
    out: Buffer


Op: TypeAlias = Embed | SelectRows | RmsNorm | Linear | Angles | Rope | Attention | Gate | Add | Logits


@dataclass(frozen=True, slots=True)
class Program:
    """A traced model: its ops in order and what the KV cache must hold for it."""

    architecture: str
    ops: tuple[Op, ...]
    heads: Heads
    n_layers: int
    vocab_size: int
    context_length: int
    """positions the model was trained for"""
