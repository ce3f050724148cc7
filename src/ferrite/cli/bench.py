"""``ferrite bench``: prefill and decode rates beside what the machine's memory and cores allow."""

import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated

import typer

from ferrite import _native
from ferrite.bench.rates import MOST_COUNT, MOST_STREAMS, PREFILL_CHUNK, Rates, serve_worker
from ferrite.cli.model import DEFAULT_MODEL, ModelOption, ThreadsOption, opened
from ferrite.program.runner import NativeRunner, RunnerConfig


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


@dataclass(frozen=True, slots=True)
class Work:
    """One kind of work: how to time it, and what it must read and compute at the least."""

    name: str
    depth: int
    streams: int
    tokens: int
    steps: int
    time: Callable[[], float]


def bench(
    model: ModelOption = DEFAULT_MODEL,
    threads: ThreadsOption = 0,
    provider: Annotated[
        str, typer.Option("--kernel-provider", help="auto, portable or an instruction set.")
    ] = "auto",
    prefill: Annotated[str, typer.Option("--prefill", help="Prompt lengths.")] = "16,128,512,2048",
    streams: Annotated[str, typer.Option("--streams", help="Concurrent sequences.")] = "1,2,4,8,16",
    depth: Annotated[str, typer.Option("--depth", help="Context depths of the decode rows.")] = "32,1024",
    steps: Annotated[
        int, typer.Option("--steps", min=1, max=MOST_COUNT, help="Decode steps timed at once.")
    ] = 32,
    rounds: Annotated[int, typer.Option("--rounds", min=1, max=1000, help="Rounds; the median counts.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    worker: Annotated[
        bool, typer.Option("--worker", help="Answer JSON lines on standard input instead.")
    ] = False,
) -> None:
    """Measure prefill and decode, interleaved with the machine's read bandwidth and int8 peak."""
    lengths, counts, depths = (
        _numbers(prefill, "--prefill"),
        _numbers(streams, "--streams"),
        _numbers(depth, "--depth"),
    )
    if max(counts) > MOST_STREAMS:
        raise typer.BadParameter(f"at most {MOST_STREAMS} streams", param_hint="--streams")
    providers = ("auto", *_native.providers())
    if provider not in providers:
        raise typer.BadParameter(f"expected one of {', '.join(providers)}", param_hint="--kernel-provider")
    team = threads or len(os.sched_getaffinity(0))
    with opened(model, threads=team) as m:
        context = max(16384 if worker else 0, *lengths, *(d + steps + 16 for d in depths))
        config = RunnerConfig(threads=team, provider=provider, context_length=context, sequences=MOST_STREAMS)
        runner = NativeRunner(m.program, m.weights, config)
        rates = Rates(runner)
        if worker:
            serve_worker(rates, sys.stdin)
            return
        works = list(_works(rates, lengths, counts, depths, steps))
        rows, limits = _measure(works, runner, team, rounds)
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "model": model,
                    "threads": team,
                    "provider": runner.provider,
                    **limits,
                    "rows": [asdict(row) for row in rows],
                },
                indent=1,
            )
        )
        return
    typer.echo(f"{model}, {runner.provider}, {team} threads; median of {rounds} rounds")
    typer.echo(
        f"read bandwidth {limits['read_gb_s']:.1f} GB/s, "
        f"int8 peak {limits['int8_gmac_s']:.0f} G multiply-adds/s"
    )
    typer.echo(
        f"{'work':8} {'depth':>6} {'streams':>7} {'tokens/s':>10} {'lowest':>9} {'highest':>9} "
        f"{'of the limit':>12}"
    )
    for row in rows:
        typer.echo(
            f"{row.work:8} {row.depth:6} {row.streams:7} {row.tokens_per_second:10.1f} {row.lowest:9.1f} "
            f"{row.highest:9.1f} {row.floor_share:12.2f}"
        )


def _works(
    rates: Rates, lengths: list[int], counts: list[int], depths: list[int], steps: int
) -> Iterator[Work]:
    for n in lengths:
        yield Work("prefill", n, 1, n, -(-n // PREFILL_CHUNK), partial(rates.prefill, n))
    for d in depths:
        for b in counts:
            time = partial(rates.decode, streams=b, steps=steps, depth=d)
            yield Work("decode", d, b, b * steps, steps, time)


def _measure(
    works: list[Work], runner: NativeRunner, threads: int, rounds: int
) -> tuple[list[Row], dict[str, float]]:
    """Time every work once a round, the machine's limits before each; the first round only warms up."""
    machine = _native.MachineLimits(_native.Team(threads))
    times: list[list[float]] = [[] for _ in works]
    shares: list[list[float]] = [[] for _ in works]
    bandwidths, peaks = [], []
    for round_ in range(rounds + 1):
        for index, work in enumerate(works):
            bandwidth, peak = machine.read_bandwidth(), machine.multiply_adds(runner.provider)
            seconds = work.time()
            if round_ == 0:
                continue
            bandwidths.append(bandwidth)
            peaks.append(peak)
            # A step reads the weights once and multiplies each by every row; the larger time is its floor.
            read = work.steps * runner.step_bytes / bandwidth
            compute = work.tokens * runner.multiply_adds / peak
            times[index].append(seconds)
            shares[index].append(max(read, compute) / seconds)
    rows = []
    for work, seconds_each, share in zip(works, times, shares, strict=True):
        rate = [work.tokens / s for s in seconds_each]
        rows.append(
            Row(
                work.name,
                work.depth,
                work.streams,
                statistics.median(rate),
                min(rate),
                max(rate),
                statistics.median(share),
            )
        )
    limits = {"read_gb_s": statistics.median(bandwidths) / 1e9, "int8_gmac_s": statistics.median(peaks) / 1e9}
    return rows, limits


def _numbers(text: str, option: str) -> list[int]:
    try:
        numbers = [int(word) for word in text.split(",") if word]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1 or max(numbers) > MOST_COUNT:
        raise typer.BadParameter(
            f"expected whole numbers from 1 to {MOST_COUNT}, separated by commas", param_hint=option
        )
    return numbers
