"""What is in flight, what ended and how, and how long it took."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ferrite.telemetry.histogram import END_TO_END_SECONDS, Histogram
from ferrite.telemetry.ring import FinishedRequest, RequestRing, RequestRow


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Nearest-rank percentiles: each is a value that was measured, never one in between."""

    p50: float
    p95: float


class ServingStats:
    """Counts requests from ``started`` to ``finished``; each start is followed by one finish.

    One thread writes, any thread may read.
    """

    __slots__ = (
        "_started",
        "aborted",
        "completed",
        "completion_tokens_total",
        "end_to_end_seconds",
        "failed",
        "prompt_tokens_total",
        "ring",
    )

    def __init__(self, ring: RequestRing) -> None:
        """``ring`` keeps the rows of finished requests."""
        self.ring = ring
        self._started = 0
        self.completed = 0
        self.aborted = 0
        self.failed = 0
        self.prompt_tokens_total = 0
        self.completion_tokens_total = 0
        self.end_to_end_seconds = Histogram(END_TO_END_SECONDS)

    @property
    def in_flight(self) -> int:
        """Requests that started and have not finished."""
        return self._started - self.completed - self.aborted - self.failed

    def started(self) -> None:
        """A request came in."""
        self._started += 1

    def finished(self, request: FinishedRequest) -> RequestRow:
        """A request ended: cancelled counts as aborted, else with an error as failed, else as completed.

        The end-to-end time is that of completed requests only: one that was refused or cut short would
        make the server look faster than it is. The token totals take what any request reports.
        """
        if request.cancelled:
            self.aborted += 1
        elif request.error is not None:
            self.failed += 1
        else:
            self.completed += 1
            if request.total_ms is not None:
                self.end_to_end_seconds.observe(request.total_ms / 1000)
        self.prompt_tokens_total += request.prompt_tokens or 0
        self.completion_tokens_total += request.completion_tokens or 0
        return self.ring.push(request)

    def latency_ms(self) -> Percentiles | None:
        """End-to-end milliseconds over the completed requests in the ring; ``None`` when there is none."""
        return _percentiles(
            row.total_ms for row in self.ring.rows() if not row.cancelled and row.error is None
        )

    def ttft_ms(self) -> Percentiles | None:
        """Milliseconds to the first token over requests in the ring that got one; ``None`` if none did."""
        return _percentiles(row.ttft_ms for row in self.ring.rows())


def _percentiles(values: Iterable[float | None]) -> Percentiles | None:
    measured = sorted(value for value in values if value is not None)
    if not measured:
        return None
    return Percentiles(*(measured[math.ceil(share * len(measured)) - 1] for share in (0.50, 0.95)))
