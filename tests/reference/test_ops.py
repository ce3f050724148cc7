"""The reference's operations against loops and identities."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reference import ops
from tests.reference.weights import Float32


def random(*shape: int, seed: int = 0) -> Float32:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def test_rms_norm_makes_the_mean_square_one() -> None:
    normed = ops.rms_norm(random(5, 64) * 7, np.ones(64, np.float32), 1e-6)
    np.testing.assert_allclose(np.square(normed).mean(axis=-1), 1, rtol=1e-5)


def test_activations_have_their_published_values() -> None:
    x = np.array([-100, -1, 0, 1, 100], np.float32)
    np.testing.assert_allclose(ops.silu(x), [0, -0.26894143, 0, 0.7310586, 100], atol=1e-6)
    np.testing.assert_allclose(ops.gelu(x), [0, -0.15880801, 0, 0.841192, 100], atol=1e-6)


@given(n=st.integers(1, 9), heads=st.integers(1, 3), pairs=st.integers(1, 16))
def test_rotation_keeps_lengths_and_depends_on_distance_only(n: int, heads: int, pairs: int) -> None:
    size = 2 * pairs
    angles = ops.rope_angles(n + 3, size, base=1e4)
    q, k = random(1, heads, size), random(1, heads, size, seed=1)
    for rotate in (ops.rope_interleaved, ops.rope_halves):
        rotated_q, rotated_k = rotate(np.repeat(q, n + 3, 0), angles), rotate(np.repeat(k, n + 3, 0), angles)
        np.testing.assert_allclose(
            np.linalg.norm(rotated_q, axis=-1), np.repeat(np.linalg.norm(q, axis=-1), n + 3, 0), rtol=1e-5
        )
        scores = np.einsum("ihd,ihd->ih", rotated_q[3:], rotated_k[:-3])
        np.testing.assert_allclose(scores, np.repeat(scores[:1], n, 0), atol=1e-4 * size)


def test_both_rotation_orders_are_one_rotation_of_permuted_elements() -> None:
    x, angles = random(6, 2, 16), ops.rope_angles(6, 16, base=1e4)
    halves_first = np.concatenate([np.arange(0, 16, 2), np.arange(1, 16, 2)])
    np.testing.assert_array_equal(
        ops.rope_interleaved(x, angles)[..., halves_first], ops.rope_halves(x[..., halves_first], angles)
    )


def test_rope_scaling_shrinks_positions_and_factors_shrink_frequencies() -> None:
    plain = ops.rope_angles(9, 8, base=1e4)
    np.testing.assert_allclose(ops.rope_angles(9, 8, base=1e4, scale=0.25)[8], plain[2])
    factors = np.array([1, 2, 4, 8], np.float32)
    np.testing.assert_allclose(ops.rope_angles(9, 8, base=1e4, factors=factors), plain / factors, rtol=1e-6)


@pytest.mark.parametrize("window", [None, 1, 3, 99])
@given(n=st.integers(1, 8), kv_heads=st.integers(1, 2), group=st.integers(1, 3))
def test_attention_is_the_naive_loop(window: int | None, n: int, kv_heads: int, group: int) -> None:
    size, value_size = 4, 6
    q, k = random(n, kv_heads * group, size), random(n, kv_heads, size, seed=1)
    v = random(n, kv_heads, value_size, seed=2)
    wanted = np.zeros((n, kv_heads * group, value_size))
    for i in range(n):
        for head in range(kv_heads * group):
            first = 0 if window is None else max(0, i - window + 1)
            scores = [0.5 * float(q[i, head] @ k[j, head // group]) for j in range(first, i + 1)]
            weights = np.exp(scores) / np.exp(scores).sum()
            wanted[i, head] = weights @ v[first : i + 1, head // group]
    given_back = ops.causal_attention(q, k, v, scale=0.5, window=window)
    np.testing.assert_allclose(given_back, wanted.reshape(n, -1), atol=1e-5)
