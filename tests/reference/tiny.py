"""Tiny random models: complete GGUF files of every supported architecture and quantisation.

The same arguments give the same bytes on every machine: randomness is the raw stream of a bit generator,
which NumPy keeps stable, and not one of its distributions.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import gguf
import numpy as np
import numpy.typing as npt

from tests.reference.weights import Float32

Architecture = Literal["llama", "qwen2", "gemma3"]
Quantisation = Literal["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_MERGES = ("h e", "i n", "r e", "o n", "a n", "e r", "Ġ t", "Ġ a", "Ġt he", "in g", "an d", "Ġ Ġ")
_SCALE_GROUP = 32


def write_served_model(path: Path, *, context_length: int) -> None:
    """Write the smallest model that a server loads: one layer, int8."""
    write_tiny_model(
        path,
        "llama",
        n_layers=1,
        n_embd=64,
        n_heads=2,
        n_kv_heads=1,
        head_size=32,
        n_ff=64,
        quantisation="Q8_0",
        context_length=context_length,
    )


def write_tiny_model(
    path: Path,
    architecture: Architecture,
    *,
    seed: int = 0,
    quantisation: Quantisation = "F32",
    n_layers: int = 2,
    n_embd: int = 256,
    n_heads: int = 4,
    n_kv_heads: int = 2,
    head_size: int = 64,
    n_ff: int = 512,
    context_length: int = 256,
    sliding_window: int = 16,
    rope_scaling_factor: float | None = None,
    rope_freq_factors: bool = False,
    tied_output: bool = False,
    with_tokenizer: bool = True,
    chat_template: str = CHAT_TEMPLATE,
) -> None:
    """Write a random model that a server can load and chat with; matrices have the given quantisation.

    The vocabulary is every byte, a few byte-level BPE merges and the ChatML control tokens (271 entries).
    ``sliding_window`` concerns ``gemma3`` only and ``rope_freq_factors`` (Llama 3's) ``llama`` only. Row
    lengths (``n_embd``, ``n_heads * head_size``, ``n_ff``) must be multiples of the quantisation's block.
    """
    tokens = vocabulary()
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(f"tiny-{architecture}")
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_vocab_size(len(tokens))
    writer.add_context_length(context_length)
    writer.add_embedding_length(n_embd)
    writer.add_block_count(n_layers)
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(n_heads)
    writer.add_head_count_kv(n_kv_heads)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_rope_dimension_count(head_size)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6 if architecture == "gemma3" else 1e4)
    if architecture == "gemma3":
        writer.add_sliding_window(sliding_window)
    if rope_scaling_factor is not None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope_scaling_factor)
    if with_tokenizer:
        _add_tokenizer(writer, tokens, chat_template)

    def uniform(name: str, shape: tuple[int, ...], low: float, high: float) -> Float32:
        raw = _raw_stream(f"{seed}/{name}", int(np.prod(shape)))
        unit = (raw >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)
        return (np.float32(low) + np.float32(high - low) * unit).reshape(shape)

    def vector(name: str, length: int, low: float, high: float) -> None:
        writer.add_tensor(name, uniform(name, (length,), low, high))

    def matrix(name: str, rows: int, columns: int, deviation: float) -> None:
        kind = gguf.GGMLQuantizationType[quantisation]
        if kind in _K_BLOCKS:
            packed = _random_k_blocks(f"{seed}/{name}", (rows, columns), kind, deviation)
        else:
            limit = deviation * 3**0.5
            values = uniform(name, (rows, columns), -limit, limit)
            scales = uniform(f"{name}/scales", (rows, columns // _SCALE_GROUP), 0.5, 1.5)
            packed = gguf.quants.quantize(values * np.repeat(scales, _SCALE_GROUP, axis=1), kind)
        writer.add_tensor(name, packed, raw_dtype=kind)

    # Deviations keep states near 1 and logits near 4, so that greedy choices are clear but not constant.
    embedding_deviation = n_embd**-0.5 if architecture == "gemma3" else 1.0
    matrix("token_embd.weight", len(tokens), n_embd, embedding_deviation)
    if not tied_output:
        matrix("output.weight", len(tokens), n_embd, 4 * n_embd**-0.5)
    vector("output_norm.weight", n_embd, 0.5, 1.5)
    if rope_freq_factors:
        vector("rope_freqs.weight", head_size // 2, 1.0, 8.0)
    for layer in range(n_layers):
        block = f"blk.{layer}"
        norms = {"attn_norm": n_embd, "ffn_norm": n_embd}
        if architecture == "gemma3":
            norms |= {"attn_q_norm": head_size, "attn_k_norm": head_size}
            norms |= {"post_attention_norm": n_embd, "post_ffw_norm": n_embd}
        for name, length in norms.items():
            vector(f"{block}.{name}.weight", length, 0.5, 1.5)
        for name, heads in {"attn_q": n_heads, "attn_k": n_kv_heads, "attn_v": n_kv_heads}.items():
            matrix(f"{block}.{name}.weight", heads * head_size, n_embd, n_embd**-0.5)
            if architecture == "qwen2":
                vector(f"{block}.{name}.bias", heads * head_size, -0.5, 0.5)
        matrix(f"{block}.attn_output.weight", n_embd, n_heads * head_size, (n_heads * head_size) ** -0.5)
        matrix(f"{block}.ffn_gate.weight", n_ff, n_embd, n_embd**-0.5)
        matrix(f"{block}.ffn_up.weight", n_ff, n_embd, n_embd**-0.5)
        matrix(f"{block}.ffn_down.weight", n_embd, n_ff, n_ff**-0.5)

    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def vocabulary() -> list[str]:
    """The tiny models' tokens in id order: 256 bytes in GPT-2's alphabet, merges, control tokens."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]
    return [*alphabet, *(merge.replace(" ", "") for merge in _MERGES), *CONTROL_TOKENS]


def _add_tokenizer(writer: gguf.GGUFWriter, tokens: list[str], chat_template: str) -> None:
    control = {token: tokens.index(token) for token in CONTROL_TOKENS}
    kinds = [gguf.TokenType.CONTROL if token in control else gguf.TokenType.NORMAL for token in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(list(_MERGES))
    writer.add_bos_token_id(control["<|endoftext|>"])
    writer.add_eos_token_id(control["<|im_end|>"])
    writer.add_pad_token_id(control["<|endoftext|>"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(chat_template)


def _raw_stream(key: str, length: int) -> npt.NDArray[np.uint64]:
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little")
    return np.random.PCG64(seed).random_raw(length)


def _write_q4_k_scales(blocks: npt.NDArray[np.uint8], d: npt.NDArray[np.float16]) -> None:
    """Q4_K value: ``d * s * q - dmin * m`` with q in 0..15; dmin = 7.5 d makes the mean zero."""
    blocks[:, 0:2] = d.view(np.uint8)
    blocks[:, 2:4] = (d * np.float16(7.5)).view(np.uint8)


def _write_q5_k_scales(blocks: npt.NDArray[np.uint8], d: npt.NDArray[np.float16]) -> None:
    """Q5_K is Q4_K with q in 0..31, so dmin = 15.5 d."""
    blocks[:, 0:2] = d.view(np.uint8)
    blocks[:, 2:4] = (d * np.float16(15.5)).view(np.uint8)


def _write_q6_k_scales(blocks: npt.NDArray[np.uint8], d: npt.NDArray[np.float16]) -> None:
    """Q6_K value: ``d * s * (q - 32)`` with signed s; d stands last."""
    blocks[:, -2:] = d.view(np.uint8)


_K_BLOCKS: dict[
    gguf.GGMLQuantizationType, Callable[[npt.NDArray[np.uint8], npt.NDArray[np.float16]], None]
] = {
    gguf.GGMLQuantizationType.Q4_K: _write_q4_k_scales,
    gguf.GGMLQuantizationType.Q5_K: _write_q5_k_scales,
    gguf.GGMLQuantizationType.Q6_K: _write_q6_k_scales,
}


def _random_k_blocks(
    key: str, shape: tuple[int, int], kind: gguf.GGMLQuantizationType, deviation: float
) -> npt.NDArray[np.uint8]:
    """Blocks with random bits in every field but the f16 scales, which set the values' deviation.

    The ``gguf`` package can read K quantisations but not write them.
    """
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    rows, columns = shape
    n_blocks = rows * columns // block
    raw = _raw_stream(key, n_blocks * block_bytes // 8 + 1 + n_blocks)
    blocks = raw[n_blocks:].view(np.uint8)[: n_blocks * block_bytes].reshape(n_blocks, block_bytes).copy()
    spread = 0.5 + (raw[:n_blocks] >> np.uint64(40)).astype(np.float64) * 2.0**-24
    _K_BLOCKS[kind](blocks, np.full((n_blocks, 1), 2.0**-10, np.float16))
    measured = float(gguf.quants.dequantize(blocks, kind).std()) * 2.0**10
    _K_BLOCKS[kind](blocks, (spread * deviation / measured).astype(np.float16)[:, None])
    return blocks.reshape(rows, -1)
