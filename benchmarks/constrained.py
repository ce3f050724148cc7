"""What grammars cost whoever shares their batch: a free stream beside seven free or seven bound ones.

    python -m benchmarks.constrained
    python -m benchmarks.constrained --model qwen2.5-coder-0.5b-instruct --rounds 9 --tokens 192

In one process, without HTTP: eight streams start together, and what counts is the rate of the first, which
is free, from the moment all eight have a token until it ends. A round measures it beside seven free streams
and beside seven that follow a strict JSON schema of objects, strings, numbers, lists and enums, in turn.
The times are those of the calls on grammars: how long each took, and how much of it was CPU time of its
thread. Run from the repository root.
"""

import argparse
import asyncio
import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from ferrite.catalogue import console_report, resolve
from ferrite.engine import Delta, Engine, EngineConfig, Generation, GenerationRequest
from ferrite.gguf import open_gguf
from ferrite.grammar import Constraint, Grammar, GrammarCompiler
from ferrite.models import trace_model
from ferrite.program.runner import RunnerConfig, load_runner
from ferrite.sampling import SamplingParams
from ferrite.tokenizer import Tokenizer, load_tokenizer

STREAMS = 8
SUBJECTS = (
    "a login page that forgets what was typed",
    "a printer that prints every page twice",
    "a map that shows the wrong street",
    "a clock that is one hour late",
    "a mail that never arrives",
    "a search that finds nothing",
    "a button that cannot be seen",
    "a file that cannot be opened",
)
TICKET = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 1, "maximum": 99999},
        "title": {"type": "string", "maxLength": 80},
        "status": {"enum": ["open", "in progress", "closed"]},
        "score": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 4},
        "author": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 40},
                "age": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 130}, {"type": "null"}]},
                "active": {"type": "boolean"},
            },
            "required": ["name", "age", "active"],
            "additionalProperties": False,
        },
        "summary": {"type": "string", "maxLength": 200},
    },
    "required": ["id", "title", "status", "score", "tags", "author", "summary"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": TICKET, "minItems": 200}
"""So long that no stream ends before its token limit."""


@dataclass(slots=True)
class CallTimes:
    """Of one kind of call: seconds on the clock, and seconds of CPU."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def timed(self, call: Callable[..., Any], *arguments: object) -> Any:
        """Make the call."""
        wall, cpu = time.perf_counter(), time.thread_time()
        result = call(*arguments)
        self.cpu.append(time.thread_time() - cpu)
        self.wall.append(time.perf_counter() - wall)
        return result

    def summary(self) -> str:
        """Return mean, median, 99th percentile and most, in microseconds."""
        return "; ".join(
            f"{name} us mean {np.mean(times) * 1e6:.0f} p50 {np.percentile(times, 50) * 1e6:.0f} "
            f"p99 {np.percentile(times, 99) * 1e6:.0f} max {np.max(times) * 1e6:.0f}"
            for name, times in (("wall", self.wall), ("cpu", self.cpu))
        )


class TimedConstraint:
    """A constraint whose calls are timed."""

    def __init__(self, constraint: Constraint, masks: CallTimes, accepts: CallTimes) -> None:
        self._constraint = constraint
        self._masks = masks
        self._accepts = accepts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._constraint, name)

    def fill(self, target: object) -> Any:
        """Fill the mask and note the time."""
        return self._masks.timed(self._constraint.fill, target)

    def accept(self, token: int) -> None:
        """Accept the token and note the time."""
        self._accepts.timed(self._constraint.accept, token)


@dataclass(slots=True)
class Bench:
    """A running engine and what to ask of it."""

    engine: Engine
    tokenizer: Tokenizer
    grammar: Grammar
    tokens: int
    temperature: float
    masks: CallTimes = field(default_factory=CallTimes)
    accepts: CallTimes = field(default_factory=CallTimes)
    answers: list[str] = field(default_factory=list)
    """Of the last bound stream of each run."""

    def requests(self, *, bound: int, seed: int) -> list[GenerationRequest]:
        """Return eight requests, the last ``bound`` of them with the grammar."""
        requests = []
        for index, subject in enumerate(SUBJECTS):
            text = f"Here is a list of tickets about {subject}, written as JSON:\n"
            constraint = None
            if index >= STREAMS - bound:
                constraint = TimedConstraint(self.grammar.constraint(), self.masks, self.accepts)
            requests.append(
                GenerationRequest(
                    request_id=f"{seed}-{index}",
                    prompt_tokens=tuple(self.tokenizer.encode(text, parse_special=False, add_bos=True)),
                    max_tokens=self.tokens,
                    sampling=SamplingParams(temperature=self.temperature, seed=seed * STREAMS + index),
                    end_ids=self.tokenizer.end_ids,
                    ignore_end=constraint is None,
                    constraint=cast("Constraint | None", constraint),
                )
            )
        return requests

    async def rate(self, *, bound: int, seed: int) -> float:
        """Return the tokens per second of the first stream while all eight run."""
        generations = self.engine.submit_group(self.requests(bound=bound, seed=seed))
        times: list[list[float]] = [[] for _ in generations]
        texts = await asyncio.gather(*map(_read, generations, times))
        if bound:
            self.answers.append(texts[-1])
        start = max(stamps[0] for stamps in times)
        stop = min(stamps[-1] for stamps in times)
        counted = [stamp for stamp in times[0] if start <= stamp <= stop]
        return (len(counted) - 1) / (counted[-1] - counted[0])


async def _read(generation: Generation, stamps: list[float]) -> str:
    text = []
    async for event in generation:
        if isinstance(event, Delta):
            stamps += [time.perf_counter()] * len(event.token_ids)
            text.append(event.text)
    return "".join(text)


async def measure(bench: Bench, rounds: int) -> list[float]:
    """Print each round; returns the ratios."""
    ratios = []
    await bench.rate(bound=STREAMS - 1, seed=0)
    await bench.rate(bound=0, seed=0)
    bench.masks, bench.accepts = CallTimes(), CallTimes()
    for number in range(1, rounds + 1):
        order = (0, STREAMS - 1) if number % 2 else (STREAMS - 1, 0)
        rates = {bound: await bench.rate(bound=bound, seed=number) for bound in order}
        free, bound = rates[0], rates[STREAMS - 1]
        ratios.append(bound / free)
        print(
            f"round {number}: {free:.1f} tokens/s beside free streams, {bound:.1f} beside bound ones, "
            f"ratio {ratios[-1]:.3f}",
            flush=True,
        )
    return ratios


def main() -> None:
    """Print rates, their ratio, and the times of the calls on grammars."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m-instruct", help="catalogue name or GGUF file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=160, help="of each stream")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--show", action="store_true", help="print one bound answer")
    options = parser.parse_args()
    with console_report() as report:
        path = resolve(options.model, offline=True, report=report)
    with open_gguf(path) as file:
        tokenizer = load_tokenizer(file.metadata)
        config = RunnerConfig(threads=options.threads, context_length=1024, sequences=STREAMS)
        runner = load_runner(file, trace_model(file), config)
    started = time.perf_counter()
    compiler = GrammarCompiler(tokenizer)
    compiler.prepare()
    prepared = time.perf_counter()
    grammar = compiler.compile_json_schema(SCHEMA, strict=True)
    print(f"vocabulary {prepared - started:.2f} s, schema {time.perf_counter() - prepared:.3f} s")
    engine = Engine(
        runner,
        tokenizer.detokenizer,
        EngineConfig(max_concurrent=STREAMS, inference_wait_seconds=math.inf, arrival_window_seconds=0.005),
    )
    bench = Bench(engine, tokenizer, grammar, options.tokens, options.temperature)
    engine.start()
    try:
        ratios = asyncio.run(measure(bench, options.rounds))
    finally:
        engine.stop()
    print(f"median ratio {statistics.median(ratios):.3f}, load average {os.getloadavg()[0]:.1f}")
    print(f"masks ({len(bench.masks.wall)}): {bench.masks.summary()}")
    print(f"accepts ({len(bench.accepts.wall)}): {bench.accepts.summary()}")
    if options.show:
        print(bench.answers[-1])


if __name__ == "__main__":
    main()
