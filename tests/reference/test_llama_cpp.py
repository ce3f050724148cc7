"""The reference against llama.cpp, which computed the stored logits with a float32 KV cache.

Logits of these models are near 4 and reach 200 with a tied output. llama.cpp takes GELU from a table of
half-precision values (error up to 2**-11), hence the wider tolerance for Gemma. Even there a window one
position too wide moves logits by more than 10, an attention scale 1 % too high by more than 0.1.
"""

from pathlib import Path

import numpy as np
import pytest

from tests.reference import reference_logits
from tests.reference.variants import STORED_LOGITS, TOKEN_IDS, VARIANTS


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_llama_cpp(tmp_path: Path, variant: str) -> None:
    path = tmp_path / "tiny.gguf"
    VARIANTS[variant](path)
    with np.load(STORED_LOGITS) as stored:
        wanted = stored[variant]
    tolerance = 1e-2 if variant.startswith("gemma3") else 1e-4
    np.testing.assert_allclose(reference_logits(path, TOKEN_IDS), wanted, rtol=1e-6, atol=tolerance)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_prefix_is_not_changed_by_what_follows(tmp_path: Path, variant: str) -> None:
    path = tmp_path / "tiny.gguf"
    VARIANTS[variant](path)
    whole = reference_logits(path, TOKEN_IDS)
    np.testing.assert_allclose(reference_logits(path, TOKEN_IDS[:11]), whole[:11], rtol=1e-5, atol=1e-4)
