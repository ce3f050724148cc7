"""What ``ferrite inspect`` shows of a model file, as text for people and as plain data for programs."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from typing import Any

from ferrite.gguf import FileType, GGUFError, GGUFFile, Metadata, Value, ValueType
from ferrite.gguf.errors import display

ARRAY_ITEMS_SHOWN = 6
TEXT_CHARS_SHOWN = 72
KV_TOKENS = 1_024
F16_BYTES = 2

TOKENIZER_KINDS = {
    "gpt2": "byte-level BPE",
    "llama": "SentencePiece BPE",
    "bert": "WordPiece",
    "t5": "Unigram",
    "rwkv": "RWKV trie",
}
"""What the values of ``tokenizer.ggml.model`` stand for."""

PRE_TOKENIZER_KEY = "tokenizer.ggml.pre"


@dataclass(frozen=True, slots=True)
class TypeShare:
    """How much of a file is stored in one tensor type."""

    type: str
    tensors: int
    n_bytes: int
    share: float
    """of all tensor bytes, 0 to 1"""


def inspect_text(file: GGUFFile, *, tensors: bool) -> str:
    """Describe a model in lines of text; ``tensors`` adds one line per tensor."""
    metadata = [f"  {display(key)} = {_value_text(file.metadata, key)}" for key in file.metadata]
    mix = [
        f"  {share.type:<8} {share.tensors:>6} tensors {_mib(share.n_bytes):>14} {share.share:>7.1%}"
        for share in quantisation_mix(file)
    ]
    sections = [
        _summary(file),
        [f"Quantisation mix ({len(file.tensors)} tensors)", *mix],
        [f"Metadata ({len(file.metadata)} keys)", *metadata],
    ]
    if tensors:
        sections.append(["Tensors (shape from the contiguous dimension on)", *_tensor_table(file)])
    return "\n\n".join("\n".join(lines) for lines in sections)


def inspect_json(file: GGUFFile) -> dict[str, Any]:
    """Describe a model as JSON-ready data: sizes in bytes, arrays by element type, count and first items."""
    metadata = file.metadata
    return {
        "paths": [str(path) for path in file.paths],
        "version": file.version,
        "file_bytes": file.file_bytes,
        "architecture": _text(metadata, "general.architecture"),
        "name": _text(metadata, "general.name"),
        "file_type": _file_type(metadata),
        "parameters": _parameters(file),
        "context_length": _context_length(metadata),
        "tokenizer": {
            "model": _text(metadata, "tokenizer.ggml.model"),
            "tokens": _array_count(metadata, "tokenizer.ggml.tokens"),
            "pre_tokenizer": pre_tokenizer(metadata),
            "pre_tokenizer_named": PRE_TOKENIZER_KEY in metadata,
        },
        "memory": {
            "weights_bytes": _weights_bytes(file),
            f"kv_bytes_per_{KV_TOKENS}_tokens_f16": kv_bytes(metadata, KV_TOKENS),
        },
        "quantisation_mix": [
            {"type": mix.type, "tensors": mix.tensors, "bytes": mix.n_bytes, "share": mix.share}
            for mix in quantisation_mix(file)
        ],
        "metadata": {key: _value_json(metadata, key) for key in metadata},
        "tensors": [
            {"name": it.name, "shape": list(it.shape), "type": it.type.name, "bytes": it.n_bytes}
            for it in file.tensors.values()
        ],
    }


def quantisation_mix(file: GGUFFile) -> list[TypeShare]:
    """Return the tensor types of a file, the one with most bytes first."""
    n_bytes: Counter[str] = Counter()
    tensors: Counter[str] = Counter()
    for it in file.tensors.values():
        n_bytes[it.type.name] += it.n_bytes
        tensors[it.type.name] += 1
    whole = n_bytes.total()
    return [TypeShare(name, tensors[name], size, size / whole) for name, size in n_bytes.most_common()]


def kv_bytes(metadata: Metadata, n_tokens: int) -> int | None:
    """Return the bytes that keys and values of ``n_tokens`` positions take in f16; None when unknown.

    Every layer counts in full, also one that attends to a window only.
    """
    try:
        arch = metadata.string("general.architecture")
        n_layers = metadata.u32(f"{arch}.block_count")
        n_heads = metadata.u32(f"{arch}.attention.head_count")
        head_size = metadata.u32(f"{arch}.embedding_length") // n_heads if n_heads else 0
        key_size = metadata.u32(f"{arch}.attention.key_length", head_size)
        value_size = metadata.u32(f"{arch}.attention.value_length", head_size)
        n_kv_heads = _kv_heads(metadata, f"{arch}.attention.head_count_kv", n_layers, n_heads)
    except GGUFError:
        return None
    return n_kv_heads * (key_size + value_size) * F16_BYTES * n_tokens


def pre_tokenizer(metadata: Metadata) -> str | None:
    """Return the splitting rule of a byte-level BPE tokenizer; other tokenizers have none."""
    if _text(metadata, "tokenizer.ggml.model") != "gpt2":
        return None
    rule = _text(metadata, PRE_TOKENIZER_KEY)
    return "default" if rule is None else rule


def _kv_heads(metadata: Metadata, key: str, n_layers: int, n_heads: int) -> int:
    """Sum the KV heads over all layers; the key is absent, one number, or one per layer."""
    if key in metadata and metadata.entry(key).type is ValueType.ARRAY:
        return sum(metadata.integers(key).tolist())
    return n_layers * metadata.u32(key, n_heads)


def _summary(file: GGUFFile) -> list[str]:
    metadata = file.metadata
    kv = kv_bytes(metadata, KV_TOKENS)
    context_length = _context_length(metadata)
    facts = {
        "file": ", ".join(display(str(path)) for path in file.paths),
        "format": f"GGUF v{file.version}, {_mib(file.file_bytes)}",
        "architecture": display(_text(metadata, "general.architecture") or "unknown"),
        "name": display(_text(metadata, "general.name") or "unknown"),
        "file type": _file_type(metadata) or "unknown",
        "parameters": f"{_parameters(file):,}",
        "context": "unknown" if context_length is None else f"{context_length:,} tokens",
        "tokenizer": _tokenizer_text(metadata),
        "pre-tokenizer": _pre_tokenizer_text(metadata),
        "weights": _mib(_weights_bytes(file)),
        "KV cache": "unknown" if kv is None else f"{_mib(kv)} per {KV_TOKENS:,} tokens (f16)",
    }
    return [f"{name + ':':<15}{text}" for name, text in facts.items()]


def _tensor_table(file: GGUFFile) -> Iterable[str]:
    rows = [
        (display(it.name), " x ".join(map(str, it.shape)) or "scalar", it.type.name, f"{it.n_bytes:,}")
        for it in file.tensors.values()
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, shape, type_name, size in rows:
        yield f"  {name:<{widths[0]}}  {shape:<{widths[1]}}  {type_name:<{widths[2]}}  {size:>{widths[3]}}"


def _tokenizer_text(metadata: Metadata) -> str:
    model = _text(metadata, "tokenizer.ggml.model")
    if model is None:
        return "none"
    n_tokens = _array_count(metadata, "tokenizer.ggml.tokens")
    tokens = "no vocabulary" if n_tokens is None else f"{n_tokens:,} tokens"
    return f"{display(model)} ({TOKENIZER_KINDS.get(model, 'unknown kind')}), {tokens}"


def _pre_tokenizer_text(metadata: Metadata) -> str:
    rule = pre_tokenizer(metadata)
    if rule is None:
        return "none"
    if PRE_TOKENIZER_KEY not in metadata:
        return f"{rule} (assumed: the file has no {PRE_TOKENIZER_KEY})"
    return display(rule)


def _value_text(metadata: Metadata, key: str) -> str:
    entry = metadata.entry(key)
    if entry.element_type is None:
        try:
            return _lone_text(metadata.get(key))
        except GGUFError:
            return "(not UTF-8)"
    shown = "..." if entry.element_type is ValueType.ARRAY else _items_text(metadata, key, entry.count)
    return f"[{shown}] ({entry.count:,} x {entry.element_type.name.lower()})"


def _items_text(metadata: Metadata, key: str, count: int) -> str:
    try:
        items = [_lone_text(value) for value in metadata.head(key, ARRAY_ITEMS_SHOWN)]
    except GGUFError:
        return "not UTF-8"
    return ", ".join(items if count <= ARRAY_ITEMS_SHOWN else [*items, "..."])


def _lone_text(value: Value | None) -> str:
    if isinstance(value, float):
        # Seven digits are what a float32 holds.
        return f"{value:.7g}"
    if not isinstance(value, str):
        return str(value).lower()
    first_line = value.partition("\n")[0]
    if first_line == value and len(value) <= TEXT_CHARS_SHOWN:
        return '"' + display(value).replace('"', '\\"') + '"'
    size = f"{len(value.encode()):,} bytes, {value.count(chr(10)) + 1:,} lines"
    return f'"{display(first_line[:TEXT_CHARS_SHOWN])}" ... ({size})'


def _value_json(metadata: Metadata, key: str) -> Any:
    entry = metadata.entry(key)
    if entry.element_type is ValueType.ARRAY:
        return {"type": entry.kind, "count": entry.count}
    try:
        values = [_finite(value) for value in metadata.head(key, ARRAY_ITEMS_SHOWN)]
    except GGUFError as error:
        return {"type": entry.kind, "error": str(error)}
    if entry.element_type is None:
        return values[0]
    return {"type": entry.kind, "count": entry.count, "first": values}


def _finite(value: Value) -> Value:
    """Return a value that JSON can write: infinities and NaN become their names."""
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def _text(metadata: Metadata, key: str) -> str | None:
    try:
        return metadata.string(key, None)
    except GGUFError:
        return None


def _array_count(metadata: Metadata, key: str) -> int | None:
    if key not in metadata or metadata.entry(key).element_type is None:
        return None
    return metadata.entry(key).count


def _context_length(metadata: Metadata) -> int | None:
    try:
        return metadata.u32(f"{metadata.string('general.architecture')}.context_length")
    except GGUFError:
        return None


def _file_type(metadata: Metadata) -> str | None:
    try:
        return FileType(metadata.u32("general.file_type")).name
    except ValueError:
        return None


def _parameters(file: GGUFFile) -> int:
    return sum(it.n_elements for it in file.tensors.values())


def _weights_bytes(file: GGUFFile) -> int:
    return sum(it.n_bytes for it in file.tensors.values())


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / (1 << 20):,.1f} MiB"
