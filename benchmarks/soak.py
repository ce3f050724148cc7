"""A bounded soak: thousands of mixed requests, many abandoned, after which nothing may be left behind.

    python -m benchmarks.soak
    python -m benchmarks.soak --model qwen2.5-coder-0.5b-instruct --requests 500 --concurrency 4

Starts a server of its own with batching, a prefix cache and ``locus`` KV memory; sends streams, whole
answers, cache hits, wrong requests and requests whose client leaves; compares the idle server before and
after. Prints ``key=value`` lines; the exit status is 1 when a request failed, a block or a permit is still
taken, or memory grew. Run from the repository root.
"""

import argparse
import asyncio
import random
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from ferrite.catalogue import resolve
from ferrite.operations.client import Client, LiveStream, Target
from tests.e2e.process import API_KEY, WAIT_SECONDS, ferrite_server

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MODEL_ID = "ferrite-local"
SERVER = (
    "--experimental-prefix-cache", "--experimental-batched-decode",
    "--kv-backend", "locus", "--kv-tokens-per-block", "16", "--kv-max-tokens", "512",
)  # fmt: skip
CACHE_ENTRIES = 8
"""The server's default."""
MOST_GROWTH = 0.01
"""Of resident memory over the whole soak."""
LOG_TAIL = 8192
"""Characters of the server's log to show when a request failed."""
_FIELD = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to send."""

    requests: int = 2000
    warm_up: int = 400
    """Requests before the first reading of memory, of the same kinds."""
    concurrency: int = 8
    cancelled: float = 0.3
    """Share of requests whose client leaves."""
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Memory:
    """Of a process, in bytes."""

    resident: int
    written_and_swapped: int
    """What it alone holds and has written, in RAM or swapped out: other processes do not change it."""


@dataclass(slots=True)
class Result:
    """What came of a soak."""

    outcomes: Counter[str]
    """completed, left, rejected (wrong requests), busy, failed."""
    failures: list[str]
    """Words for what went wrong, the first few."""
    first: Memory
    last: Memory
    batcher: dict[str, int]
    """The engine's counters at the end."""
    serving: dict[str, Any]
    """``/v1/stats`` at the end."""
    seconds: float
    latencies: list[float] = field(repr=False)
    """Seconds of the completed requests, in order of their end."""

    @property
    def growth(self) -> float:
        """Change of resident memory as a share."""
        return self.last.resident / self.first.resident - 1

    @property
    def is_clean(self) -> bool:
        """Nothing failed and nothing is still taken."""
        taken = [self.serving[name] for name in ("in_flight", "active", "queued")]
        free = self.batcher["kv_blocks_free"] == self.batcher["kv_blocks_total"]
        return free and not any(taken) and not self.outcomes["failed"] and self.serving["ready"]

    def lines(self) -> Iterator[str]:
        """Yield ``key=value`` lines."""
        for name in ("completed", "left", "rejected", "busy", "failed"):
            yield f"{name}={self.outcomes[name]}"
        yield from (f"failure={failure}" for failure in self.failures)
        for name in ("in_flight", "active", "queued", "aborted"):
            yield f"server_{name}={self.serving[name]}"
        for name in ("kv_blocks_total", "kv_blocks_free", "kv_blocks_peak", "decode_steps", "prefill_tokens"):
            yield f"{name}={self.batcher[name]}"
        yield f"cached_tokens={self.serving['prefix_cache']['reused_tokens']}"
        yield f"rss_first_bytes={self.first.resident}"
        yield f"rss_last_bytes={self.last.resident}"
        yield f"rss_growth_percent={100 * self.growth:.3f}"
        yield f"written_swap_first_bytes={self.first.written_and_swapped}"
        yield f"written_swap_last_bytes={self.last.written_and_swapped}"
        for name, some in (("first", self.latencies[:100]), ("last", self.latencies[-100:])):
            if some:
                yield f"{name}_100_p50_ms={1000 * statistics.median(some):.1f}"
        yield f"seconds={self.seconds:.1f}"


def memory_of(pid: int) -> Memory:
    """Read what the kernel counts for process ``pid``."""
    fields = {name: int(kib) * 1024 for name, kib in _FIELD.findall(_rollup(pid))}
    return Memory(fields["Rss"], fields["Private_Dirty"] + fields["Swap"])


def _rollup(pid: int) -> str:
    return Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")


class Soak:
    """Sends the planned requests to one server."""

    def __init__(self, plan: Plan, client: Client, pid: int) -> None:
        self._plan = plan
        self._client = client
        self._pid = pid
        self._random = random.Random(plan.seed)
        self._outcomes: Counter[str] = Counter()
        self._failures: list[str] = []
        self._latencies: list[float] = []

    async def run(self) -> Result:
        """Warm up, read memory, send everything, and read again."""
        await self._fill_steps()
        await self._send(self._plan.warm_up)
        await self._settle()
        first = memory_of(self._pid)
        self._outcomes.clear()
        self._latencies.clear()
        started = time.monotonic()
        await self._send(self._plan.requests)
        seconds = time.monotonic() - started
        serving = await self._settle()
        return Result(
            outcomes=self._outcomes,
            failures=self._failures,
            first=first,
            last=memory_of(self._pid),
            batcher=(await self._read("/admin/stats"))["batcher"],
            serving=serving,
            seconds=seconds,
            latencies=self._latencies,
        )

    async def _send(self, count: int) -> None:
        waiting = iter(range(count))

        async def caller() -> None:
            for _ in waiting:
                await self._one()

        await asyncio.gather(*(caller() for _ in range(self._plan.concurrency)))

    async def _fill_steps(self) -> None:
        """Let the buffers of a step grow to their largest, which takes prompts and no decoding stream."""
        for _ in range(4):
            bodies = [_completion([3000 + n] * 120, max_tokens=1) for n in range(self._plan.concurrency)]
            await asyncio.gather(*(self._client.generate(COMPLETIONS, body) for body in bodies))

    async def _settle(self) -> dict[str, Any]:
        """Wait for an idle server whose cache holds the same as after every other soak; return its stats."""
        await self._idle()
        for number in range(CACHE_ENTRIES):
            body = _completion([2000 + number] * 40, max_tokens=2, prompt_cache_key=f"settled {number}")
            await self._client.generate(COMPLETIONS, body)
        return await self._idle()

    async def _idle(self) -> dict[str, Any]:
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                stats = await self._read("/v1/stats")
                if not any(stats[name] for name in ("in_flight", "active", "queued")):
                    return stats
                await asyncio.sleep(0.05)

    async def _read(self, path: str) -> dict[str, Any]:
        stats: dict[str, Any] = msgspec.json.decode((await self._client.get(path)).body)
        return stats

    async def _one(self) -> None:
        chance = self._random
        kind = chance.random()
        if kind < self._plan.cancelled:
            await self._leave(self._body(max_tokens=100), chunks=chance.randrange(4))
        elif kind < self._plan.cancelled + 0.1:
            await self._wrong()
        else:
            await self._whole(self._body(max_tokens=chance.randint(1, 12)))

    def _body(self, max_tokens: int) -> dict[str, Any]:
        """Return some completion: greedy or sampled, streamed or not, with a known beginning or without."""
        chance = self._random
        namespace = chance.randrange(6)
        known = [1000 + namespace] * 24 if namespace < 3 else []
        body = _completion(
            known + [chance.randrange(1000, 40_000) for _ in range(chance.randint(1, 40))],
            max_tokens=max_tokens,
            stream=chance.random() < 0.5,
        )
        if known:
            body["prompt_cache_key"] = str(namespace)
        if chance.random() < 0.3:
            body |= {"temperature": 1.0, "seed": chance.randrange(100), "repetition_penalty": 1.1}
        return body

    async def _whole(self, body: dict[str, Any]) -> None:
        exchange = await self._client.generate(COMPLETIONS, body)
        if exchange.ok:
            self._latencies.append(exchange.seconds)
        self._count("completed" if exchange.ok else "busy" if exchange.busy else "failed", exchange.failure)

    async def _wrong(self) -> None:
        path, body = self._random.choice(
            [
                (COMPLETIONS, _completion([1000] * 600)),
                (COMPLETIONS, _completion("x", temperature=9)),
                (COMPLETIONS, _completion("x", unknown=1)),
                (CHAT, {"model": "another", "messages": [{"role": "user", "content": "x"}]}),
                (CHAT, {"model": MODEL_ID, "messages": []}),
            ]
        )
        exchange = await self._client.generate(path, body)
        is_right = exchange.status in (400, 404)
        self._count("rejected" if is_right else "failed", f"status {exchange.status} for a wrong request")

    async def _leave(self, body: dict[str, Any], *, chunks: int) -> None:
        """Close the connection after some chunks of a stream, or some time into a whole answer."""
        if not body["stream"]:
            work = asyncio.ensure_future(self._client.generate(COMPLETIONS, body))
            await asyncio.wait([work], timeout=0.02 * chunks)
            work.cancel()
            await asyncio.wait([work])
            self._count("left")
            return
        status = None
        try:
            async with self._client.stream(COMPLETIONS, body) as live:
                status = live.status
                if status == 200:
                    await _read(live, chunks)
        except (aiohttp.ClientError, TimeoutError) as error:
            self._count("failed", f"a stream was cut: {error}")
            return
        is_right = status in (200, 429)
        self._count("left" if is_right else "failed", f"status {status} for a stream")

    def _count(self, outcome: str, failure: str | None = None) -> None:
        self._outcomes[outcome] += 1
        if outcome == "failed" and len(self._failures) < 10:
            self._failures.append(failure or "unknown")


async def _read(live: LiveStream, chunks: int) -> None:
    """Read so many chunks, or all when there are fewer."""
    if chunks == 0:
        return
    async for _ in live.events():
        chunks -= 1
        if chunks == 0:
            return


def _completion(prompt: Any, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL_ID, "prompt": prompt, **fields}


def soak(model: Path, plan: Plan, *arguments: str) -> Result:
    """Run ``plan`` against a new server with ``arguments`` beside the usual ones."""
    streams = ("--max-batch-streams", str(plan.concurrency), "--max-batch-queue", str(plan.concurrency))
    with ferrite_server(model, *SERVER, *streams, "--no-access-log", *arguments) as server:

        async def run() -> Result:
            async with Client(Target(server.url, API_KEY), connections=plan.concurrency) as client:
                return await Soak(plan, client, server.process.pid).run()

        result = asyncio.run(run())
        if result.outcomes["failed"]:
            sys.stderr.write(server.log[-LOG_TAIL:])
        return result


def main() -> int:
    """Run a soak as the command line says; print it and return the exit status."""
    usual = Plan()
    parser = argparse.ArgumentParser(description="A bounded soak that must leave nothing behind.")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="catalogue name or GGUF file")
    parser.add_argument("--requests", type=int, default=usual.requests)
    parser.add_argument("--warm-up", type=int, default=usual.warm_up)
    parser.add_argument("--concurrency", type=int, default=usual.concurrency)
    parser.add_argument(
        "--cancelled", type=float, default=usual.cancelled, help="share of clients that leave"
    )
    parser.add_argument("--seed", type=int, default=usual.seed)
    parser.add_argument("--threads", type=int, default=1)
    given = vars(parser.parse_args())
    model, threads = resolve(given.pop("model")), given.pop("threads")
    result = soak(model, Plan(**given), "--threads", str(threads))
    print(*result.lines(), sep="\n")
    passed = result.is_clean and result.growth <= MOST_GROWTH
    print(f"result={'pass' if passed else 'fail'}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
