"""Attention over a KV cache of any shape and type: every provider gives the bits of ``portable``."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrite import _native

TEAMS = {threads: _native.Team(threads) for threads in (1, 3)}
OTHERS = [provider for provider in _native.providers() if provider != "portable"]
F32 = 0
VOCAB, WIDTH = 20, 32


@dataclass(frozen=True)
class Shape:
    dtype: str
    kv_heads: int
    group: int
    head_dim: int
    block_tokens: int
    n_positions: int
    window: int


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    dtype = draw(st.sampled_from(["f16", "f32", "q8_0"]))
    head_dim = draw(st.sampled_from([32, 64, 96, 128, 256] if dtype == "q8_0" else [16, 32, 48, 64, 80, 128]))
    return Shape(
        dtype=dtype,
        kv_heads=draw(st.integers(1, 3)),
        group=draw(st.integers(1, 8).filter(lambda group: group * head_dim % 32 == 0)),
        head_dim=head_dim,
        block_tokens=16 * draw(st.integers(1, 4)),
        n_positions=draw(st.integers(1, 40) | st.integers(240, 300)),
        window=draw(st.just(0) | st.integers(1, 300)),
    )


def matrix(team: _native.Team, rows: int, cols: int, key: int) -> _native.Weight:
    values = np.random.default_rng((rows, cols, key)).standard_normal((rows, cols)).astype(np.float32)
    return _native.Weight.pack((values * cols**-0.5).view(np.uint8).reshape(-1), F32, rows, cols, team)


def logits(shape: Shape, provider: str, *, threads: int, chunk: int, backend: str) -> npt.NDArray[np.float32]:
    """One attention layer with an output for every position, its blocks in descending order."""
    team = TEAMS[threads]
    blocks = -(-shape.n_positions // shape.block_tokens)
    kv = _native.KvStore(
        layers=1,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        block_tokens=shape.block_tokens,
        blocks=blocks,
        dtype=shape.dtype,
        backend=backend,
    )
    executor = _native.Executor(team, provider, kv)
    none = np.zeros(0, np.float32)
    q_width, kv_width = shape.group * shape.kv_heads * shape.head_dim, shape.kv_heads * shape.head_dim
    x, q, k, v = (executor.buffer(width) for width in (WIDTH, q_width, kv_width, kv_width))
    angles = executor.buffer(shape.head_dim)
    last, out = executor.buffer(q_width, logits=True), executor.buffer(VOCAB, logits=True)
    heads = {
        "heads": shape.group * shape.kv_heads,
        "kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "layer": 0,
    }
    executor.embed(matrix(team, VOCAB, WIDTH, 0), x, 1.0)
    executor.angles([0.7**i for i in range(shape.head_dim // 2)], angles)
    weights = [matrix(team, width, WIDTH, key) for key, width in enumerate((q_width, kv_width, kv_width))]
    executor.linear(x, weights, [q, k, v], [none] * 3, accumulate=False)
    executor.rope(
        q=q, k=k, v=v, angles=angles, **heads, adjacent=False, q_scale=0.3, q_norm=none, k_norm=none, eps=0.0
    )
    executor.attention(q=q, out=q, **heads, window=shape.window)
    executor.select_rows(q, last)
    executor.logits(last, matrix(team, VOCAB, q_width, 1), out)
    tokens = (np.arange(shape.n_positions, dtype=np.int32) * 7 + 3) % VOCAB
    table = np.arange(blocks, dtype=np.int32)[::-1].copy()
    steps = []
    for at in range(0, shape.n_positions, chunk):
        n = min(chunk, shape.n_positions - at)
        rows = np.arange(n, dtype=np.int32)
        steps.append(executor.evaluate(tokens[at : at + n], rows + at, np.zeros(n, np.int32), [table], rows))
    return np.concatenate(steps)


@given(shapes(), st.sampled_from([1, 3]), st.integers(20, 300))
@settings(max_examples=60)
def test_every_provider_gives_the_portable_bits(shape: Shape, threads: int, chunk: int) -> None:
    expected = logits(shape, "portable", threads=1, chunk=300, backend="vec")
    assert np.isfinite(expected).all()
    for provider in OTHERS:
        found = logits(shape, provider, threads=threads, chunk=chunk, backend="locus")
        assert found.tobytes() == expected.tobytes(), provider


@pytest.mark.parametrize("dtype", ["f16", "q8_0"])
def test_a_smaller_cache_type_is_near_float32(dtype: str) -> None:
    shape = Shape(dtype, 2, 3, 64, 32, 270, 0)
    exact = Shape("f32", 2, 3, 64, 32, 270, 0)
    found, expected = (logits(each, "auto", threads=3, chunk=300, backend="vec") for each in (shape, exact))
    # The largest of 32 values, near three deviations, is off by half a 127th: some hundredth of a deviation.
    bound = {"f16": 2.0**-10, "q8_0": 0.02}[dtype]
    error = np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2))
    assert 0 < error < bound
