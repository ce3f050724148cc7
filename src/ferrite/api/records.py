"""What is known of a generation request while it runs, and its row when it has ended.

A request has a row from the moment the engine took it, whether it ran or only waited in line; a text
completion of 0 tokens, which asks the engine for nothing, has one too. It then ends exactly once: completed,
failed, or cancelled (its client went away, its time was over, the server went down). What is refused before
that has no row: a wrong request, a full server and a server that is not ready started no generation, and the
counters of refusals and the log tell of them.

Prompt tokens count from the first token on, when the prompt has been evaluated; completion tokens of a
request that did not complete are those that reached the HTTP side.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ferrite.engine.events import Delta, Event, Timings, Usage
from ferrite.telemetry import FinishedRequest, ServingStats


@dataclass(slots=True)
class _Choice:
    """One answer to a prompt."""

    n_tokens: int = 0
    """Completion tokens that reached us."""
    usage: Usage | None = None
    """None until it has finished."""
    timings: Timings | None = None
    """The engine's own, of a generation that it finished."""

    @property
    def completion_tokens(self) -> int:
        return self.n_tokens if self.usage is None else self.usage.completion_tokens


@dataclass(slots=True)
class _Run:
    """One prompt of a request, whose choices start together. Times are readings of the clock."""

    n_prompt: int
    taken_at: float
    choices: list[_Choice]
    admitted_at: float | None = None
    first_at: float | None = None
    last_at: float | None = None

    @property
    def is_finished(self) -> bool:
        return all(choice.usage is not None for choice in self.choices)

    @property
    def cached_tokens(self) -> int:
        first = self.choices[0].usage
        return 0 if first is None else first.cached_tokens

    def phases(self) -> tuple[float | None, float | None, float | None]:
        """Return the seconds of queue, prefill and decode; a phase that did not end has none.

        The engine's own times are nearer to the truth, but only what it finished has them.
        """
        if self.admitted_at is None:
            return None, None, None
        timings = [choice.timings for choice in self.choices if choice.timings is not None]
        if len(timings) == len(self.choices):
            return (
                max(each.queue_seconds for each in timings),
                max(each.prefill_seconds for each in timings),
                max(each.decode_seconds for each in timings),
            )
        queue = self.admitted_at - self.taken_at
        if self.first_at is None or self.last_at is None:
            return queue, None, None
        decode = self.last_at - self.first_at if self.is_finished else None
        return queue, self.first_at - self.admitted_at, decode

    def first_token_seconds(self) -> float | None:
        """Return the seconds from submission to the first token; None when there was none."""
        queue, prefill, _ = self.phases()
        some = any(choice.completion_tokens for choice in self.choices)
        return queue + prefill if some and queue is not None and prefill is not None else None


class RequestRecord:
    """One generation request on its way to its row. All calls come from the event loop."""

    def __init__(
        self,
        stats: ServingStats,
        request_id: str,
        endpoint: str,
        *,
        streamed: bool,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Begin when the request has arrived whole; ``clock`` and ``wall_clock`` read seconds."""
        self._stats = stats
        self._request_id = request_id
        self._endpoint = endpoint
        self._streamed = streamed
        self._clock = clock
        self._started_at = wall_clock()
        self._began = clock()
        self._runs: list[_Run] = []
        self._ended = False

    def taken(self, n_prompt: int, n: int = 1) -> None:
        """The engine took ``n`` choices of the next prompt of ``n_prompt`` tokens: they run or wait."""
        if not self._runs:
            self._stats.started()
        self._runs.append(_Run(n_prompt, self._clock(), [_Choice() for _ in range(n)]))

    def admitted(self) -> None:
        """The prompt that was taken last may run."""
        self._runs[-1].admitted_at = self._clock()

    def add(self, choice: int, event: Event) -> None:
        """Take the next event of a choice of the prompt that was taken last."""
        run, now = self._runs[-1], self._clock()
        run.first_at = now if run.first_at is None else run.first_at
        run.last_at = now
        if isinstance(event, Delta):
            run.choices[choice].n_tokens += len(event.token_ids)
        else:
            run.choices[choice].usage = event.usage
            run.choices[choice].timings = event.timings

    def end(
        self, *, finish_reasons: Sequence[str] = (), error: str | None = None, cancelled: bool = False
    ) -> bool:
        """Write the row, unless it is written; return False when the engine never took the request.

        ``finish_reasons``: those of the answer's choices, when all of them have finished.
        """
        if not self._runs or self._ended:
            return self._ended
        self._ended = True
        queue_ms, prefill_ms, decode_ms = map(
            _milliseconds, zip(*(run.phases() for run in self._runs), strict=True)
        )
        begun = [run for run in self._runs if run.first_at is not None]
        choices = [choice for run in begun for choice in run.choices]
        is_whole = all(run.is_finished for run in self._runs)
        self._stats.finished(
            FinishedRequest(
                request_id=self._request_id,
                endpoint=self._endpoint,
                started_at=self._started_at,
                queue_ms=queue_ms,
                prefill_ms=prefill_ms,
                decode_ms=decode_ms,
                ttft_ms=_milliseconds((self._runs[0].first_token_seconds(),)),
                total_ms=(self._clock() - self._began) * 1000,
                prompt_tokens=sum(run.n_prompt for run in begun) if begun else None,
                cached_tokens=sum(run.cached_tokens for run in begun) if is_whole else None,
                completion_tokens=sum(choice.completion_tokens for choice in choices) if begun else None,
                finish_reason=",".join(dict.fromkeys(finish_reasons)) or None,
                error=error,
                streamed=self._streamed,
                cancelled=cancelled,
            )
        )
        return True


def _milliseconds(phases: tuple[float | None, ...]) -> float | None:
    """Return the sum over the prompts of a request; None when the phase did not end in all of them."""
    measured = [phase for phase in phases if phase is not None]
    return sum(measured) * 1000 if len(measured) == len(phases) else None
