"""Servers on the scripted runner whose requests can be brought into one step, and what they may leave."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from ferrite.engine import EngineConfig
from ferrite.kv import PrefixLimits
from ferrite.program.step import StepBatch
from tests.api.support import WAIT_SECONDS, Gate, Running, completion_body, eventually, running_server
from tests.engine.fakes import FakeRunner, expected_completion

COMPLETIONS = "/v1/completions"
Fault = Callable[[StepBatch], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one request ended: its token ids, or the code of its error."""

    status: int
    token_ids: tuple[int, ...]
    error: str | None
    streamed: bool

    @property
    def failed_cleanly(self) -> bool:
        """A 500, or an error event as the last of a stream."""
        return self.error == "internal_error" and self.status == (200 if self.streamed else 500)


def call(client: httpx.Client, prompt: Sequence[int], count: int, **fields: Any) -> Outcome:
    """Ask for a completion of ``prompt``; a stream must end with its end mark or with an error."""
    body = completion_body(list(prompt), max_tokens=count, return_token_ids=True, **fields)
    answer = client.post(COMPLETIONS, json=body)
    if answer.status_code != 200:
        error = answer.json()["error"]
        return Outcome(answer.status_code, (), error["code"], streamed=False)
    if not fields.get("stream"):
        (choice,) = answer.json()["choices"]
        return Outcome(200, tuple(choice["token_ids"]), None, streamed=False)
    *events, end = answer.text.removesuffix("\n\n").split("\n\n")
    error = None
    if end != "data: [DONE]":
        name, data = end.split("\n")
        assert name == "event: error"
        error = msgspec.json.decode(data.removeprefix("data: "))["error"]["code"]
    chunks = [msgspec.json.decode(event.removeprefix("data: ")) for event in events]
    ids = [token for chunk in chunks for token in chunk["choices"][0].get("token_ids") or ()]
    return Outcome(200, tuple(ids), error, streamed=True)


def expected(prompt: Sequence[int], count: int, *, streamed: bool) -> Outcome:
    """What the request gets when nothing fails."""
    return Outcome(200, expected_completion(prompt, count), None, streamed)


@dataclass
class Bench:
    """A server whose steps wait for a gate."""

    running: Running
    client: httpx.Client
    gate: Gate
    callers: ThreadPoolExecutor
    fault: Fault | None = None
    """Runs before each step, behind the gate."""

    @property
    def runner(self) -> FakeRunner:
        return self.running.runner

    def submit(self, prompt: Sequence[int], count: int, **fields: Any) -> Future[Outcome]:
        """Send a request and return when the engine has it."""
        engine = self.running.engine
        before = engine.active + engine.waiting
        outcome = self.callers.submit(call, self.client, prompt, count, **fields)
        eventually(lambda: engine.active + engine.waiting == before + 1)
        return outcome

    def before_step(self, batch: StepBatch) -> None:
        self.gate(batch)
        if self.fault is not None:
            self.fault(batch)

    def check_idle(self) -> None:
        """Nothing of any request is left: no permit, block or reservation; and the engine lives."""
        engine = self.running.engine
        eventually(lambda: not engine._unfinished and engine.active == engine.waiting == 0)
        assert engine.healthy
        stats = self.client.get("/v1/stats").json()
        assert (stats["in_flight"], stats["active"], stats["queued"]) == (0, 0, 0)
        batcher = engine.batcher()
        assert batcher.kv_blocks_free == batcher.kv_blocks_total > 0
        batch = engine._batch
        eventually(lambda: batch.n_active == 0)
        batch.audit()
        kv = batch._kv
        cached = {block for held in kv._prefixes.holders() for block in held} if kv._prefixes else set()
        assert kv._pool.n_free == kv._pool.n_blocks - len(cached)


@contextmanager
def bench(runner: FakeRunner | None = None, *, streams: int = 4, **options: Any) -> Iterator[Bench]:
    """Serve with ``streams`` batch streams and as many places behind them, a KV budget and a prefix cache."""
    runner = runner or FakeRunner(n_blocks=512, context_length=256)
    config = EngineConfig(
        max_concurrent=streams,
        inference_wait_seconds=WAIT_SECONDS,
        waiting_limit=streams,
        session_positions=256,
        prefix_cache=PrefixLimits(max_entries=4, max_bytes=64 << 20),
    )
    gate = Gate()
    with (
        running_server(
            runner, engine=config, hard_max_tokens=200, experimental_prefix_cache=True, **options
        ) as running,
        running.client() as client,
        ThreadPoolExecutor(2 * streams) as callers,
    ):
        made = Bench(running, client, gate, callers)
        runner.before_step = made.before_step
        try:
            yield made
        finally:
            gate.open()
