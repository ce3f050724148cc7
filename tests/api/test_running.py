"""The choices of one prompt while they run, on handles that a test feeds."""

import asyncio
import gc
from collections.abc import AsyncIterator, Sequence

import pytest

from ferrite.api.running import Running
from ferrite.engine.errors import GenerationFailed
from ferrite.engine.events import CacheTrace, Delta, Event, Finished, Timings, Usage

CACHE = CacheTrace("hit", 1, 1)
END = Finished("length", Usage(2, 1), Timings(0.5, 0.5, 0.5), (), None)


class Handle:
    """A generation whose events the test puts in."""

    def __init__(self, *events: Event | Exception) -> None:
        self.queue: asyncio.Queue[Event | Exception | None] = asyncio.Queue()
        self.cancelled = self.stopped = self.ended = False
        for event in events:
            self.queue.put_nowait(event)

    async def admitted(self) -> None:
        """It is."""

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        if self.ended or self.cancelled:
            raise StopAsyncIteration
        event = await self.queue.get()
        if event is None:
            raise StopAsyncIteration
        if isinstance(event, Exception):
            raise event
        self.ended = isinstance(event, Finished)
        return event

    def stop(self) -> None:
        self.stopped = True

    def cancel(self) -> None:
        self.cancelled = True
        self.queue.put_nowait(None)


def delta(text: str) -> Delta:
    return Delta(text, tuple(text.encode()))


def read(generations: Sequence[Handle], n: int) -> list[tuple[int, Event]]:
    async def collect() -> list[tuple[int, Event]]:
        return [found async for found in Running(generations, 2, n)]

    return asyncio.run(collect())


def test_events_come_in_turns() -> None:
    events = read([Handle(delta("a"), delta("b"), END), Handle(delta("c"), delta("d"), END)], 2)
    assert [(choice, event) for choice, event in events if choice == 0] == [
        (0, delta("a")),
        (0, delta("b")),
        (0, END),
    ]
    assert [choice for choice, _ in events] == [0, 1, 0, 1, 0, 1]


def test_one_generation_runs_without_tasks() -> None:
    async def collect() -> None:
        before = len(asyncio.all_tasks())
        async for _ in Running([Handle(delta("a"), END)], 2, 1):
            assert len(asyncio.all_tasks()) == before

    asyncio.run(collect())


def test_choices_without_a_generation_are_empty() -> None:
    nothing = Finished("length", Usage(2, 0), Timings(0.0, 0.0, 0.0), (), None)
    assert read([], 2) == [(0, nothing), (1, nothing)]
    assert read([Handle(END)], 2) == [(1, nothing), (0, END)]


def test_a_choice_that_is_stopped_leaves_the_others_running() -> None:
    async def collect() -> None:
        late = Finished("length", Usage(2, 7, 1), Timings(0.5, 0.5, 0.5), tuple(b"abnever"), "r", CACHE)
        first = Handle(delta("ab"), delta("never"), late)
        second = Handle(delta("x"), delta("y"), END)
        running = Running([first, second], 2, 2)
        seen: list[tuple[int, Event]] = []
        async for choice, event in running:
            seen.append((choice, event))
            if event == delta("ab"):
                running.stop(choice)
        assert (first.stopped, first.cancelled) == (True, False)
        assert not second.stopped
        # With the tokens that belong to the answer, however many came until it stopped.
        end = Finished("stop", Usage(2, 2, 1), Timings(0.5, 0.5, 0.5), tuple(b"ab"), None, CACHE)
        assert [event for choice, event in seen if choice == 0] == [delta("ab"), end]
        assert [event for choice, event in seen if choice == 1] == [delta("x"), delta("y"), END]

    asyncio.run(collect())


def test_a_generation_alone_that_is_stopped_gives_its_end() -> None:
    async def collect() -> None:
        running = Running([Handle(delta("ab"), delta("never"), END)], 2, 1)
        seen: list[Event] = []
        async for choice, event in running:
            seen.append(event)
            if isinstance(event, Delta):
                running.stop(choice)
        assert seen == [delta("ab"), Finished("stop", Usage(2, 2), Timings(0.5, 0.5, 0.5), (), None)]

    asyncio.run(collect())


def test_a_failure_is_raised_and_nothing_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    async def collect() -> None:
        waiting = Handle(delta("a"))
        failing = [Handle(GenerationFailed("out")) for _ in range(2)]
        running = Running([waiting, *failing], 2, 3)
        with pytest.raises(GenerationFailed):
            async for _ in running:
                pass
        await running.aclose()
        assert waiting.cancelled
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(collect())
    gc.collect()
    # Nothing of a failure that nobody read.
    assert caplog.records == []


def test_a_reader_that_leaves_ends_the_waiting() -> None:
    async def collect() -> None:
        handles = [Handle(delta("a")), Handle(delta("b"))]
        running = Running(handles, 2, 2)
        async for _ in running:
            break
        await running.aclose()
        assert all(handle.cancelled for handle in handles)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(collect())
