"""``ferrite-throughput``: a load on a running server, and what it measured."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any, NoReturn

import uvloop

from ferrite.operations.client import Client, Target, TransportError
from ferrite.operations.discovery import ToolError, find_model
from ferrite.operations.load import LoadPlan, run_load
from ferrite.operations.memory import MemorySampler, ResidentMemory, resident_bytes
from ferrite.operations.options import (
    ToolParser,
    UsageError,
    add_server_options,
    count,
    is_local,
    number,
    run_program,
    target_of,
    text,
)
from ferrite.operations.report import as_json, as_lines
from ferrite.operations.summary import Summary, summarise

PROGRAM = "ferrite-throughput"
USAGE_ERROR = 2
DEFAULT_PROMPT = "Explain in a few sentences why the sky is blue."
DEFAULT_MAX_TOKENS = 16
TIMEOUT_SECONDS = 300.0
_COUNT = 2**31 - 1
_INT64 = 2**63


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run: the load, its numbers, and the memory of the server's process."""

    plan: LoadPlan
    summary: Summary
    warmup_failed: int
    memory: ResidentMemory | None

    @property
    def repeatable(self) -> bool:
        """Two answers to one request ought to be the same."""
        return not self.plan.temperature or self.plan.seed is not None

    @property
    def passed(self) -> bool:
        """Every request was answered, and no answer differed from its like."""
        unstable = any(row.verdict == "unstable" for row in self.summary.stability)
        return not (self.summary.failed or self.warmup_failed or (unstable and self.repeatable))


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of every option."""
    parser = ToolParser(
        PROGRAM, "Drive a running Ferrite server, or another OpenAI-compatible one, and measure it."
    )
    add_server_options(parser, timeout_seconds=TIMEOUT_SECONDS)
    add = parser.add_argument
    add(
        "--endpoint",
        choices=("chat", "completions"),
        default="chat",
        help="route to drive (default: %(default)s)",
    )
    add(
        "--requests",
        metavar="N",
        type=count(1, _COUNT),
        default=16,
        help="requests to measure (default: %(default)s)",
    )
    add(
        "--concurrency",
        metavar="N",
        type=count(1, 4096),
        default=1,
        help="workers; each sends its next request when its last has ended (default: %(default)s)",
    )
    add(
        "--prompt",
        metavar="TEXT",
        action="append",
        type=text,
        help=f"prompt; repeated, the requests take them in turn (default: {DEFAULT_PROMPT!r})",
    )
    add(
        "--max-tokens",
        metavar="N",
        action="append",
        type=count(1, _COUNT),
        help=f"token budget; repeated, the requests take them in turn (default: {DEFAULT_MAX_TOKENS})",
    )
    add("--stream", action="store_true", help="stream the answers, which measures TTFT and token gaps")
    add("--stream-usage", action="store_true", help="ask for usage in streams; needs --stream")
    add(
        "--token-ids",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="ask for token ids, to see whether equal requests get equal answers (default: on)",
    )
    add("--prompt-cache-key", metavar="KEY", type=text, help="prefix-cache key of every request")
    add(
        "--temperature",
        metavar="T",
        type=number(0, 2),
        help="sampling temperature (default: the server's, greedy)",
    )
    add("--seed", metavar="N", type=count(-_INT64, _INT64 - 1), help="seed of every request")
    add(
        "--warmup",
        metavar="N",
        type=count(0, _COUNT),
        default=0,
        help="requests to send before measuring (default: %(default)s)",
    )
    add("--retry-busy", action="store_true", help="wait as a 429 says and send again (default: it failed)")
    add("--rss-pid", metavar="PID", type=count(1, _COUNT), help="sample this process's resident memory")
    add("--json", action="store_true", help="print JSON (default: key=value lines)")
    return parser


async def measure(
    target: Target, model_id: str | None, plan: LoadPlan, warmup: int, pid: int | None
) -> Measurement:
    """Run the load against the server; ``plan.model_id`` is filled in from what the server says.

    Raises ``ToolError`` or ``TransportError`` when the server cannot be used at all.
    """
    async with Client(target, connections=plan.concurrency) as client:
        found, _ = await find_model(client, model_id)
        plan = replace(plan, model_id=found)
        warm = await run_load(client, replace(plan, requests=warmup)) if warmup else None
        async with MemorySampler(pid) as memory:
            result = await run_load(client, plan)
    warmup_failed = sum(not sample.exchange.ok for sample in warm.samples) if warm is not None else 0
    return Measurement(plan, summarise(result), warmup_failed, memory.result())


def report_of(measurement: Measurement) -> dict[str, Any]:
    """Return what is printed."""
    plan, memory = measurement.plan, measurement.memory
    return {
        "passed": measurement.passed,
        "model": plan.model_id,
        "endpoint": plan.endpoint,
        "concurrency": plan.concurrency,
        "stream": plan.stream,
        **asdict(measurement.summary),
        "warmup_failed": measurement.warmup_failed,
        "rss_bytes": None if memory is None else asdict(memory),
    }


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the tool; 0 when every request was answered alike, 1 when not, 2 for a wrong command line."""
    try:
        options = build_parser().parse_args(arguments)
        if options.version:
            sys.stdout.write(f"{PROGRAM} {version('ferrite-server')}\n")
            return 0
        target = target_of(options, environ)
        _check(options)
    except UsageError as error:
        return _fail(str(error), USAGE_ERROR)
    plan = LoadPlan(
        endpoint=options.endpoint,
        model_id="",
        prompts=tuple(options.prompt or (DEFAULT_PROMPT,)),
        max_tokens=tuple(options.max_tokens or (DEFAULT_MAX_TOKENS,)),
        requests=options.requests,
        concurrency=options.concurrency,
        stream=options.stream,
        stream_usage=options.stream_usage,
        token_ids=options.token_ids,
        prompt_cache_key=options.prompt_cache_key,
        temperature=options.temperature,
        seed=options.seed,
        retry_busy=options.retry_busy,
        patience_seconds=options.timeout,
    )
    try:
        work = measure(target, options.model_id, plan, options.warmup, options.rss_pid)
        measurement = uvloop.run(work)
    except (ToolError, TransportError) as error:
        return _fail(str(error), 1)
    report = report_of(measurement)
    sys.stdout.write(as_json(report) if options.json else as_lines(report))
    return 0 if measurement.passed else 1


def main() -> NoReturn:
    """Entry point of the command."""
    run_program(run)


def _check(options: argparse.Namespace) -> None:
    if options.stream_usage and not options.stream:
        raise UsageError("--stream-usage needs --stream")
    if options.rss_pid is not None:
        if not is_local(options.base_url):
            raise UsageError(f"--rss-pid needs a server on this machine, not --base-url {options.base_url}")
        if resident_bytes(options.rss_pid) is None:
            raise UsageError(f"--rss-pid {options.rss_pid}: there is no such process")


def _fail(message: str, status: int) -> int:
    sys.stderr.write(f"{PROGRAM}: {message}\n")
    return status


if __name__ == "__main__":
    main()
