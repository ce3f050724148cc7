import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ferrite.engine import Delta, Finished, GenerationFailed, Timings, Usage
from ferrite.engine.generation import Channel

A, B = Delta("a", (97,)), Delta("b", (98,))
END = Finished("length", Usage(1, 2), Timings(0.0, 0.0, 0.0), (97, 98), None)


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts what other threads asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.wake_ups = 0

    def call_soon_threadsafe(self, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> asyncio.Handle:  # type: ignore[override]
        self.wake_ups += 1
        return super().call_soon_threadsafe(callback, *args, **kwargs)


def channel(loop: asyncio.AbstractEventLoop, capacity: int = 8) -> tuple[Channel, list[str]]:
    calls: list[str] = []
    return Channel(loop, capacity, lambda: calls.append("room")), calls


def test_one_wake_up_is_under_way_however_much_is_written() -> None:
    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, CountingLoop)
        one, _ = channel(loop)
        one.grant()
        one.put([A])
        one.put([B, END])
        Channel.wake_readers([one])
        assert loop.wake_ups == 1
        runner.run(one.changed())
        assert [one.take(), one.take(), one.take()] == [A, B, END]


def test_channels_of_one_loop_are_woken_together() -> None:
    with (
        asyncio.Runner(loop_factory=CountingLoop) as runner,
        asyncio.Runner(loop_factory=CountingLoop) as other,
    ):
        loop, other_loop = runner.get_loop(), other.get_loop()
        assert isinstance(loop, CountingLoop)
        assert isinstance(other_loop, CountingLoop)
        one, two, three = channel(loop)[0], channel(loop)[0], channel(other_loop)[0]
        for each in (one, two, three):
            each.put([A])
        assert (loop.wake_ups, other_loop.wake_ups) == (0, 0)
        Channel.wake_readers([one, two, three])
        assert (loop.wake_ups, other_loop.wake_ups) == (1, 1)
        for each, its in ((one, runner), (two, runner), (three, other)):
            its.run(each.changed())
            assert each.take() == A


def test_a_reader_whose_loop_is_closed_is_gone() -> None:
    with asyncio.Runner() as runner:
        one, _ = channel(runner.get_loop())
    one.put([A])
    Channel.wake_readers([one])
    assert one.cancelled


def test_events_come_in_order_and_end_once() -> None:
    with asyncio.Runner() as runner:
        one, _ = channel(runner.get_loop())
        one.put([A, END])
        one.put([B])
        one.fail(GenerationFailed("late"))
        assert [one.take(), one.take()] == [A, END]
        for _ in range(2):
            with pytest.raises(StopAsyncIteration):
                one.take()


def test_failure_comes_behind_the_events_before_it() -> None:
    with asyncio.Runner() as runner:
        one, _ = channel(runner.get_loop())
        one.put([A])
        one.fail(GenerationFailed("first"))
        one.fail(GenerationFailed("second"))
        assert one.take() == A
        with pytest.raises(GenerationFailed, match="first"):
            one.take()
        with pytest.raises(StopAsyncIteration):
            one.take()


def test_cancel_drops_what_is_unread_and_what_comes_later() -> None:
    with asyncio.Runner() as runner:
        one, _ = channel(runner.get_loop())
        one.put([A])
        one.cancel()
        one.put([B])
        one.fail(GenerationFailed("late"))
        with pytest.raises(StopAsyncIteration):
            one.take()


def test_room_is_reported_when_a_full_channel_is_read() -> None:
    with asyncio.Runner() as runner:
        one, calls = channel(runner.get_loop(), capacity=2)
        one.put([A])
        assert one.has_room
        one.put([B])
        assert not one.has_room
        assert (one.take(), calls) == (A, ["room"])
        assert (one.take(), calls) == (B, ["room"])
        assert one.take() is None
