"""Tiny models are reproducible, complete and well scaled."""

import hashlib
from pathlib import Path
from typing import get_args

import gguf
import numpy as np
import pytest

from tests.reference import reference_logits
from tests.reference.tiny import CONTROL_TOKENS, Architecture, Quantisation, vocabulary, write_tiny_model
from tests.reference.weights import Weights


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("quantisation", ["F32", "Q4_1", "Q4_K"])
def test_the_seed_alone_decides_the_bytes(tmp_path: Path, quantisation: Quantisation) -> None:
    first, again, other = (tmp_path / name for name in ("first", "again", "other"))
    write_tiny_model(first, "llama", seed=1, quantisation=quantisation)
    write_tiny_model(again, "llama", seed=1, quantisation=quantisation)
    write_tiny_model(other, "llama", seed=2, quantisation=quantisation)
    assert digest(first) == digest(again)
    assert digest(first) != digest(other)


@pytest.mark.parametrize("architecture", get_args(Architecture))
@pytest.mark.parametrize("quantisation", get_args(Quantisation))
def test_matrices_are_quantised_and_predictions_vary(
    tmp_path: Path, architecture: Architecture, quantisation: Quantisation
) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path, architecture, quantisation=quantisation)
    kinds = {len(tensor.shape): set[gguf.GGMLQuantizationType]() for tensor in gguf.GGUFReader(path).tensors}
    for tensor in gguf.GGUFReader(path).tensors:
        kinds[len(tensor.shape)].add(tensor.tensor_type)
    assert kinds == {1: {gguf.GGMLQuantizationType.F32}, 2: {gguf.GGMLQuantizationType[quantisation]}}
    logits = reference_logits(path, list(range(0, 270, 9)))
    assert 2 < logits.std() < 8
    assert len(set(logits.argmax(axis=-1))) > 8


@pytest.mark.parametrize("quantisation", get_args(Quantisation))
def test_matrix_values_have_zero_mean_and_the_wanted_deviation(
    tmp_path: Path, quantisation: Quantisation
) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path, "llama", quantisation=quantisation)
    with Weights(path) as weights:
        values = weights.tensor("blk.0.ffn_up.weight")
    assert values.std() == pytest.approx(256**-0.5, rel=0.15)
    assert abs(values.mean()) < 0.05 * values.std()


def test_the_vocabulary_covers_every_byte_once_and_ends_with_control_tokens(tmp_path: Path) -> None:
    tokens = vocabulary()
    assert len(tokens) == len(set(tokens)) == 271
    assert {token for token in tokens if len(token) == 1} >= set("azAZ09Ġ")
    assert tuple(tokens[-3:]) == CONTROL_TOKENS
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path, "llama")
    fields = gguf.GGUFReader(path).fields
    assert fields["tokenizer.ggml.tokens"].contents() == tokens
    assert fields["tokenizer.ggml.eos_token_id"].contents() == tokens.index("<|im_end|>")


def test_a_model_can_be_written_without_its_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path, "llama", with_tokenizer=False)
    assert not [key for key in gguf.GGUFReader(path).fields if key.startswith("tokenizer")]


def test_tied_models_have_no_output_matrix(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path, "llama", tied_output=True)
    with Weights(path) as weights:
        assert "output.weight" not in weights
    np.testing.assert_equal(reference_logits(path, [1, 2]).shape, (2, 271))
