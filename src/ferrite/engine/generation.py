"""From the engine thread to asyncio: the bounded event channel and the caller's handle on it."""

import asyncio
import math
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable

from ferrite.engine.errors import GenerationFailed
from ferrite.engine.events import Event, Finished


class Channel:
    """Events of one generation. Written by the engine, read by one task on ``loop``.

    It ends once: with ``Finished``, a failure, or the reader's cancellation. The writer is never blocked:
    it asks ``has_room`` before it makes more events. However much is written, at most one wake-up is on
    its way to the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, capacity: int, on_room: Callable[[], None]) -> None:
        """``on_room`` is called on the loop's thread when a full channel has room again."""
        self._loop = loop
        self._capacity = capacity
        self._on_room = on_room
        self._lock = threading.Lock()
        self._events: deque[Event] = deque()
        self.granted = False
        """The request is admitted."""
        self._ended = False
        self._failure: Exception | None = None
        self.cancelled = False
        """The reader wants nothing of the generation any more, not even its end."""
        self.stopping = False
        """The reader has all that it needs and waits for the end."""
        self._wake_pending = False
        self._changed = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def has_room(self) -> bool:
        """The reader keeps up."""
        return len(self._events) < self._capacity

    @property
    def room(self) -> int:
        """Deltas that may be written before the reader has fallen behind."""
        return self._capacity - len(self._events)

    def grant(self) -> None:
        """Tell the reader that the request is admitted."""
        with self._lock:
            self.granted = True
        self.wake_readers((self,))

    def put(self, events: list[Event]) -> None:
        """Append ``events``; a ``Finished`` ends the channel. Nothing happens once it has ended.

        The reader hears of them when the writer calls ``wake_readers``.
        """
        with self._lock:
            if not self._ended:
                self._events.extend(events)
                self._ended = isinstance(events[-1], Finished)

    def fail(self, error: Exception) -> None:
        """End the channel with ``error``, raised behind the events already in it."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            self._failure = error
        self.wake_readers((self,))

    def cancel(self) -> None:
        """End the channel from the reader's side, from any thread; unread events are dropped."""
        with self._lock:
            self.cancelled = True
            self._ended = True
            self._failure = None
            self._events.clear()
        self.wake_readers((self,))

    def stop(self) -> None:
        """Ask for the end, from any thread; what was written stays, and ``Finished`` follows."""
        self.stopping = True

    def check_granted(self) -> bool:
        """Return whether the request was admitted; raises what ended it before."""
        with self._lock:
            if self.granted:
                return True
            if self._failure is not None:
                raise self._failure
            if self.cancelled:
                raise GenerationFailed("the request was cancelled")
            return False

    def take(self) -> Event | None:
        """Remove the oldest event; None when there is none yet. Raises at the end."""
        with self._lock:
            if not self._events:
                if not self._ended:
                    return None
                failure, self._failure = self._failure, None
                raise failure or StopAsyncIteration
            event = self._events.popleft()
            has_room_again = len(self._events) == self._capacity - 1
        if has_room_again:
            self._on_room()
        return event

    async def changed(self) -> None:
        """Wait until something was written after the last look; may return early."""
        if not self._changed:
            self._waiter = self._loop.create_future()
            await self._waiter
        self._changed = False

    @staticmethod
    def wake_readers(channels: Iterable["Channel"]) -> None:
        """Have the readers of ``channels`` look: one call to a loop, however many of them it has."""
        by_loop: dict[asyncio.AbstractEventLoop, list[Channel]] = {}
        for channel in channels:
            if not channel._wake_pending:
                channel._wake_pending = True
                by_loop.setdefault(channel._loop, []).append(channel)
        for loop, woken in by_loop.items():
            try:
                loop.call_soon_threadsafe(Channel._on_wake, woken)
            except RuntimeError:
                # The loop is closed, and the readers with it.
                for channel in woken:
                    channel.cancelled = True

    @staticmethod
    def _on_wake(channels: Iterable["Channel"]) -> None:
        for channel in channels:
            # Whoever writes from here on wakes the reader again.
            channel._wake_pending = False
            channel._changed = True
            if channel._waiter is not None and not channel._waiter.done():
                channel._waiter.set_result(None)


class Generation:
    """The caller's handle: wait for the permit, then iterate the events.

    Belongs to one task of the loop it was submitted on; ``stop`` and ``cancel`` may come from anywhere.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        deadline: float,
        clock: Callable[[], float],
        on_deadline: Callable[[], None],
        on_cancel: Callable[[], None],
        on_stop: Callable[[], None],
    ) -> None:
        """``deadline``: reading of ``clock`` at which the wait for a permit is over."""
        self._channel = channel
        self._deadline = deadline
        self._clock = clock
        self._on_deadline = on_deadline
        self._on_cancel = on_cancel
        self._on_stop = on_stop

    async def admitted(self) -> None:
        """Return when the permit is granted.

        Raises ``EngineBusy`` when the time to wait has passed, ``EngineStopped`` when the engine stops
        first, ``GenerationFailed`` when it fails or the request is cancelled.
        """
        while not self._channel.check_granted():
            # The timeout lives here and not in the engine thread, which may be inside a long step.
            remaining = max(self._deadline - self._clock(), 0.0)
            try:
                await asyncio.wait_for(self._channel.changed(), None if math.isinf(remaining) else remaining)
            except TimeoutError:
                self._on_deadline()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        """Return the next event.

        Iteration ends behind ``Finished`` and on cancellation. Raises ``GenerationFailed`` behind the
        events that came before the failure, and what ``admitted`` raises.
        """
        channel = self._channel
        if channel.cancelled:
            raise StopAsyncIteration
        if not channel.granted:
            await self.admitted()
        while (event := channel.take()) is None:
            await channel.changed()
        return event

    def stop(self) -> None:
        """End the generation as if it had ended by itself: within one step, and with ``Finished``.

        For a reader that has the whole answer. Tokens that it has not read yet count as well. A request that
        waits in line ends when it would start.
        """
        self._channel.stop()
        self._on_stop()

    def cancel(self) -> None:
        """Drop the request: at once while it waits, at the end of the running step otherwise."""
        self._channel.cancel()
        self._on_cancel()
