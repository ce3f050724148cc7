"""The tiny models whose llama.cpp logits are stored, each with one feature of its architecture."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.reference.tiny import vocabulary, write_tiny_model

TOKEN_IDS = [(37 * i + 5) % len(vocabulary()) for i in range(24)]
"""Longer than the sliding windows below, so that local layers do forget."""

STORED_LOGITS = Path(__file__).parent / "data" / "llama_cpp_logits.npz"
"""One float32 array [24, 271] per variant; written by ``tests/accuracy/make_llama_cpp.py``."""

_gemma3 = partial(write_tiny_model, architecture="gemma3", n_layers=7, sliding_window=8)

VARIANTS: dict[str, Callable[[Path], None]] = {
    "llama": partial(write_tiny_model, architecture="llama"),
    "llama-tied-output": partial(write_tiny_model, architecture="llama", tied_output=True),
    "llama-rope-factors": partial(write_tiny_model, architecture="llama", rope_freq_factors=True),
    "llama-linear-scaling": partial(write_tiny_model, architecture="llama", rope_scaling_factor=4.0),
    "llama-all-heads": partial(write_tiny_model, architecture="llama", n_kv_heads=4),
    "qwen2": partial(write_tiny_model, architecture="qwen2"),
    "qwen2-linear-scaling": partial(write_tiny_model, architecture="qwen2", rope_scaling_factor=2.0),
    "gemma3": _gemma3,
    "gemma3-tied-output": partial(_gemma3, tied_output=True),
    "gemma3-linear-scaling": partial(_gemma3, rope_scaling_factor=8.0),
    "gemma3-wide-heads": partial(_gemma3, head_size=128, n_kv_heads=1),
}
