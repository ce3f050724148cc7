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
from collections.abc import Callable
from dataclasses import dataclass

from ferrite.engine.events import Delta, Event, Finished
from ferrite.telemetry import FinishedRequest, ServingStats


@dataclass(slots=True)
class _Run:
    """One prompt of a request. Times are readings of the clock."""

    n_prompt: int
    taken_at: float
    admitted_at: float | None = None
    first_at: float | None = None
    n_tokens: int = 0
    """Completion tokens that reached us."""
    finished: Finished | None = None

    def durations(self) -> tuple[float | None, float | None, float | None]:
        """Return the seconds of queue, prefill and decode; a phase that did not end has none.

        The engine's own times are nearer to the truth, but only a finished generation has them.
        """
        if self.admitted_at is None:
            return None, None, None
        if self.finished is not None:
            timings = self.finished.timings
            return timings.queue_seconds, timings.prefill_seconds, timings.decode_seconds
        prefill = None if self.first_at is None else self.first_at - self.admitted_at
        return self.admitted_at - self.taken_at, prefill, None

    @property
    def completion_tokens(self) -> int:
        return self.n_tokens if self.finished is None else self.finished.usage.completion_tokens


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

    def taken(self, n_prompt: int) -> None:
        """The engine took the next prompt, of ``n_prompt`` tokens: it runs or waits in line."""
        if not self._runs:
            self._stats.started()
        self._runs.append(_Run(n_prompt, self._clock()))

    def admitted(self) -> None:
        """The prompt that was taken last may run."""
        self._runs[-1].admitted_at = self._clock()

    def add(self, event: Event) -> None:
        """Take the next event of the prompt that was taken last."""
        run = self._runs[-1]
        if run.first_at is None:
            run.first_at = self._clock()
        if isinstance(event, Delta):
            run.n_tokens += len(event.token_ids)
        else:
            run.finished = event

    def end(self, *, error: str | None = None, cancelled: bool = False) -> bool:
        """Write the row, unless it is written; return False when the engine never took the request."""
        if not self._runs or self._ended:
            return self._ended
        self._ended = True
        queue_ms, prefill_ms, decode_ms = map(
            _milliseconds, zip(*(run.durations() for run in self._runs), strict=True)
        )
        begun = [run for run in self._runs if run.first_at is not None]
        ends = [run.finished for run in self._runs if run.finished is not None]
        is_whole = len(ends) == len(self._runs)
        reasons = dict.fromkeys(end.reason for end in ends)
        self._stats.finished(
            FinishedRequest(
                request_id=self._request_id,
                endpoint=self._endpoint,
                started_at=self._started_at,
                queue_ms=queue_ms,
                prefill_ms=prefill_ms,
                decode_ms=decode_ms,
                total_ms=(self._clock() - self._began) * 1000,
                prompt_tokens=sum(run.n_prompt for run in begun) if begun else None,
                cached_tokens=sum(end.usage.cached_tokens for end in ends) if is_whole else None,
                completion_tokens=sum(run.completion_tokens for run in begun) if begun else None,
                finish_reason=",".join(reasons) if is_whole and error is None and not cancelled else None,
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
