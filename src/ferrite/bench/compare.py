"""Engines side by side: the same bytes, threads and work, one after the other in every round."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ferrite.bench.works import Work

REST_SECONDS = 0.2
"""Between two engines, for the threads of the one that has just worked to stop looking for more."""

RunWork = Callable[[Work], float]


@dataclass(frozen=True, slots=True)
class EngineRates:
    """One engine's rates at one work, and what ours is to them."""

    engine: str
    rates: tuple[float, ...]
    """tokens a second, round by round"""
    ratios: tuple[float, ...]
    """our rate ÷ this engine's in the same round"""

    @property
    def rate(self) -> float:
        """The median rate."""
        return statistics.median(self.rates)

    @property
    def ratio(self) -> float:
        """The median ratio."""
        return statistics.median(self.ratios)


@dataclass(frozen=True, slots=True)
class Comparison:
    """All engines at one work, ours first."""

    work: str
    depth: int
    streams: int
    engines: tuple[EngineRates, ...]


def compare(
    engines: Mapping[str, RunWork],
    works: Sequence[Work],
    *,
    rounds: int,
    rest: Callable[[float], None] = time.sleep,
) -> list[Comparison]:
    """Time every engine in every round, work by work; ours is the first. A round before only warms up."""
    comparisons = []
    for work in works:
        rates: dict[str, list[float]] = {name: [] for name in engines}
        for round_ in range(rounds + 1):
            for name, run in engines.items():
                rest(REST_SECONDS)
                rate = work.tokens / run(work)
                if round_ > 0:
                    rates[name].append(rate)
        ours = next(iter(rates.values()))
        found = tuple(
            EngineRates(name, tuple(its), tuple(our / their for our, their in zip(ours, its, strict=True)))
            for name, its in rates.items()
        )
        comparisons.append(Comparison(work.kind, work.depth, work.streams, found))
    return comparisons
