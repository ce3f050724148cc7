"""``ferrite bench --serve``: what HTTP, text and the scheduler cost beside the engine alone."""

import gc
import json
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from ferrite.api import LoadedModel, ServerConfig, ServerState
from ferrite.api.options import Address
from ferrite.api.serving import Server, bind_listener, listener_address
from ferrite.api.threads import automatic_threads
from ferrite.bench.rates import Rates
from ferrite.cli.load import load_model
from ferrite.cli.server import SWITCH_SECONDS
from ferrite.program.runner import NativeRunner

START_SECONDS = 30.0
IDLE_SECONDS = 30.0
CLIENT_SECONDS = 3600.0
PROMPTS = (
    "The numbers from {} on, one after the other, separated by commas: {}, {}, {},",
    "A table of all whole numbers and their squares, from {} on, one in a line. {}, {}, {},",
)


class ServeError(RuntimeError):
    """A server or client that did not do its part; one line."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What is served, and how often."""

    model: str
    threads: int
    """0 for as many as a server would take"""
    provider: str
    streams: int
    tokens: int
    """that each stream generates"""
    rounds: int


@dataclass(frozen=True, slots=True)
class ServeRound:
    """One wave of streams over HTTP, and as many of the engine alone."""

    http_tokens_per_second: float
    """every stream's tokens behind its first over the time behind its first, all streams together"""
    alone_tokens_per_second: float
    inter_token_p50_ms: float
    inter_token_p99_ms: float
    python_ms: float
    """a step, between two native steps"""
    python_share: float
    """of the time from the first native step to the last"""
    ended_early: int
    """streams that ended before their budget: those that go on are faster then"""

    @property
    def ratio(self) -> float:
        """HTTP rate ÷ rate of the engine alone."""
        return self.http_tokens_per_second / self.alone_tokens_per_second


def serve_bench(options: ServeOptions, *, as_json: bool) -> str:
    """Measure round by round, a first one to warm up, and return what is to be printed.

    The server runs in a thread of this process and the client in a process of its own, as in real use.
    Raises ``ModelLoadError`` and ``ServeError``.
    """
    threads = options.threads or automatic_threads()
    config = ServerConfig(
        bind=Address("127.0.0.1", 0),
        model=options.model,
        threads=threads,
        kernel_provider=options.provider,
        experimental_batched_decode=True,
        max_batch_streams=options.streams,
        hard_max_tokens=max(256, options.tokens),
    )
    runners: list[NativeRunner] = []
    model = load_model(config, on_runner=runners.append)
    (runner,) = runners
    rates = Rates(runner, streams=options.streams)
    rounds = []
    with _serving(config, model) as url:
        for index in range(options.rounds + 1):
            found = _round(options, url, model, runner, rates)
            if index > 0:
                rounds.append(found)
    head = {"model": options.model, "threads": threads, "provider": runner.provider}
    if as_json:
        about = {"streams": options.streams, "tokens": options.tokens}
        return json.dumps(
            head | about | {"rounds": [asdict(each) | {"ratio": each.ratio} for each in rounds]}, indent=1
        )
    title = f"{options.model}, {runner.provider}, {threads} threads, {options.streams} streams of "
    return "\n".join(_lines(f"{title}{options.tokens} tokens; median of {options.rounds} rounds", rounds))


def _round(
    options: ServeOptions, url: str, model: LoadedModel, runner: NativeRunner, rates: Rates
) -> ServeRound:
    runner.record_times()
    report = _drive(options, url)
    _wait_idle(model)
    times = runner.recorded_times()
    streams, gaps = report["stream_tokens_per_second"], report["inter_token_ms"]
    if report["succeeded"] != options.streams or streams is None or gaps is None:
        raise ServeError(
            f"{report['succeeded']} of {options.streams} streams were answered, errors {report['errors']}; "
            f"each must have two tokens or more"
        )
    depth = max(1, report["usage"]["prompt_tokens"] // options.streams)
    alone = rates.decode(streams=options.streams, steps=options.tokens, depth=depth)
    return ServeRound(
        http_tokens_per_second=streams["mean"] * streams["count"],
        alone_tokens_per_second=options.streams * options.tokens / alone,
        inter_token_p50_ms=gaps["p50"],
        inter_token_p99_ms=gaps["p99"],
        python_ms=1000 * (times.span_seconds - times.seconds) / times.steps,
        python_share=1 - times.seconds / times.span_seconds,
        ended_early=options.streams - report["finish_reasons"].get("length", 0),
    )


def _drive(options: ServeOptions, url: str) -> dict[str, Any]:
    """Run ``ferrite-throughput`` once, a request for each stream, and return its report."""
    flags = ["--endpoint", "completions", "--stream", "--stream-usage", "--no-token-ids", "--json"]
    count = str(options.streams)
    numbers = ["--requests", count, "--concurrency", count, "--max-tokens", str(options.tokens)]
    prompts = []
    for index in range(options.streams):
        start = 100 * index + 1
        text = PROMPTS[index % len(PROMPTS)].format(start, start, start + 1, start + 2)
        prompts += ["--prompt", text]
    command = [sys.executable, "-m", "ferrite.cli.throughput", "--base-url", url]
    try:
        done = subprocess.run(
            [*command, *flags, *numbers, *prompts], capture_output=True, text=True, timeout=CLIENT_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise ServeError(f"the client did not end within {CLIENT_SECONDS:.0f} s") from None
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise ServeError(f"the client ended with status {done.returncode}: {done.stderr.strip()}") from None
    return report


def _wait_idle(model: LoadedModel) -> None:
    """Return when the engine has put its last stream away: its thread may then be followed by ours."""
    deadline = time.monotonic() + IDLE_SECONDS
    while model.engine.active:
        if time.monotonic() > deadline:
            raise ServeError("the engine did not become idle")
        time.sleep(0.005)


@contextmanager
def _serving(config: ServerConfig, model: LoadedModel) -> Iterator[str]:
    """Serve in a thread; yields the server's URL."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.freeze()
    ready = threading.Event()
    with bind_listener(config.bind) as listener:
        server = Server(config, ServerState(model), ready.set)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="http")
        thread.start()
        try:
            if not ready.wait(START_SECONDS):
                raise ServeError("the server did not start")
            yield f"http://{listener_address(listener)}"
        finally:
            server.handle_exit(signal.SIGTERM, None)
            thread.join()
            model.engine.stop()
            gc.unfreeze()
            sys.setswitchinterval(before)


def _lines(title: str, rounds: list[ServeRound]) -> Iterator[str]:
    def median(name: str) -> float:
        return float(statistics.median(getattr(each, name) for each in rounds))

    p50, p99 = median("inter_token_p50_ms"), median("inter_token_p99_ms")
    every = " ".join(f"{each.ratio:.2f}" for each in rounds)
    yield title
    yield f"over HTTP           {median('http_tokens_per_second'):9.1f} tokens/s"
    yield f"engine alone        {median('alone_tokens_per_second'):9.1f} tokens/s"
    yield f"HTTP : alone        {median('ratio'):9.2f}    round by round {every}"
    yield f"between two tokens  {p50:9.1f} ms p50, {p99:.1f} ms p99 ({p99 / p50:.2f}x)"
    python_ms, share = median("python_ms"), 100 * median("python_share")
    yield f"Python a step       {python_ms:9.2f} ms, {share:.1f} % of the step"
    early = sum(each.ended_early for each in rounds)
    if early:
        yield f"{early} streams ended before their budget, and those beside them were faster then"
