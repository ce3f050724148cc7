"""``ferrite bench``: what this machine allows, what the engine makes of it, and what others make of it."""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ferrite import _native
from ferrite.bench.compare import Comparison, RunWork, compare
from ferrite.bench.measure import Machine, measure, run_work
from ferrite.bench.peers import PEERS, Peer, PeerError, find_peers, start_peer
from ferrite.bench.plot import PlotError, check_plot, plot_comparison, plot_rows
from ferrite.bench.rates import MOST_COUNT, MOST_STREAMS, Rates, serve_worker
from ferrite.bench.works import Work, works
from ferrite.cli.bench_report import comparison_json, comparison_lines, row_lines, rows_json
from ferrite.cli.bench_serve import ServeOptions, serve_bench
from ferrite.cli.model import DEFAULT_MODEL, ModelOption, OpenedModel, ThreadsOption, opened
from ferrite.program.runner import NativeRunner, RunnerConfig

STEPS, SERVED_STEPS = 32, 128
WORKER_POSITIONS = 16384
"""Positions of each sequence for a program that asks later: memory is taken as they are written."""

LENGTHS, STREAMS, DEPTHS = "16,128,512,2048", "1,2,4,8,16", "32,1024,4096"
COMPARED_LENGTHS, COMPARED_STREAMS, COMPARED_DEPTHS = "512", "1,4,8", "32"
"""Fewer: another engine may take ten times as long, and fills every sequence of every round anew."""


def bench(
    model: ModelOption = DEFAULT_MODEL,
    threads: ThreadsOption = 0,
    provider: Annotated[
        str, typer.Option("--kernel-provider", help="auto, portable or an instruction set.")
    ] = "auto",
    prefill: Annotated[
        str | None,
        typer.Option("--prefill", help=f"Prompt lengths ({LENGTHS}; {COMPARED_LENGTHS} with --compare)."),
    ] = None,
    streams: Annotated[
        str | None,
        typer.Option(
            "--streams",
            help=f"Concurrent sequences ({STREAMS}; {COMPARED_STREAMS} with --compare; 8 with --serve).",
        ),
    ] = None,
    depth: Annotated[
        str | None,
        typer.Option(
            "--depth", help=f"Context depths of decode ({DEPTHS}; {COMPARED_DEPTHS} with --compare)."
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            min=1,
            max=MOST_COUNT,
            help=f"Decode steps timed at once ({STEPS}; {SERVED_STEPS} with --serve).",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, max=1000, help="Rounds; the median counts.")] = 5,
    compared: Annotated[
        bool,
        typer.Option(
            "--compare", help=f"Beside installed peers ({', '.join(peer.project for peer in PEERS)})."
        ),
    ] = False,
    python: Annotated[
        str,
        typer.Option(
            "--compare-python", metavar="PATH", help="The Python that has the peers.", show_default="this one"
        ),
    ] = sys.executable,
    served: Annotated[
        bool, typer.Option("--serve", help="Over HTTP on loopback, beside the engine alone.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw the result: .png or .svg, by matplotlib."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    worker: Annotated[
        bool, typer.Option("--worker", help="Answer JSON lines on standard input instead.")
    ] = False,
) -> None:
    """Measure prefill and decode beside the machine's read bandwidth and int8 peak."""
    if sum((compared, served, worker)) > 1:
        raise typer.BadParameter("only one of --compare, --serve and --worker", param_hint="--compare")
    if provider not in (providers := ("auto", *_native.providers())):
        raise typer.BadParameter(f"expected one of {', '.join(providers)}", param_hint="--kernel-provider")
    if plot is not None:
        _check_plot(plot, can_draw=not (served or worker))
    lengths = _numbers(prefill or (COMPARED_LENGTHS if compared else LENGTHS), "--prefill")
    counts = _numbers(streams or (COMPARED_STREAMS if compared else "8" if served else STREAMS), "--streams")
    depths = _numbers(depth or (COMPARED_DEPTHS if compared else DEPTHS), "--depth")
    if max(counts) > MOST_STREAMS:
        raise typer.BadParameter(f"at most {MOST_STREAMS} streams", param_hint="--streams")
    if served:
        if len(counts) > 1:
            raise typer.BadParameter("one number of streams with --serve", param_hint="--streams")
        options = ServeOptions(model, threads, provider, counts[0], steps or SERVED_STEPS, rounds)
        typer.echo(serve_bench(options, as_json=as_json))
        return
    peers = _peers(python) if compared else []
    team = threads or len(os.sched_getaffinity(0))
    with opened(model, threads=team) as m:
        asked = list(works(lengths, counts, depths, steps or STEPS))
        runner = _runner(m, asked, team, provider, worker=worker)
        rates = Rates(runner)
        if worker:
            serve_worker(rates, sys.stdin)
            return
        title = f"{model}, {runner.provider}, {team} threads; median of {rounds} rounds"
        head = {"model": model, "threads": team, "provider": runner.provider}
        if compared:
            comparisons = _compare(rates, asked, m.file.paths[0], python, peers, team, rounds)
            missing = [peer.project for peer in PEERS if peer not in peers]
            found = head | comparison_json(comparisons, missing)
            _print(title, found, comparison_lines(comparisons), as_json=as_json)
            if plot is not None:
                plot_comparison(comparisons, title, plot)
            return
        machine = Machine(runner, team)
        rows = measure(rates, asked, runner, machine, rounds=rounds, threads=team)
    limits = machine.limits()
    _print(title, head | rows_json(rows, limits), row_lines(rows, limits), as_json=as_json)
    if plot is not None:
        plot_rows(rows, title, plot)


def _runner(
    model: OpenedModel, asked: Sequence[Work], threads: int, provider: str, *, worker: bool
) -> NativeRunner:
    context = max(work.depth + work.steps for work in asked)
    return NativeRunner(
        model.program,
        model.weights,
        RunnerConfig(
            threads=threads,
            provider=provider,
            context_length=max(WORKER_POSITIONS, context) if worker else context,
            sequences=MOST_STREAMS,
        ),
    )


def _peers(python: str) -> list[Peer]:
    """Return the peers that ``python`` has; raises ``PeerError`` when there is none."""
    found = find_peers(python)
    missing = ", ".join(peer.project for peer in PEERS if peer not in found)
    if not found:
        raise PeerError(f"nothing to compare with: {python} has none of {missing} (see --compare-python)")
    if missing:
        typer.echo(f"not compared, since {python} does not have it: {missing}", err=True)
    return found


def _compare(
    rates: Rates,
    asked: Sequence[Work],
    path: Path,
    python: str,
    peers: Sequence[Peer],
    threads: int,
    rounds: int,
) -> list[Comparison]:
    engines: dict[str, RunWork] = {"ferrite": partial(run_work, rates)}
    with ExitStack() as stack:
        for peer in peers:
            process = start_peer(peer, python, path, threads=threads, works=asked)
            stack.enter_context(process)
            process.wait_ready()
            engines[peer.name] = process.run
        return compare(engines, asked, rounds=rounds)


def _print(title: str, found: dict[str, Any], lines: Iterable[str], *, as_json: bool) -> None:
    typer.echo(json.dumps(found, indent=1) if as_json else "\n".join([title, *lines]))


def _check_plot(path: Path, *, can_draw: bool) -> None:
    if not can_draw:
        raise typer.BadParameter("not with --serve or --worker", param_hint="--plot")
    try:
        check_plot(path)
    except PlotError as error:
        raise typer.BadParameter(str(error), param_hint="--plot") from error


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
