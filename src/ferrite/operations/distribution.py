"""Percentiles of a handful of measurements."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Distribution:
    """Percentiles and extremes of a sample, in the unit of the sample."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    max: float


def distribution(values: Sequence[float]) -> Distribution | None:
    """Summarise ``values``; None where nothing was measured."""
    if not values:
        return None
    ordered = sorted(values)
    return Distribution(
        count=len(ordered),
        mean=sum(ordered) / len(ordered),
        p50=quantile(ordered, 0.50),
        p95=quantile(ordered, 0.95),
        p99=quantile(ordered, 0.99),
        max=ordered[-1],
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of the sample lies, on the line between its neighbours.

    ``ordered`` is not empty and ascending, ``share`` from 0 to 1 (Hyndman and Fan 1996, definition 7).
    """
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
