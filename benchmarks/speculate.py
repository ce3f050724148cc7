"""Decode rates with and without drafts, interleaved, and whether the tokens are the same.

    python benchmarks/speculate.py --model qwen2.5-coder-0.5b-instruct

Three kinds of prompts: an edit of code and an extraction, whose answers repeat their prompts, and a story at
temperature 1, where nothing repeats. A rate is that of all streams together while all of them decode: drafts
let some end long before others, and a batch with fewer streams is slower with and without drafts. Prints the
median over the rounds, and that of the ratios of each round.
"""

import argparse
import asyncio
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from ferrite.api.threads import automatic_threads
from ferrite.catalogue import console_report, resolve
from ferrite.chat import ChatTemplate, Message
from ferrite.engine import Delta, Engine, EngineConfig, Finished, GenerationRequest
from ferrite.gguf import open_gguf
from ferrite.models import trace_model
from ferrite.program.runner import NativeRunner, RunnerConfig, load_runner
from ferrite.sampling import SamplingParams
from ferrite.telemetry import SpeculationStats
from ferrite.tokenizer import Tokenizer, load_tokenizer

CODE = '''import csv


class Inventory:
    """Items on stock, by name."""

    def __init__(self, path):
        self.path = path
        self.counts = {}

    def load(self):
        with open(self.path) as file:
            for row in csv.DictReader(file):
                self.counts[row["name"]] = int(row["count"])

    def save(self):
        with open(self.path, "w") as file:
            writer = csv.DictWriter(file, ["name", "count"])
            writer.writeheader()
            for name, count in sorted(self.counts.items()):
                writer.writerow({"name": name, "count": count})

    def take(self, name, count=1):
        if self.counts.get(name, 0) < count:
            raise ValueError(f"not enough {name} on stock")
        self.counts[name] -= count

    def total(self):
        return sum(self.counts.values())
'''
NAMES = ("Ada Lovelace", "Grace Hopper", "Edsger Dijkstra", "Barbara Liskov", "Donald Knuth", "Tony Hoare")
LETTERS = "".join(
    f"{name} wrote on {4 + n} March from {city}: invoice {4711 + 13 * n} over {99 + 17 * n}.50 EUR is "
    f"still open, please answer to {name.split()[0].lower()}@example.org. "
    for n, (name, city) in enumerate(
        zip(NAMES, ("London", "New York", "Rotterdam", "Boston", "Stanford", "Oxford"), strict=True)
    )
)


@dataclass(frozen=True, slots=True)
class Work:
    """One kind of prompt; ``{n}`` is the number of the stream, so that no two are equal."""

    name: str
    prompt: str
    temperature: float = 0.0
    goes_on: bool = False
    """Behind its end, since a short answer tells no rate."""


WORKS = (
    Work(
        "code edit",
        "Rename the class to Stock{n} and answer with the whole file and nothing else.\n\n"
        f"```python\n{CODE.replace('{', '{{').replace('}', '}}')}```",
    ),
    Work(
        "extraction",
        f"Letter {{n}}: {LETTERS}\n\nList for each sender: name, date, invoice, amount and address, as in "
        "the text, one line each.",
    ),
    Work(
        "nothing repeats",
        "Tell a strange story about a lighthouse, number {n}, without dialogue.",
        temperature=1.0,
        goes_on=True,
    ),
)


@dataclass(frozen=True, slots=True)
class Stream:
    """One answer, and when how many of its tokens came."""

    tokens: tuple[int, ...]
    arrivals: tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True)
class Run:
    """What one run came to."""

    tokens: tuple[tuple[int, ...], ...]
    rate: float
    drafts: SpeculationStats | None


def measure(
    runner: NativeRunner,
    tokenizer: Tokenizer,
    requests: Sequence[GenerationRequest],
    speculation: Literal["off", "ngram"],
) -> Run:
    """Run the requests together in an engine of their own."""
    config = EngineConfig(
        max_concurrent=len(requests), inference_wait_seconds=math.inf, speculation=speculation
    )
    engine = Engine(runner, tokenizer.detokenizer, config)

    async def serve() -> list[Stream]:
        return await asyncio.gather(*(read(engine, request) for request in requests))

    engine.start()
    try:
        streams = asyncio.run(serve())
    finally:
        engine.stop()
    return Run(tuple(stream.tokens for stream in streams), shared_rate(streams), engine.speculation_stats())


async def read(engine: Engine, request: GenerationRequest) -> Stream:
    """Read one answer to its end."""
    arrivals: list[tuple[float, int]] = []
    tokens: tuple[int, ...] = ()
    async for event in engine.submit(request):
        if isinstance(event, Delta):
            arrivals.append((time.perf_counter(), len(event.token_ids)))
        elif isinstance(event, Finished):
            tokens = event.token_ids
    return Stream(tokens, tuple(arrivals))


def shared_rate(streams: Sequence[Stream]) -> float:
    """Return the tokens a second while all streams decode: no prompt is read, and none has ended."""
    begin = max(stream.arrivals[0][0] for stream in streams)
    end = min(stream.arrivals[-1][0] for stream in streams)
    if end <= begin:
        raise SystemExit("an answer ended before another one began: there is no rate of all")
    decoded = sum(count for stream in streams for at, count in stream.arrivals if begin < at <= end)
    return decoded / (end - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="qwen2.5-coder-0.5b-instruct", help="GGUF file or catalogue name")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--tokens", type=int, default=200, help="of each answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=automatic_threads())
    given = parser.parse_args()

    with console_report() as report:
        path: Path = resolve(given.model, offline=False, report=report)
    with open_gguf(path) as file:
        tokenizer = load_tokenizer(file.metadata)
        template = ChatTemplate.from_metadata(file.metadata, tokenizer)
        config = RunnerConfig(given.threads, context_length=2048, sequences=max(given.streams))
        runner = load_runner(file, trace_model(file), config)

    def request(work: Work, n: int) -> GenerationRequest:
        messages = [Message("user", work.prompt.format(n=n))]
        segments = template.render_prompt(messages, now=datetime(2025, 1, 1, tzinfo=UTC))
        tokens = tokenizer.encode_segments(segments, add_bos=True)
        sampling = SamplingParams(temperature=work.temperature, seed=n)
        ends = frozenset() if work.goes_on else tokenizer.end_ids
        return GenerationRequest(str(n), tuple(tokens), given.tokens, sampling, end_ids=ends)

    print(f"{given.model}, {given.threads} threads, at most {given.tokens} tokens, {given.rounds} rounds")
    for work in WORKS:
        for streams in given.streams:
            requests = [request(work, n) for n in range(streams)]
            pairs = [
                (measure(runner, tokenizer, requests, "off"), measure(runner, tokenizer, requests, "ngram"))
                for _ in range(given.rounds)
            ]
            plain, drafted = zip(*pairs, strict=True)
            drafts = drafted[-1].drafts
            assert drafts is not None
            equal = len({run.tokens for run in (*plain, *drafted)}) == 1
            print(
                f"{work.name:16} {streams} streams  "
                f"plain {statistics.median(run.rate for run in plain):6.1f}  "
                f"drafts {statistics.median(run.rate for run in drafted):6.1f} tokens/s  "
                f"{statistics.median(b.rate / a.rate for a, b in pairs):5.2f}x  "
                f"{sum(map(len, plain[-1].tokens))} tokens, {drafts.drafted_tokens} drafted, "
                f"{drafts.accepted_tokens} came, {'equal' if equal else 'DIFFERENT'} tokens",
                flush=True,
            )


if __name__ == "__main__":
    main()
