"""The comparator: it must see what is wrong, and nothing where nothing is."""

import numpy as np
import pytest

from tests.accuracy.divergence import divergence, log_softmax
from tests.reference import Reference
from tests.reference.tiny import write_tiny_model
from tests.reference.weights import Float32

TOKEN_IDS = list(range(0, 270, 3))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    path = tmp_path_factory.mktemp("divergence") / "tiny.gguf"
    write_tiny_model(path, "llama")
    return Reference(path, TOKEN_IDS)


@pytest.fixture
def logits(reference: Reference) -> Float32:
    return reference.logits(0, reference.n_positions)


def noise(shape: tuple[int, ...], deviation: float) -> Float32:
    return np.random.default_rng(0).standard_normal(shape, np.float32) * np.float32(deviation)


def test_the_reference_does_not_diverge_from_itself(reference: Reference, logits: Float32) -> None:
    measured = divergence(reference, logits)
    assert measured.positions == len(TOKEN_IDS)
    assert abs(measured.mean_kl) < 1e-11
    assert measured.max_kl < 1e-10
    assert measured.top1_agreement == 1


def test_a_constant_added_to_a_position_changes_nothing(reference: Reference, logits: Float32) -> None:
    shifted = logits + np.arange(len(logits), dtype=np.float32)[:, None]
    assert divergence(reference, shifted).mean_kl < 1e-9


def test_divergence_is_the_sum_over_the_vocabulary(reference: Reference, logits: Float32) -> None:
    other = logits + noise(logits.shape, 0.5)
    kl = []
    for wanted, given in zip(logits.astype(np.float64), other.astype(np.float64), strict=True):
        p, q = np.exp(wanted) / np.exp(wanted).sum(), np.exp(given) / np.exp(given).sum()
        kl.append(sum(float(a * np.log(a / b)) for a, b in zip(p, q, strict=True)))
    measured = divergence(reference, other)
    assert measured.mean_kl == pytest.approx(np.mean(kl), rel=1e-4)
    assert measured.median_kl == pytest.approx(np.median(kl), rel=1e-4)
    assert measured.max_kl == pytest.approx(max(kl), rel=1e-4)


def test_noise_of_a_known_size_has_half_its_variance_as_divergence(
    reference: Reference, logits: Float32
) -> None:
    small = divergence(reference, logits + noise(logits.shape, 0.02)).mean_kl
    assert small == pytest.approx(0.5 * 0.02**2 * (1 - np.mean(concentration(logits))), rel=0.3)
    assert divergence(reference, logits + noise(logits.shape, 0.2)).mean_kl > 50 * small


def concentration(logits: Float32) -> Float32:
    """Sum of squared probabilities: the share of the noise that a shift of all logits would explain."""
    squares: Float32 = np.square(np.exp(log_softmax(logits))).sum(axis=-1).astype(np.float32)
    return squares


@pytest.mark.parametrize("position", [0, 31, 32, len(TOKEN_IDS) - 1])
def test_one_wrong_position_shows_wherever_it_stands(
    reference: Reference, logits: Float32, position: int
) -> None:
    wrong = logits.copy()
    wrong[position] = -wrong[position]
    measured = divergence(reference, wrong)
    assert measured.max_kl > 1
    assert measured.mean_kl == pytest.approx(measured.max_kl / len(TOKEN_IDS), rel=1e-6)
    assert measured.top1_agreement == 1 - 1 / len(TOKEN_IDS)


def test_logits_of_the_neighbouring_position_diverge(reference: Reference, logits: Float32) -> None:
    measured = divergence(reference, np.roll(logits, 1, axis=0))
    assert measured.mean_kl > 1
    assert measured.top1_agreement < 0.2


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused(reference: Reference, logits: Float32, value: float) -> None:
    broken = logits.copy()
    broken[40, 7] = value
    with pytest.raises(ValueError, match="positions 32 to 63 are not all finite"):
        divergence(reference, broken)


def test_missing_positions_are_refused(reference: Reference, logits: Float32) -> None:
    with pytest.raises(ValueError, match=r"logits have shape \(89, 271\), the reference has \(90, 271\)"):
        divergence(reference, logits[:-1])
