"""The engine with its thread, read by real asyncio tasks."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from ferrite.engine import (
    Delta,
    Engine,
    EngineBusy,
    EngineConfig,
    EngineStopped,
    Finished,
    Generation,
    GenerationFailed,
)
from ferrite.engine.events import Event
from ferrite.program.step import StepBatch
from tests.engine.fakes import (
    RULES,
    ByteDetokenizer,
    FakeRunner,
    expected_answer,
    expected_completion,
    request,
)

# Only a hanging test waits this long.
PATIENCE_SECONDS = 20


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await test()

    asyncio.run(bounded())


class Gate:
    """Lets the engine thread through one step at a time."""

    def __init__(self) -> None:
        self._entered = threading.Semaphore(0)
        self._permits = threading.Semaphore(0)

    def __call__(self, batch: StepBatch) -> None:
        self._entered.release()
        assert self._permits.acquire(timeout=PATIENCE_SECONDS)

    async def entered(self) -> None:
        """Return when the engine thread is inside the next step."""
        assert await asyncio.to_thread(self._entered.acquire, timeout=PATIENCE_SECONDS)

    def open(self, steps: int = 1) -> None:
        for _ in range(steps):
            self._permits.release()


@asynccontextmanager
async def running(runner: FakeRunner | None = None, **limits: float) -> AsyncIterator[Engine]:
    engine = Engine(runner or FakeRunner(), ByteDetokenizer, EngineConfig(**limits))  # type: ignore[arg-type]
    engine.start()
    try:
        yield engine
    finally:
        await asyncio.to_thread(engine.stop)


async def collect(generation: Generation) -> list[Event]:
    events: list[Event] = []
    await collect_into(events, generation)
    return events


async def collect_into(events: list[Event], generation: Generation) -> None:
    with suppress(StopAsyncIteration):
        while True:
            events.append(await anext(generation))


def ids(events: list[Event]) -> tuple[int, ...]:
    return tuple(token for event in events if isinstance(event, Delta) for token in event.token_ids)


def test_many_requests_at_once() -> None:
    async def test() -> None:
        async with running(
            max_concurrent=4, inference_wait_seconds=float("inf"), prefill_chunk=8, event_queue=2
        ) as engine:
            prompts = [tuple(range(n, 2 * n + 1)) for n in range(40)]
            answers = await asyncio.gather(*(collect(engine.submit(request(p, 9))) for p in prompts))
            for prompt, events in zip(prompts, answers, strict=True):
                assert ids(events) == expected_completion(prompt, 9)
                assert isinstance(events[-1], Finished)
            assert engine.healthy

    run(test)


def mask_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("ferrite-masks")}


def test_groups_constraints_and_scores_at_once() -> None:
    async def test() -> None:
        others = mask_threads()
        async with running(
            max_concurrent=4, inference_wait_seconds=float("inf"), prefill_chunk=8, event_queue=2
        ) as engine:
            expected, generations = [], []
            for n in range(12):
                prompt = tuple(range(n, 2 * n + 2))
                grammars = ["endless", None, "complete"][: 1 + n % 3]
                group = [
                    request(
                        prompt,
                        7,
                        constraint=RULES[grammar]() if grammar else None,
                        top_logprobs=n % 2,
                        prompt_logprobs=n % 4 == 0,
                    )
                    for grammar in grammars
                ]
                generations += engine.submit_group(group)
                expected += [expected_answer(prompt, 7, grammar) for grammar in grammars]
            answers = await asyncio.gather(*map(collect, generations))
            for (tokens, reason), events in zip(expected, answers, strict=True):
                assert ids(events) == tokens
                assert isinstance(events[-1], Finished)
                assert events[-1].reason == reason
            assert engine.healthy
        assert mask_threads() <= others

    run(test)


def test_stop_during_a_step_ends_masks_and_requests() -> None:
    async def test() -> None:
        others = mask_threads()
        gate = Gate()
        async with running(FakeRunner(before_step=gate), max_concurrent=2) as engine:
            generations = [engine.submit(request((n,), 100, constraint=RULES["endless"]())) for n in range(2)]
            await gate.entered()
            stopping = asyncio.create_task(asyncio.to_thread(engine.stop))
            # A reader that does not read stops its generation long before the last of these.
            gate.open(200)
            await stopping
            for generation in generations:
                with pytest.raises(GenerationFailed, match="the server stopped"):
                    await collect(generation)
        assert mask_threads() <= others

    run(test)


def test_refusal_does_not_wait_for_the_running_step() -> None:
    async def test() -> None:
        gate = Gate()
        async with running(FakeRunner(before_step=gate)) as engine:
            first = engine.submit(request(max_tokens=1))
            await first.admitted()
            await gate.entered()
            with pytest.raises(EngineBusy):
                engine.submit(request())
            gate.open()
            assert len(await collect(first)) == 2

    run(test)


def test_waiting_time_ends_inside_a_long_step() -> None:
    async def test() -> None:
        gate = Gate()
        async with running(FakeRunner(before_step=gate), inference_wait_seconds=0.01) as engine:
            first = engine.submit(request(max_tokens=1))
            await gate.entered()
            second = engine.submit(request())
            with pytest.raises(EngineBusy, match="no inference permit was free in time"):
                await second.admitted()
            with pytest.raises(EngineBusy):
                await collect(second)
            gate.open()
            assert len(await collect(first)) == 2

    run(test)


def test_waiting_request_is_admitted_when_the_permit_comes_free() -> None:
    async def test() -> None:
        gate = Gate()
        async with running(FakeRunner(before_step=gate), inference_wait_seconds=PATIENCE_SECONDS) as engine:
            first = engine.submit(request(max_tokens=1))
            await gate.entered()
            second = engine.submit(request(max_tokens=1))
            admitted = asyncio.create_task(second.admitted())
            gate.open(2)
            await admitted
            assert len(await collect(second)) == len(await collect(first)) == 2

    run(test)


@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("where", ["loop", "other thread"])
def test_cancel_inside_a_step_frees_the_permit_when_it_ends(steps: int, where: str) -> None:
    async def test() -> None:
        gate = Gate()
        runner = FakeRunner(before_step=gate)
        async with running(runner, inference_wait_seconds=PATIENCE_SECONDS, prefill_chunk=4) as engine:
            left = engine.submit(request(range(8), max_tokens=50))
            waiting = engine.submit(request((1,), max_tokens=1))
            for _ in range(steps - 1):
                await gate.entered()
                gate.open()
            await gate.entered()
            if where == "loop":
                left.cancel()
            else:
                await asyncio.to_thread(left.cancel)
            assert await collect(left) == []
            gate.open(2)
            assert ids(await collect(waiting)) == expected_completion((1,), 1)
            assert len(runner.batches) == steps + 1

    run(test)


def test_reader_is_woken_by_a_cancel_from_elsewhere() -> None:
    async def test() -> None:
        gate = Gate()
        async with running(FakeRunner(before_step=gate)) as engine:
            generation = engine.submit(request())
            reading = asyncio.create_task(collect(generation))
            await gate.entered()
            await asyncio.to_thread(generation.cancel)
            assert await reading == []
            gate.open()

    run(test)


def test_slow_reader_pauses_only_itself_and_resumes() -> None:
    async def test() -> None:
        async with running(max_concurrent=2, event_queue=2) as engine:
            slow = engine.submit(request((1,), max_tokens=30))
            fast = engine.submit(request((2,), max_tokens=30))
            first = await anext(slow)
            assert ids(await collect(fast)) == expected_completion((2,), 30)
            assert len(slow._channel._events) <= 2
            assert ids([first, *await collect(slow)]) == expected_completion((1,), 30)

    run(test)


def test_failed_step_is_told_behind_the_text_before_it() -> None:
    async def test() -> None:
        runner = FakeRunner()

        def fail_third(batch: StepBatch) -> None:
            if len(runner.batches) == 3:
                raise RuntimeError("broken")

        runner.before_step = fail_third
        async with running(runner) as engine:
            generation = engine.submit(request())
            events: list[Event] = []
            with pytest.raises(GenerationFailed, match="RuntimeError"):
                await collect_into(events, generation)
            assert len(events) == 2
            assert await collect(generation) == []
            assert len(await collect(engine.submit(request(max_tokens=1)))) == 2

    run(test)


def test_a_step_wakes_the_loop_at_most_once_whatever_its_streams() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        schedule, calls = loop.call_soon_threadsafe, []

        def counting(callback: Callable[..., object], *args: Any, **kwargs: Any) -> asyncio.Handle:
            if getattr(callback, "__name__", "") == "_on_wake":
                calls.append(callback)
            return schedule(callback, *args, **kwargs)

        runner = FakeRunner()
        async with running(runner, max_concurrent=3) as engine:
            loop.call_soon_threadsafe = counting  # type: ignore[method-assign,assignment]
            try:
                generations = [engine.submit(request((n,), max_tokens=20)) for n in range(3)]
                await asyncio.gather(*map(collect, generations))
            finally:
                loop.call_soon_threadsafe = schedule  # type: ignore[method-assign]
            # Three grants, and steps for twenty tokens of each stream, which may start one after another.
            steps = len(runner.batches)
            assert 20 <= steps <= 60
            assert len(calls) <= 3 + steps

    run(test)


def test_idle_engine_blocks_without_a_timeout() -> None:
    async def test() -> None:
        engine = Engine(FakeRunner(), ByteDetokenizer, EngineConfig(inference_wait_seconds=5.0))
        waits: list[float | None] = []
        idle = threading.Event()
        wait = engine._work.wait

        def recording(timeout: float | None = None) -> bool:
            waits.append(timeout)
            idle.set()
            return wait(timeout)

        engine._work.wait = recording  # type: ignore[method-assign]
        engine.start()
        assert await asyncio.to_thread(idle.wait, PATIENCE_SECONDS)
        await collect(engine.submit(request(max_tokens=3)))
        await asyncio.to_thread(engine.stop)
        assert set(waits) == {None}

    run(test)


def test_death_of_the_engine_thread_fails_every_request() -> None:
    async def test() -> None:
        gate = Gate()
        broken = threading.Event()

        def clock() -> float:
            if broken.is_set():
                raise RuntimeError("no clock")
            return 0.0

        engine = Engine(
            FakeRunner(before_step=gate),
            ByteDetokenizer,
            EngineConfig(inference_wait_seconds=float("inf")),
            clock=clock,
        )
        engine.start()
        active, waiting = engine.submit(request()), engine.submit(request())
        await gate.entered()
        assert (engine.healthy, engine.failure) == (True, None)
        broken.set()
        gate.open()
        assert engine._thread is not None
        # A reader that still waits in line asks the broken clock how long.
        await asyncio.to_thread(engine._thread.join)
        for generation in (active, waiting):
            with pytest.raises(GenerationFailed, match="the engine failed: no clock"):
                await collect(generation)
        assert (engine.healthy, engine.failure) == (False, "the engine failed: no clock")
        with pytest.raises(EngineStopped, match="the engine failed: no clock"):
            engine.submit(request())
        engine.stop()

    run(test)


def test_leaked_block_makes_the_engine_unhealthy() -> None:
    async def test() -> None:
        async with running() as engine:
            engine._batch._kv._pool.allocate(1)
            await collect(engine.submit(request(max_tokens=1)))
            assert engine._thread is not None
            await asyncio.to_thread(engine._thread.join)
            assert engine.failure == "the engine failed: KV block 0 has 1 references and 0 holders"

    run(test)


def test_drain_lets_running_and_waiting_requests_end() -> None:
    async def test() -> None:
        gate = Gate()
        async with running(FakeRunner(before_step=gate), inference_wait_seconds=PATIENCE_SECONDS) as engine:
            generations = [engine.submit(request(max_tokens=2)) for _ in range(2)]
            answers = asyncio.gather(*map(collect, generations))
            draining = asyncio.create_task(engine.drain(PATIENCE_SECONDS))
            await gate.entered()
            with pytest.raises(EngineStopped, match="draining"):
                engine.submit(request())
            assert not draining.done()
            gate.open(4)
            await draining
            assert [len(ids(events)) for events in await answers] == [2, 2]
            await engine.drain(0)

    run(test)


def test_drain_takes_work_that_continues() -> None:
    async def test() -> None:
        gate = Gate()
        async with running(FakeRunner(before_step=gate)) as engine:
            first = asyncio.create_task(collect(engine.submit(request(max_tokens=1))))
            draining = asyncio.create_task(engine.drain(PATIENCE_SECONDS))
            await gate.entered()
            second = engine.submit(request(max_tokens=2), continues=True)
            gate.open(3)
            assert len(ids(await collect(second))) == 2
            await draining
            assert len(ids(await first)) == 1
        with pytest.raises(EngineStopped, match="stopping"):
            engine.submit(request(), continues=True)

    run(test)


def test_drain_fails_what_is_left_when_its_time_is_over() -> None:
    async def test() -> None:
        async with running(inference_wait_seconds=PATIENCE_SECONDS, event_queue=1) as engine:
            # Nobody reads the first one's second event, so it cannot end.
            active, waiting = engine.submit(request()), engine.submit(request())
            first = await anext(active)
            await engine.drain(0.01)
            assert ids([first]) == expected_completion((1, 2, 3), 1)
            with pytest.raises(GenerationFailed, match="stopped before"):
                await collect(active)
            with pytest.raises(EngineStopped, match="stopped before"):
                await waiting.admitted()

    run(test)


def test_stop_without_start_fails_what_was_submitted() -> None:
    async def test() -> None:
        engine = Engine(FakeRunner(), ByteDetokenizer, EngineConfig())
        generation = engine.submit(request())
        engine.stop()
        engine.stop()
        with pytest.raises(GenerationFailed):
            await collect(generation)
        with pytest.raises(EngineStopped, match="stopping"):
            engine.submit(request())

    run(test)


def test_requests_of_a_closed_loop_are_dropped() -> None:
    engine = Engine(FakeRunner(), ByteDetokenizer, EngineConfig(inference_wait_seconds=PATIENCE_SECONDS))

    async def leave() -> None:
        engine.submit(request(max_tokens=50))

    async def stay() -> None:
        assert len(await collect(engine.submit(request(max_tokens=1)))) == 2

    asyncio.run(leave())
    engine.start()
    run(stay)
    engine.stop()
    assert engine.healthy


@pytest.mark.parametrize(
    ("field", "limits"),
    [
        ("max_concurrent", {"max_concurrent": 0}),
        ("inference_wait_seconds", {"inference_wait_seconds": -1.0}),
        ("inference_wait_seconds", {"inference_wait_seconds": float("nan")}),
        ("prefill_chunk", {"prefill_chunk": 0}),
        ("session_positions", {"session_positions": 0}),
        ("arrival_window_seconds", {"arrival_window_seconds": -0.001}),
        ("event_queue", {"event_queue": 0}),
        ("waiting_limit", {"waiting_limit": -1}),
    ],
)
def test_config_names_the_bad_field(field: str, limits: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=field):
        EngineConfig(**limits)


@pytest.mark.parametrize(
    ("field", "changes"),
    [("prompt_tokens", {"prompt": ()}), ("max_tokens", {"max_tokens": 0}), ("stop", {"stop": ("a", "")})],
)
def test_request_names_the_bad_field(field: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=field):
        request(**changes)
