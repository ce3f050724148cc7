"""One engine against the machine's own limits, round by round."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ferrite import _native
from ferrite.bench.breakdown import Breakdown, breakdown
from ferrite.bench.rates import Rates
from ferrite.bench.works import Work, need
from ferrite.program.runner import NativeRunner


@dataclass(frozen=True, slots=True)
class Limits:
    """What the machine gave in the same rounds, medians."""

    read_gb_s: float
    int8_gmac_s: float
    """10^9 multiply-adds of int8 a second"""


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of work: its rates over the rounds, and the rate the machine's limits allow."""

    work: str
    depth: int
    streams: int
    tokens_per_second: float
    lowest: float
    highest: float
    floor_share: float
    """median over the rounds of the time the limits need ÷ the time taken"""
    time: Breakdown
    """of the round with the median rate"""


class Machine:
    """The machine's limits, measured by the same number of threads as what is compared with them."""

    def __init__(self, runner: NativeRunner, threads: int) -> None:
        self._limits = _native.MachineLimits(_native.Team(threads))
        self._provider = runner.provider
        self.bandwidths: list[float] = []
        self.peaks: list[float] = []

    def measure(self) -> tuple[float, float]:
        """Return bytes read and int8 multiply-adds a second, as of now."""
        self.bandwidths.append(self._limits.read_bandwidth())
        self.peaks.append(self._limits.multiply_adds(self._provider))
        return self.bandwidths[-1], self.peaks[-1]

    def limits(self) -> Limits:
        """Return the medians of what was measured."""
        return Limits(statistics.median(self.bandwidths) / 1e9, statistics.median(self.peaks) / 1e9)


@dataclass(frozen=True, slots=True)
class _Round:
    seconds: float
    floor_share: float
    time: Breakdown


def run_work(rates: Rates, work: Work, *, record: bool = False) -> float:
    """Return the seconds that ``work`` takes; see ``Rates`` for ``record``."""
    if work.kind == "prefill":
        return rates.prefill(work.depth, record=record)
    return rates.decode(streams=work.streams, steps=work.steps, depth=work.depth, record=record)


def measure(
    rates: Rates, works: Sequence[Work], runner: NativeRunner, machine: Machine, *, rounds: int, threads: int
) -> list[Row]:
    """Time every work once a round, the machine's limits before each; a first round only warms up."""
    needs = [need(work, runner) for work in works]
    measured: list[list[_Round]] = [[] for _ in works]
    for work in works:
        run_work(rates, work)
    for _ in range(rounds):
        for work, least, found in zip(works, needs, measured, strict=True):
            floor = least.seconds(*machine.measure())
            seconds = run_work(rates, work, record=True)
            time = breakdown(runner.recorded_times(), seconds, threads)
            found.append(_Round(seconds, floor / seconds, time))
    return [_row(work, found) for work, found in zip(works, measured, strict=True)]


def _row(work: Work, rounds: Sequence[_Round]) -> Row:
    in_order = sorted(rounds, key=lambda each: each.seconds)
    return Row(
        work=work.kind,
        depth=work.depth,
        streams=work.streams,
        tokens_per_second=statistics.median(work.tokens / each.seconds for each in rounds),
        lowest=work.tokens / in_order[-1].seconds,
        highest=work.tokens / in_order[0].seconds,
        floor_share=statistics.median(each.floor_share for each in rounds),
        time=in_order[(len(in_order) - 1) // 2].time,
    )
