"""The choices of one prompt while they run: their events in one sequence, as they come."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from ferrite.api.model import GenerationHandle
from ferrite.engine.events import Delta, Event, Finished, Timings, Usage

_NO_TIMINGS = Timings(0.0, 0.0, 0.0)


class Running:
    """Generations that were admitted together; an iterator over choice and event.

    It ends when every choice has finished. A slow reader slows down every choice: each waits with its next
    event.
    """

    def __init__(self, generations: Sequence[GenerationHandle], n_prompt: int, n: int) -> None:
        """``n``: choices; those beyond ``generations`` have nothing to evaluate."""
        self._generations = generations
        self._iterators = [aiter(generation) for generation in generations]
        self._n_prompt = n_prompt
        self._n_tokens = [0] * n
        self._stopped: set[int] = set()
        self._empty = deque(range(len(generations), n))
        self._idle = deque(range(len(generations)))
        """Choices whose next event nobody awaits."""
        self._waiting: dict[asyncio.Future[Event | None], int] = {}
        self._done: deque[asyncio.Future[Event | None]] = deque()
        """Those of the waiting ones that have their event."""

    def stop(self, choice: int) -> None:
        """End a generation out of which nothing more can come: its next event is its end.

        The tokens that it made in the meantime are none of the answer, and not counted.
        """
        self._stopped.add(choice)
        self._generations[choice].stop()

    def __aiter__(self) -> "Running":
        return self

    async def __anext__(self) -> tuple[int, Event]:
        """Return the next event of any choice; raises what ended a generation."""
        if self._empty:
            choice = self._empty.popleft()
            return choice, Finished("length", Usage(self._n_prompt, 0), _NO_TIMINGS, (), None)
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
        if choice not in self._stopped:
            if isinstance(event, Delta):
                self._n_tokens[choice] += len(event.token_ids)
            return event
        while isinstance(event, Delta):
            event = await anext(self._iterators[choice], None)
        return None if event is None else self._cut(event, self._n_tokens[choice])

    @staticmethod
    def _cut(end: Finished, n_tokens: int) -> Finished:
        usage = replace(end.usage, completion_tokens=n_tokens)
        return replace(end, reason="stop", usage=usage, token_ids=end.token_ids[:n_tokens], stop_string=None)
