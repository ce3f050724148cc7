"""The operations that decoders are made of, in float32.

Shapes: ``n`` positions, ``d`` embedding width, ``h`` query heads, ``g`` key/value heads, ``k`` head size.
"""

import numpy as np

from tests.reference.weights import Float32, Weights


def linear(weights: Weights, name: str, x: Float32) -> Float32:
    """``x @ W.T + b`` for the matrix ``name.weight`` [outputs, inputs] and, where present, ``name.bias``."""
    y: Float32 = x @ weights.tensor(f"{name}.weight").T
    return y + weights.tensor(f"{name}.bias") if f"{name}.bias" in weights else y


def rms_norm(x: Float32, weight: Float32, epsilon: float) -> Float32:
    """Zhang & Sennrich 2019, arXiv:1910.07467, over the last axis."""
    mean_square = np.mean(np.square(x), axis=-1, keepdims=True)
    normed: Float32 = x / np.sqrt(mean_square + np.float32(epsilon)) * weight
    return normed


def silu(x: Float32) -> Float32:
    """``x * sigmoid(x)``, written with tanh so that no exponential overflows."""
    half = x * np.float32(0.5)
    activated: Float32 = half + half * np.tanh(half)
    return activated


def gelu(x: Float32) -> Float32:
    """The tanh form of GELU (Hendrycks & Gimpel 2016, arXiv:1606.08415)."""
    inner = np.float32(0.7978846) * (x + np.float32(0.044715) * x * x * x)
    half = x * np.float32(0.5)
    activated: Float32 = half + half * np.tanh(inner)
    return activated


def rope_angles(
    n: int, head_size: int, *, base: float, scale: float = 1.0, factors: Float32 | None = None
) -> Float32:
    """Rotation of each position and pair, [n, k/2] radians (Su et al. 2021, arXiv:2104.09864).

    ``scale`` multiplies positions (linear scaling by a factor is ``1 / factor``); ``factors`` [k/2] divide
    each pair's frequency, which is how Llama 3 stretches the slow pairs.
    """
    frequencies = base ** (-np.arange(0, head_size, 2, dtype=np.float64) / head_size)
    if factors is not None:
        frequencies = frequencies / factors
    angles: Float32 = np.outer(np.arange(n) * scale, frequencies).astype(np.float32)
    return angles


def position_scale(weights: Weights) -> float:
    """What the file's rotary scaling multiplies positions by: ``1 / factor`` when linear, else 1."""
    prefix = f"{weights.architecture}.rope.scaling"
    if weights.metadata.get(f"{prefix}.type", "linear") == "none":
        return 1.0
    return 1 / weights.number(f"{prefix}.factor", 1.0)


def rope_interleaved(x: Float32, angles: Float32) -> Float32:
    """Rotate neighbours (0,1), (2,3), …: the order of ``llama`` files in GGUF. ``x`` is [n, h, k]."""
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    return np.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)


def rope_halves(x: Float32, angles: Float32) -> Float32:
    """Rotate element i of both halves together: GPT-NeoX order. ``x`` is [n, h, k]."""
    low, high = np.split(x, 2, axis=-1)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    return np.concatenate([low * cos - high * sin, low * sin + high * cos], axis=-1)


def softmax(x: Float32) -> Float32:
    """Over the last axis; ``-inf`` gets probability 0."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    probabilities: Float32 = e / e.sum(axis=-1, keepdims=True)
    return probabilities


def causal_attention(
    q: Float32, k: Float32, v: Float32, *, scale: float, window: int | None = None
) -> Float32:
    """Grouped-query attention over one sequence: q [n, h, k], k and v [n, g, k] to [n, h * k].

    A position sees itself and those before it; with ``window``, at most ``window`` of them, itself
    included. Query head i reads key/value head ``i // (h / g)`` (Ainslie et al. 2023, arXiv:2305.13245).
    """
    n, n_heads, _ = q.shape
    group = n_heads // k.shape[1]
    distance = np.arange(n)[:, None] - np.arange(n)[None, :]
    visible = distance >= 0
    if window is not None:
        visible &= distance < window
    heads = []
    for head in range(n_heads):
        scores = q[:, head] @ k[:, head // group].T * np.float32(scale)
        heads.append(softmax(np.where(visible, scores, np.float32(-np.inf))) @ v[:, head // group])
    return np.concatenate(heads, axis=-1)
