"""Ferrite against the reference on tiny models of every architecture and quantisation."""

from pathlib import Path

import pytest

from tests.accuracy.divergence import divergence
from tests.accuracy.engine import FERRITE
from tests.accuracy.quantised import CASES, TINY_TOKEN_IDS, load_llama_cpp, write_case
from tests.reference import Reference

SAMPLING_ERROR = 1.25
"""Means over 192 positions of equally exact engines differ by up to a tenth."""


@pytest.mark.parametrize("case", CASES)
def test_divergence_from_float32_is_about_that_of_llama_cpp(tmp_path: Path, case: str) -> None:
    path = tmp_path / "tiny.gguf"
    write_case(path, case)
    measured = divergence(Reference(path, TINY_TOKEN_IDS), FERRITE(path, TINY_TOKEN_IDS))
    assert measured.mean_kl <= SAMPLING_ERROR * load_llama_cpp()[case].mean_kl
