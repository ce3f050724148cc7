"""What the decoder architectures read from a file's metadata in the same way."""

from dataclasses import dataclass
from decimal import Context, Decimal

import numpy as np

from ferrite.gguf import GGUFFile
from ferrite.program.ops import Heads

MOST_LAYERS = 1024
MOST_HEADS = 4096


@dataclass(frozen=True, slots=True)
class HyperParameters:
    """Sizes of a dense decoder, checked for sense before anything is built from them."""

    n_layers: int
    n_embd: int
    n_ff: int
    vocab_size: int
    context_length: int
    heads: Heads
    rms_eps: float

    @property
    def q_width(self) -> int:
        """Columns of all query heads together."""
        return self.heads.n_heads * self.heads.head_dim

    @property
    def kv_width(self) -> int:
        """Columns of all key heads together."""
        return self.heads.n_kv_heads * self.heads.head_dim


def read_hyper_parameters(file: GGUFFile, architecture: str) -> HyperParameters:
    """Read the sizes of ``architecture`` from its ``<architecture>.*`` keys (GGUF specification)."""
    meta = file.metadata

    def size(name: str, *, most: int, default: int | None = None) -> int:
        key = f"{architecture}.{name}"
        value = meta.integer(key) if default is None else meta.integer(key, default)
        if not 1 <= value <= most:
            raise meta.error(key, f"is {value}, expected 1 to {most}")
        return value

    n_embd = size("embedding_length", most=1 << 18)
    n_heads = size("attention.head_count", most=MOST_HEADS)
    n_kv_heads = size("attention.head_count_kv", most=MOST_HEADS, default=n_heads)
    head_dim = size("attention.key_length", most=1024, default=max(n_embd // n_heads, 1))
    value_dim = size("attention.value_length", most=1024, default=head_dim)
    if n_heads % n_kv_heads:
        key = f"{architecture}.attention.head_count_kv"
        raise meta.error(key, f"is {n_kv_heads}, which does not divide {n_heads} heads")
    if value_dim != head_dim:
        key = f"{architecture}.attention.value_length"
        raise meta.error(
            key, f"is {value_dim}; a value size other than the key size ({head_dim}) is not supported"
        )
    if head_dim % 16 or n_heads // n_kv_heads * head_dim % 32:
        key = f"{architecture}.attention.head_count"
        raise meta.error(
            key, f"gives heads of {head_dim} columns; only multiples of 16 (and 32 a group) are supported"
        )
    return HyperParameters(
        n_layers=size("block_count", most=MOST_LAYERS),
        n_embd=n_embd,
        n_ff=size("feed_forward_length", most=1 << 20),
        vocab_size=file.tensor("token_embd.weight").shape[-1],
        context_length=size("context_length", most=1 << 20),
        heads=Heads(n_heads, n_kv_heads, head_dim),
        rms_eps=meta.number(f"{architecture}.attention.layer_norm_rms_epsilon"),
    )


def rope_frequencies(
    file: GGUFFile, architecture: str, *, base: float, head_dim: int, scaled: bool = True
) -> tuple[float, ...]:
    """Radians per position of each rotated pair: ``base ** (-2i / d)``, then the file's scaling.

    Computed in decimal, so that no C library decides the bits. Linear scaling divides by the factor;
    ``rope_freqs.weight`` (Llama 3) divides each pair by its own. Other scalings are refused by name.
    """
    meta = file.metadata
    pairs = meta.integer(f"{architecture}.rope.dimension_count", head_dim) // 2
    if not 1 <= pairs <= head_dim // 2:
        raise meta.error(f"{architecture}.rope.dimension_count", f"does not fit heads of {head_dim} columns")
    if not 0 < base < 1e12:
        raise meta.error(f"{architecture}.rope.freq_base", f"is {base}, expected a positive number")
    decimal = Context(prec=40)
    frequencies = np.array(
        [
            float(decimal.power(Decimal(base), decimal.divide(Decimal(-i), Decimal(pairs))))
            for i in range(pairs)
        ]
    )
    if scaled:
        frequencies = frequencies / _linear_factor(file, architecture)
        if "rope_freqs.weight" in file.tensors:
            factors = np.frombuffer(file.data("rope_freqs.weight"), np.float32)
            if (
                file.tensor("rope_freqs.weight").type.name != "F32"
                or factors.size != pairs
                or not (factors > 0).all()
            ):
                raise file.tensor_error("rope_freqs.weight", f"must hold {pairs} positive F32 factors")
            frequencies = frequencies / factors
    return tuple(frequencies.tolist())


def _linear_factor(file: GGUFFile, architecture: str) -> float:
    meta = file.metadata
    key = f"{architecture}.rope.scaling.type"
    kind = meta.string(key, "linear" if f"{architecture}.rope.scaling.factor" in meta else "none")
    if kind == "none":
        return 1.0
    if kind != "linear":
        raise meta.error(key, f"is {kind!r}; only 'none' and 'linear' are supported")
    factor = meta.number(f"{architecture}.rope.scaling.factor", 1.0)
    if not 0 < factor < 1e6:
        raise meta.error(f"{architecture}.rope.scaling.factor", f"is {factor}, expected a positive number")
    return factor
