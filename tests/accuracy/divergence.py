"""How far one engine's next-token distributions are from the float32 reference."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tests.reference import Reference
from tests.reference.weights import Float32

Float64 = npt.NDArray[np.float64]
_ROWS_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Divergence:
    """Over the positions of one text; KL(reference ‖ other) over the whole vocabulary, in nats."""

    positions: int
    mean_kl: float
    median_kl: float
    max_kl: float
    top1_agreement: float
    """Share of positions whose likeliest token is the reference's (the lowest id among equals)."""


def log_softmax(logits: Float32) -> Float64:
    """Log-probabilities over the last axis, in float64."""
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    total: Float64 = np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return x - total


def divergence(reference: Reference, logits: Float32) -> Divergence:
    """Compare ``logits`` [n, vocab] with the reference at every position.

    Raises ``ValueError`` when the shape differs or a value is not finite.
    """
    expected = (reference.n_positions, reference.vocab_size)
    if logits.shape != expected:
        raise ValueError(f"logits have shape {logits.shape}, the reference has {expected}")
    kl: list[Float64] = []
    agreeing = 0
    row = 0
    for wanted in reference.chunks(_ROWS_AT_ONCE):
        given = logits[row : row + len(wanted)]
        if not np.isfinite(given).all():
            raise ValueError(f"logits of positions {row} to {row + len(wanted) - 1} are not all finite")
        p, q = log_softmax(wanted), log_softmax(given)
        kl.append((np.exp(p) * (p - q)).sum(axis=-1))
        agreeing += int((wanted.argmax(axis=-1) == given.argmax(axis=-1)).sum())
        row += len(wanted)
    values = np.concatenate(kl)
    return Divergence(
        positions=len(values),
        mean_kl=float(values.mean()),
        median_kl=float(np.median(values)),
        max_kl=float(values.max()),
        top1_agreement=agreeing / len(values),
    )
