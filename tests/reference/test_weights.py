"""The reference's GGUF reader against the ``gguf`` package's own."""

from pathlib import Path
from typing import get_args

import gguf
import numpy as np
import pytest

from tests.reference.tiny import Quantisation, write_tiny_model
from tests.reference.weights import Weights


@pytest.mark.parametrize("quantisation", get_args(Quantisation))
def test_every_tensor_is_what_the_gguf_package_reads(tmp_path: Path, quantisation: Quantisation) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path, "qwen2", quantisation=quantisation, n_layers=1)
    wanted = {t.name: t for t in gguf.GGUFReader(path).tensors}
    with Weights(path) as weights:
        for name, tensor in wanted.items():
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            assert weights.shape(name) == tuple(int(size) for size in tensor.shape[::-1])
            np.testing.assert_array_equal(weights.tensor(name), values)
        some = np.array([270, 0, 0, 31])
        table = weights.tensor("token_embd.weight")
        np.testing.assert_array_equal(weights.rows("token_embd.weight", some), table[some])


def test_metadata_keeps_numbers_and_skips_vocabularies(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path, "gemma3", sliding_window=24)
    with Weights(path) as weights:
        assert weights.architecture == "gemma3"
        assert weights.integer("gemma3.attention.sliding_window") == 24
        assert weights.number("gemma3.attention.layer_norm_rms_epsilon") == pytest.approx(1e-6)
        assert weights.number("gemma3.absent", 0.5) == 0.5
        assert weights.metadata["tokenizer.ggml.tokens"] is None
        kinds = weights.metadata["tokenizer.ggml.token_type"]
        assert isinstance(kinds, list)
        assert len(kinds) == 271
        with pytest.raises(KeyError, match=r"gemma3\.absent"):
            weights.integer("gemma3.absent")


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "not.gguf"
    path.write_bytes(b"GGML" + bytes(60))
    with pytest.raises(ValueError, match=r"not\.gguf: not a GGUF file"):
        Weights(path)
