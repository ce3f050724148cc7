"""The choices of one prompt while they run: their events in one sequence, as they come."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Literal

from ferrite.api.model import GenerationHandle
from ferrite.engine.events import Delta, Event, Finished, Timings, Usage

_NO_TIMINGS = Timings(0.0, 0.0, 0.0)


class Running:
    """Generations that were admitted together; an iterator over choice and event.

    It ends when every choice has finished or was stopped. A slow reader slows down every choice: each waits
    with its next event.
    """

    def __init__(self, generations: Sequence[GenerationHandle], n_prompt: int, n: int) -> None:
        """``n``: choices; those beyond ``generations`` have nothing to evaluate."""
        self._generations = generations
        self._iterators = [aiter(generation) for generation in generations]
        self._n_prompt = n_prompt
        self._n_tokens = [0] * n
        self._empty = deque(range(len(generations), n))
        self._idle = deque(range(len(generations)))
        """Choices whose next event nobody awaits."""
        self._waiting: dict[asyncio.Future[Event | None], int] = {}
        self._done: deque[asyncio.Future[Event | None]] = deque()
        """Those of the waiting ones that have their event."""

    def stop(self, choice: int) -> Finished:
        """End a generation out of which nothing more can come; return what takes the place of its own end."""
        self._generations[choice].cancel()
        return self._finished("stop", choice)

    def __aiter__(self) -> "Running":
        return self

    async def __anext__(self) -> tuple[int, Event]:
        """Return the next event of any choice; raises what ended a generation."""
        if self._empty:
            choice = self._empty.popleft()
            return choice, self._finished("length", choice)
        if len(self._iterators) == 1:
            # Without a task for each token.
            event = await self._next(0)
            if event is None:
                raise StopAsyncIteration
            return 0, event
        while True:
            if not self._done:
                await self._wait()
            task = self._done.popleft()
            choice = self._waiting.pop(task)
            event = task.result()
            if event is not None:
                self._idle.append(choice)
                return choice, event

    async def aclose(self) -> None:
        """Cancel the generations, if they have not ended, and leave no task behind."""
        for generation in self._generations:
            generation.cancel()
        for task in self._waiting:
            task.cancel()
        # Also takes the failures that nobody reads: those of one step are the same for every choice.
        await asyncio.gather(*self._waiting, return_exceptions=True)

    async def _wait(self) -> None:
        while self._idle:
            choice = self._idle.popleft()
            self._waiting[asyncio.ensure_future(self._next(choice))] = choice
        if not self._waiting:
            raise StopAsyncIteration
        done, _ = await asyncio.wait(self._waiting, return_when=asyncio.FIRST_COMPLETED)
        self._done.extend(sorted(done, key=self._waiting.__getitem__))

    async def _next(self, choice: int) -> Event | None:
        event = await anext(self._iterators[choice], None)
        if isinstance(event, Delta):
            self._n_tokens[choice] += len(event.token_ids)
        return event

    def _finished(self, reason: Literal["stop", "length"], choice: int) -> Finished:
        return Finished(reason, Usage(self._n_prompt, self._n_tokens[choice]), _NO_TIMINGS, (), None)
