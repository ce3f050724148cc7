"""An engine driven by hand, and clients that read as much as they are allowed to."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Self

from ferrite.engine import (
    Delta,
    Detokenizer,
    Engine,
    EngineBusy,
    EngineConfig,
    EngineStopped,
    Finished,
    Generation,
    GenerationFailed,
    GenerationRequest,
)
from ferrite.engine.events import Event
from ferrite.program.step import Runner
from tests.engine.fakes import ByteDetokenizer, FakeClock, FakeRunner, FreeDrafts


class Reader:
    """One client: reads as many events as it was allowed to."""

    def __init__(self, asked: GenerationRequest, generation: Generation) -> None:
        self.asked = asked
        self.generation = generation
        self.allowance = asyncio.Semaphore(0)
        self.events: list[Event] = []
        self.admitted = False
        self.outcome: Exception | str | None = None
        self.task = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        try:
            await self.generation.admitted()
            self.admitted = True
            while True:
                await self.allowance.acquire()
                self.events.append(await anext(self.generation))
        except StopAsyncIteration:
            self.outcome = "ended"
        except (EngineBusy, EngineStopped, GenerationFailed) as error:
            self.outcome = error

    def allow(self, events: int) -> None:
        for _ in range(events):
            self.allowance.release()

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(t for event in self.events if isinstance(event, Delta) for t in event.token_ids)

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, Delta))

    @property
    def finished(self) -> Finished | None:
        last = self.events[-1] if self.events else None
        return last if isinstance(last, Finished) else None


class Bench:
    """An engine driven by hand."""

    def __init__(
        self,
        runner: Runner | None = None,
        *,
        detokenizer: Callable[[], Detokenizer] = ByteDetokenizer,
        drafts_are_free: bool = False,
        **limits: Any,
    ) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = FakeClock()
        self._runner = runner or FakeRunner()
        self.engine = Engine(self._runner, detokenizer, EngineConfig(**limits), clock=self.clock)
        if drafts_are_free:
            assert self.engine._batch._speculator is not None
            self.engine._batch._speculator._times = FreeDrafts()
        self.readers: list[Reader] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def runner(self) -> FakeRunner:
        """The fake one, where the test did not bring another."""
        assert isinstance(self._runner, FakeRunner)
        return self._runner

    def submit(self, asked: GenerationRequest, *, allowance: int = 10_000, continues: bool = False) -> Reader:
        return self.submit_group([asked], allowance=allowance, continues=continues)[0]

    def submit_group(
        self, asked: Sequence[GenerationRequest], *, allowance: int = 10_000, continues: bool = False
    ) -> list[Reader]:
        async def inside() -> list[Reader]:
            generations = self.engine.submit_group(asked, continues=continues)
            return [Reader(*pair) for pair in zip(asked, generations, strict=True)]

        readers = self.loop.run_until_complete(inside())
        for reader in readers:
            reader.allow(allowance)
        self.readers += readers
        self.spin()
        return readers

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.engine.step()
            # As the next step would.
            self.engine._batch.wake_readers()
            self.spin()

    def spin(self) -> None:
        """Let every task run until it waits."""

        async def turns() -> None:
            for _ in range(12):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turns())

    def expire(self) -> None:
        """What a reader's timer does."""
        self.engine._settle_now()
        self.spin()

    def check_idle(self) -> None:
        self.engine._batch.audit()
        assert self.engine._batch.n_active == 0
        cache = self.engine._batch._kv._prefixes
        cached = {block for blocks in cache.holders() for block in blocks} if cache else set()
        assert self.engine._batch._kv._pool.n_free == self._runner.n_blocks - len(cached)
        assert self.engine._admission.n_holding == 0
        assert self.engine._admission.n_waiting == 0
        assert self.engine._admission.reserved_blocks == 0
        assert not self.engine._unfinished

    def close(self) -> None:
        self.engine._batch.close()
        for reader in self.readers:
            reader.task.cancel()
        self.spin()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
