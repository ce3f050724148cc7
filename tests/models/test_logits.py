"""Logits of tiny models of every architecture and quantisation against the float32 reference."""

from math import sqrt
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from ferrite import _native
from tests.gguf.build import F32, STRING, U32
from tests.models.files import Stored, take_apart
from tests.models.quantised_reference import int8_cache_logits, int8_reference_logits
from tests.models.support import Way, load, logits, token_ids
from tests.reference import reference_logits
from tests.reference.tiny import Architecture, Quantisation, write_tiny_model
from tests.reference.weights import Float32

ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)
QUANTISATIONS: tuple[Quantisation, ...] = get_args(Quantisation)
FLOAT_QUANTISATIONS: tuple[Quantisation, ...] = ("F32", "F16", "BF16")
WINDOW = 16


def layers(architecture: Architecture) -> int:
    """Enough that gemma3 has a layer that sees everything."""
    return 7 if architecture == "gemma3" else 2


def rounding_bound(expected: Float32, *, n_layers: int, longest_row: int = 512) -> float:
    """What float32 rounding may move a logit by.

    The errors of a dot product of K terms walk at random, sqrt(K) units of 2^-24 far; a layer has seven
    products, and the logits are as large as anything in the model.
    """
    return 7 * n_layers * sqrt(longest_row) * 2.0**-24 * float(np.abs(expected).max())


def rms(values: Float32) -> float:
    return sqrt(np.mean(np.square(values, dtype=np.float64)))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("quantisation", FLOAT_QUANTISATIONS)
def test_float_weights_give_the_reference_up_to_rounding(
    tmp_path: Path, architecture: Architecture, quantisation: Quantisation
) -> None:
    path = tmp_path / "tiny.gguf"
    n_layers = layers(architecture)
    write_tiny_model(path, architecture, quantisation=quantisation, n_layers=n_layers)
    ids = token_ids(40)
    expected = reference_logits(path, ids)
    found = logits(path, ids, Way(kv_dtype="f32"))
    np.testing.assert_allclose(found, expected, rtol=0, atol=rounding_bound(expected, n_layers=n_layers))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("quantisation", [q for q in QUANTISATIONS if q not in FLOAT_QUANTISATIONS])
def test_quantised_weights_give_the_reference_with_int8_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: Architecture, quantisation: Quantisation
) -> None:
    """In most rows no input sits so near a border of two levels that float32 rounding moves it across."""
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path, architecture, quantisation=quantisation, n_layers=1)
    ids = token_ids(24)
    expected = int8_reference_logits(path, ids, monkeypatch)
    found = logits(path, ids, Way(kv_dtype="f32"))
    worst_of_row = np.abs(found - expected).max(axis=1)
    assert np.median(worst_of_row) <= rounding_bound(expected, n_layers=1)
    assert rms(found - expected) < 0.5 * rms(expected - reference_logits(path, ids))


CHANGES: dict[str, tuple[Architecture, dict[str, Any]]] = {
    "group of 1": ("llama", {"n_kv_heads": 4}),
    "group of 3": ("llama", {"n_heads": 6, "n_kv_heads": 2}),
    "group of 4": ("llama", {"n_kv_heads": 1}),
    "group of 7": ("qwen2", {"n_heads": 14, "n_kv_heads": 2, "head_size": 32}),
    "group of 8": ("gemma3", {"n_heads": 8, "n_kv_heads": 1, "head_size": 32}),
    "heads of 16 in pairs": ("llama", {"n_heads": 8, "n_kv_heads": 4, "head_size": 16}),
    "heads of 48": ("llama", {"n_heads": 4, "n_kv_heads": 2, "head_size": 48}),
    "heads wider than the embedding": ("gemma3", {"head_size": 256, "n_kv_heads": 1}),
    "tied output": ("llama", {"tied_output": True}),
    "tied output, qwen2": ("qwen2", {"tied_output": True}),
    "tied output, gemma3": ("gemma3", {"tied_output": True}),
    "rope factors": ("llama", {"rope_freq_factors": True}),
    "linear scaling, llama": ("llama", {"rope_scaling_factor": 4.0}),
    "linear scaling, qwen2": ("qwen2", {"rope_scaling_factor": 2.0}),
    "linear scaling, gemma3": ("gemma3", {"rope_scaling_factor": 8.0}),
    "window of 1": ("gemma3", {"sliding_window": 1}),
    "window across cells": ("gemma3", {"sliding_window": 17}),
    "window of everything": ("gemma3", {"sliding_window": 256}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_shape_of_a_model_follows_the_reference(tmp_path: Path, change: str) -> None:
    path = tmp_path / "tiny.gguf"
    architecture, options = CHANGES[change]
    n_layers = layers(architecture)
    write_tiny_model(path, architecture, n_layers=n_layers, **options)
    ids = token_ids(50)
    expected = reference_logits(path, ids)
    found = logits(path, ids, Way(kv_dtype="f32"))
    longest_row = max(options.get("n_heads", 4) * options.get("head_size", 64), 512)
    bound = rounding_bound(expected, n_layers=n_layers, longest_row=longest_row)
    np.testing.assert_allclose(found, expected, rtol=0, atol=bound)


def test_widths_need_no_round_number(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path, "llama", n_embd=64, n_ff=96, head_size=32)
    parts = take_apart(path)
    parts.set("llama.embedding_length", U32, 40)
    parts.set("llama.feed_forward_length", U32, 72)
    narrow = {64: 40, 96: 72}
    for name, stored in list(parts.tensors.items()):
        shape = tuple(narrow.get(size, size) for size in stored.shape)
        if name.endswith(("attn_k.weight", "attn_v.weight")):
            shape = (40, 64)
        values = parts.floats(name).reshape(stored.shape[::-1])
        kept = values[tuple(slice(size) for size in shape[::-1])]
        parts.tensors[name] = Stored(shape, 0, kept.tobytes())
    parts.write(path)
    ids = token_ids(20)
    expected = reference_logits(path, ids)
    found = logits(path, ids, Way(kv_dtype="f32"))
    np.testing.assert_allclose(found, expected, rtol=0, atol=rounding_bound(expected, n_layers=2))
    for provider in _native.providers():
        np.testing.assert_array_equal(
            logits(path, ids, Way(provider=provider, threads=2, kv_dtype="f32")), found
        )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_contexts_beyond_one_partition_of_attention_follow_the_reference(
    tmp_path: Path, architecture: Architecture
) -> None:
    path = tmp_path / "tiny.gguf"
    n_layers = layers(architecture)
    write_tiny_model(path, architecture, n_layers=n_layers, context_length=600, sliding_window=300)
    ids = token_ids(560)
    expected = reference_logits(path, ids)
    found = logits(path, ids, Way(kv_dtype="f32", chunk=200))
    np.testing.assert_allclose(found, expected, rtol=0, atol=rounding_bound(expected, n_layers=n_layers))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_half_precision_keys_and_values_change_little(tmp_path: Path, architecture: Architecture) -> None:
    """Eleven bits of mantissa in k and v, of some hundred values that the errors average over."""
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path, architecture, n_layers=layers(architecture))
    ids = token_ids(40)
    exact, half = (logits(path, ids, Way(kv_dtype=kind)) for kind in ("f32", "f16"))
    assert 0 < rms(half - exact) < 2.0**-10 * rms(exact) * layers(architecture)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("n_positions", [24, 300])
def test_int8_keys_and_values_give_the_reference_that_rounds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: Architecture, n_positions: int
) -> None:
    """Near all of what rounding does is what the format says; a border of two levels may fall either way."""
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path, architecture, n_layers=1, context_length=300)
    ids = token_ids(n_positions)
    expected = int8_cache_logits(path, ids, monkeypatch)
    found = logits(path, ids, Way(kv_dtype="q8_0"))
    worst_of_row = np.abs(found - expected).max(axis=1)
    assert np.median(worst_of_row[:24]) <= rounding_bound(expected, n_layers=1)
    assert rms(found - expected) < 0.1 * rms(expected - reference_logits(path, ids))


def test_qwen2_adds_the_biases_of_q_k_and_v(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path, "qwen2")
    parts = take_apart(path)
    ids = token_ids(8)
    before = logits(path, ids, Way())
    for name in ("attn_q", "attn_k", "attn_v"):
        changed = take_apart(path)
        changed.set_floats(f"blk.1.{name}.bias", 1.5 * parts.floats(f"blk.1.{name}.bias"))
        other = changed.write(tmp_path / f"{name}.gguf")
        found = logits(other, ids, Way(kv_dtype="f32"))
        expected = reference_logits(other, ids)
        np.testing.assert_allclose(found, expected, rtol=0, atol=rounding_bound(expected, n_layers=2))
        assert rms(found - before) > 0.01


def test_old_files_call_the_linear_factor_scale_linear(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path, "llama", rope_scaling_factor=4.0)
    parts = take_apart(path)
    del parts.pairs["llama.rope.scaling.type"], parts.pairs["llama.rope.scaling.factor"]
    parts.set("llama.rope.scale_linear", F32, 4.0)
    old = parts.write(tmp_path / "old.gguf")
    ids = token_ids(20)
    np.testing.assert_array_equal(logits(old, ids, Way()), logits(path, ids, Way()))


def test_a_factor_with_scaling_none_does_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path, "llama")
    parts = take_apart(path)
    parts.set("llama.rope.scaling.type", STRING, "none")
    parts.set("llama.rope.scaling.factor", F32, 4.0)
    ids = token_ids(20)
    expected = logits(path, ids, Way())
    np.testing.assert_array_equal(logits(parts.write(tmp_path / "none.gguf"), ids, Way()), expected)


def test_gemma3_files_may_set_the_local_base_and_the_pattern_of_layers(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path, "gemma3", n_layers=2, sliding_window=WINDOW)
    ids = token_ids(3 * WINDOW)
    parts = take_apart(path)
    parts.set("gemma3.rope.freq_base_swa", F32, 2e4)
    expected = reference_logits(parts.write(path), ids)
    found = logits(path, ids, Way(kv_dtype="f32"))
    np.testing.assert_allclose(found, expected, rtol=0, atol=rounding_bound(expected, n_layers=2))

    parts.set("gemma3.rope.freq_base_swa", F32, 1e6)
    parts.set("gemma3.attention.sliding_window_pattern", U32, 1)
    every_layer_global = logits(parts.write(path), ids, Way())
    parts.set("gemma3.attention.sliding_window", U32, 256)
    parts.set("gemma3.attention.sliding_window_pattern", U32, 6)
    np.testing.assert_array_equal(logits(parts.write(path), ids, Way()), every_layer_global)


WAYS = [
    *(Way(provider=provider, threads=threads) for provider in _native.providers() for threads in (1, 3)),
    Way(threads=2, chunk=1),
    Way(threads=2, chunk=7),
    Way(chunk=300),
    Way(block_tokens=32),
    Way(threads=2, block_tokens=64, chunk=33),
]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("quantisation", QUANTISATIONS)
def test_no_bit_depends_on_how_a_model_is_run(
    tmp_path: Path, architecture: Architecture, quantisation: Quantisation
) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_model(
        path, architecture, quantisation=quantisation, n_layers=1 if architecture != "gemma3" else 6
    )
    ids = token_ids(40)
    expected = logits(path, ids, WAYS[0])
    for way in WAYS[1:]:
        np.testing.assert_array_equal(logits(path, ids, way), expected, err_msg=str(way))


@pytest.mark.parametrize("kv_dtype", ["f16", "f32", "q8_0"])
def test_no_bit_depends_on_how_a_long_context_is_run(tmp_path: Path, kv_dtype: Any) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path, "gemma3", quantisation="Q4_0", n_layers=6, context_length=600, sliding_window=300)
    ids = token_ids(530)
    expected = logits(path, ids, Way(kv_dtype=kv_dtype, chunk=512))
    for way in (
        Way(threads=3, chunk=263, kv_dtype=kv_dtype),
        Way(threads=2, chunk=1, kv_dtype=kv_dtype),
        Way(chunk=100, block_tokens=48, kv_dtype=kv_dtype, kv_backend="locus"),
        Way(provider="portable", threads=2, chunk=128, block_tokens=64, kv_dtype=kv_dtype),
    ):
        np.testing.assert_array_equal(logits(path, ids, way), expected, err_msg=str(way))


def test_loading_leaves_one_copy_of_the_weights(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path, "llama", quantisation="Q4_1", with_tokenizer=False)
    runner = load(path, Way())
    assert path.stat().st_size * 0.9 < runner.weight_bytes < path.stat().st_size * 1.2
