"""What the decoder architectures read from a file's metadata in the same way."""

from dataclasses import dataclass
from decimal import Context, Decimal

import numpy as np
import numpy.typing as npt

from ferrite.gguf import GGUFFile
from ferrite.gguf.errors import quoted
from ferrite.program.ops import Heads

MOST_LAYERS = 1024
MOST_HEADS = 4096
MOST_COLUMNS = 1 << 17
"""Twice the widest published model (53,248): a buffer of 512 rows stays at 256 MiB."""
MOST_POSITIONS = 1 << 20
"""Up to here the angles, at most pi / 2 a position, are exact."""
LEAST_FACTOR = 0.75
"""Smaller factors would turn the fastest pair by more than pi / 2 a position."""

NEUTRAL: tuple[tuple[str, bool | int | float], ...] = (
    ("attention.causal", True),
    ("attn_logit_softcapping", 0.0),
    ("expert_count", 0),
    ("final_logit_softcapping", 0.0),
    ("rope.scaling.attn_factor", 1.0),
)
"""Keys that change what a model computes in ways we do not, with the one value that changes nothing."""


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
    """Read the sizes of ``architecture`` from its ``<architecture>.*`` keys (GGUF specification).

    Raises ``GGUFError`` naming the key or the tensor that is missing, of another type or out of bounds.
    """
    meta = file.metadata
    for name, neutral in NEUTRAL:
        key = f"{architecture}.{name}"
        if key in meta and meta.get(key) != neutral:
            raise meta.error(key, f"has a value that is not supported; only {str(neutral).lower()} is")

    def size(name: str, *, most: int, default: int | None = None) -> int:
        key = f"{architecture}.{name}"
        value = meta.integer(key) if default is None else meta.integer(key, default)
        if not 1 <= value <= most:
            raise meta.error(key, f"is {value}, expected 1 to {most}")
        return value

    n_embd = size("embedding_length", most=MOST_COLUMNS)
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
    if n_heads * head_dim > MOST_COLUMNS:
        key = f"{architecture}.attention.head_count"
        raise meta.error(key, f"gives {n_heads} heads of {head_dim} columns, more than {MOST_COLUMNS} in all")
    rms_eps = meta.number(f"{architecture}.attention.layer_norm_rms_epsilon")
    if not 0 < rms_eps < 1:
        key = f"{architecture}.attention.layer_norm_rms_epsilon"
        raise meta.error(key, f"is {rms_eps:g}, expected a number between 0 and 1")
    return HyperParameters(
        n_layers=size("block_count", most=MOST_LAYERS),
        n_embd=n_embd,
        n_ff=size("feed_forward_length", most=MOST_COLUMNS),
        vocab_size=_vocab_size(file),
        context_length=size("context_length", most=MOST_POSITIONS),
        heads=Heads(n_heads, n_kv_heads, head_dim),
        rms_eps=rms_eps,
    )


def _vocab_size(file: GGUFFile) -> int:
    """Rows of the embedding: the number of logits, and of the tokens where the file lists them."""
    shape = file.tensor("token_embd.weight").shape
    if len(shape) != 2:
        raise file.tensor_error("token_embd.weight", f"has shape {list(shape)}, expected two dimensions")
    key = "tokenizer.ggml.tokens"
    if key in file.metadata and file.metadata.entry(key).count != shape[1]:
        n_tokens = file.metadata.entry(key).count
        raise file.metadata.error(key, f"holds {n_tokens} tokens, but the embedding has {shape[1]} rows")
    return shape[1]


def rope_frequencies(
    file: GGUFFile,
    architecture: str,
    *,
    head_dim: int,
    default_base: float,
    base_name: str = "rope.freq_base",
    scaled: bool = True,
) -> tuple[float, ...]:
    """Radians per position of each rotated pair: ``base ** (-2i / d)``, then the file's scaling.

    Computed in decimal, so that no C library decides the bits. Linear scaling divides by the factor;
    ``rope_freqs.weight`` (Llama 3) divides each pair by its own. Other scalings are refused by name.
    """
    meta = file.metadata
    base_key = f"{architecture}.{base_name}"
    base = meta.number(base_key, default_base)
    columns = meta.integer(f"{architecture}.rope.dimension_count", head_dim)
    if not 2 <= columns <= head_dim or columns % 2:
        key = f"{architecture}.rope.dimension_count"
        raise meta.error(key, f"is {columns}, expected an even number from 2 to {head_dim}")
    pairs = columns // 2
    if not 1 <= base < 1e12:
        raise meta.error(base_key, f"is {base:g}, expected a number from 1 to 1e12")
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
            frequencies = frequencies / _pair_factors(file, pairs)
    return tuple(frequencies.tolist())


def _pair_factors(file: GGUFFile, pairs: int) -> npt.NDArray[np.float32]:
    name = "rope_freqs.weight"
    tensor = file.tensor(name)
    if tensor.type.name != "F32" or tensor.n_elements != pairs:
        raise file.tensor_error(name, f"is {tensor.n_elements} x {tensor.type.name}, expected {pairs} x F32")
    factors = np.frombuffer(file.data(name), np.float32)
    if not ((factors >= LEAST_FACTOR) & np.isfinite(factors)).all():
        raise file.tensor_error(name, f"must hold finite factors of at least {LEAST_FACTOR}")
    return factors


def _linear_factor(file: GGUFFile, architecture: str) -> float:
    """What positions are divided by; ``rope.scale_linear`` is what files of 2023 call the factor."""
    meta = file.metadata
    key, old_key = f"{architecture}.rope.scaling.factor", f"{architecture}.rope.scale_linear"
    if key not in meta and old_key in meta:
        key = old_key
    type_key = f"{architecture}.rope.scaling.type"
    kind = meta.string(type_key, "linear" if key in meta else "none")
    if kind == "none":
        return 1.0
    if kind != "linear":
        raise meta.error(type_key, f"is {quoted(kind)}; only 'none' and 'linear' are supported")
    factor = meta.number(key, 1.0)
    if not LEAST_FACTOR <= factor < 1e6:
        raise meta.error(key, f"is {factor:g}, expected a number from {LEAST_FACTOR} to 1e6")
    return factor
