"""Histograms with fixed buckets, as Prometheus means them, and the bucket tables with their reasons."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

TTFT_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0)
"""10 ms is a small model behind a prefix-cache hit, 100 s some ten thousand prompt tokens on a slow box: four
decades, and three bounds in each tell a hit from a cold prompt, which is a factor of 20 and more."""

INTER_TOKEN_SECONDS = (
    *(0.001, 0.0015, 0.002, 0.003, 0.005, 0.007),
    *(0.01, 0.015, 0.02, 0.03, 0.05, 0.07),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 0.7),
    *(1.0, 2.0, 5.0),
)
"""1 ms is the best a tiny model does, 1 s a large one on a slow box, 5 s a fault. What an operator looks for
is a p99 of three times the p50 (a prompt that stalls the streams). Up to 1 s a bound is at most 2.5 times the
one two before it, so two bounds always lie between such a p50 and its p99."""

QUEUE_WAIT_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0)
"""Up to 1 ms is no wait, up to 5 ms the arrival window; above it the steps of the time to first token, which
contains the wait."""

END_TO_END_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0)
"""From an answer of a few tokens to thousands of tokens at a few a second."""

STEP_SECONDS = INTER_TOKEN_SECONDS
"""A running stream waits one step for a token, so the two can be read side by side."""

BATCH_SEQUENCES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64)
"""Every size up to 8, where one box usually runs and a lost stream must show; then steps of 1.5 or less."""


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """A histogram at one moment."""

    bounds: tuple[float, ...]
    """Upper bounds, each inclusive (``le``); the last is infinite."""
    cumulative: tuple[int, ...]
    """For each bound the observations at or below it."""
    sum: float
    """Sum of all observations."""

    @property
    def count(self) -> int:
        """Number of observations."""
        return self.cumulative[-1]


class Histogram:
    """Counts observations in buckets with inclusive upper bounds; one for +Inf is always there.

    One thread observes, any thread may take a snapshot; its ``sum`` may lack the very last observation.
    """

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """``bounds`` are finite and increase; raises ``ValueError`` otherwise."""
        if not bounds or not all(map(math.isfinite, bounds)):
            raise ValueError("bounds must be finite and at least one")
        if any(low >= high for low, high in pairwise(bounds)):
            raise ValueError("bounds must increase")
        self._bounds = (*map(float, bounds), math.inf)
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count ``value``; raises ``ValueError`` when it is not a number."""
        if math.isnan(value):
            raise ValueError("an observation must be a number")
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def snapshot(self) -> HistogramSnapshot:
        """The counts at this moment."""
        return HistogramSnapshot(self._bounds, tuple(accumulate(tuple(self._counts))), self._sum)
