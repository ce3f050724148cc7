"""The reference with the engine's int8: inputs to every quantised matrix, or the keys and values."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from tests.reference import Reference, ops, reference_logits
from tests.reference.weights import Float32, Weights

BLOCK = 32
FLOAT_TYPES = {
    gguf.GGMLQuantizationType.F32,
    gguf.GGMLQuantizationType.F16,
    gguf.GGMLQuantizationType.BF16,
}


def int8_inputs(x: Float32) -> Float32:
    """Round every 32 columns to 255 levels between minus and plus the largest magnitude among them."""
    blocks = x.reshape(-1, BLOCK)
    scales = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    levels = np.rint(np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales > 0))
    rounded: Float32 = (levels * scales).reshape(x.shape)
    return rounded


def _linear(weights: Weights, name: str, x: Float32) -> Float32:
    y: Float32 = int8_inputs(x) @ weights.tensor(f"{name}.weight").T
    return y + weights.tensor(f"{name}.bias") if f"{name}.bias" in weights else y


class _Int8Reference(Reference):
    def logits(self, start: int, stop: int) -> Float32:
        product: Float32 = int8_inputs(self._states[start:stop]) @ self._output.T
        return product


def int8_reference_logits(path: Path, token_ids: list[int], monkeypatch: pytest.MonkeyPatch) -> Float32:
    """Teacher-forced logits [n, vocab] of a file whose matrices are all quantised."""
    with monkeypatch.context() as patched:
        for architecture in ("llama", "qwen2", "gemma3"):
            patched.setattr(f"tests.reference.{architecture}.linear", _linear)
        reference = _Int8Reference(path, token_ids)
        return reference.logits(0, reference.n_positions)


def int8_cache(x: Float32) -> Float32:
    """What a q8_0 cache makes of k or v [n, g, k]: multiples of a float16 per 32 values of a head.

    The scale is the least float16 that is not below a 127th of the largest magnitude.
    """
    blocks = x.reshape(-1, BLOCK)
    exact = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    nearest = exact.astype(np.float16)
    scales = np.where(nearest < exact, np.nextafter(nearest, np.float16(np.inf)), nearest).astype(np.float32)
    levels = np.rint(np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales > 0))
    rounded: Float32 = (levels * scales).reshape(x.shape)
    return rounded


def int8_cache_logits(path: Path, token_ids: list[int], monkeypatch: pytest.MonkeyPatch) -> Float32:
    """Teacher-forced logits [n, vocab] with keys and values as a q8_0 cache returns them."""

    def attention(q: Float32, k: Float32, v: Float32, *, scale: float, window: int | None = None) -> Float32:
        return ops.causal_attention(q, int8_cache(k), int8_cache(v), scale=scale, window=window)

    with monkeypatch.context() as patched:
        for architecture in ("llama", "qwen2", "gemma3"):
            patched.setattr(f"tests.reference.{architecture}.causal_attention", attention)
        return reference_logits(path, token_ids)
