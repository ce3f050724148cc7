"""The last finished requests, numbered for life: a poller learns what it has not seen and what it missed."""

from dataclasses import asdict, dataclass

MAX_PAGE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRequest:
    """What was measured of one request that ended, however it ended. ``None`` means not measured."""

    sequence: int | None = None
    """Its place in the ring's count, which only a row of the ring has."""
    request_id: str
    endpoint: str
    """The route's path."""
    started_at: float
    """Wall clock at arrival, unix seconds."""
    queue_ms: float | None = None
    """From submission to the permit."""
    prefill_ms: float | None = None
    """From the permit to the first token."""
    decode_ms: float | None = None
    """From the first token to the last."""
    ttft_ms: float | None = None
    """From submission to the first token; of a request with several prompts, that of the first one."""
    total_ms: float | None = None
    """From arrival to the end of the answer: the phases above, and HTTP, template and tokenizing."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """Prompt tokens restored from the prefix cache."""
    completion_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    """Error code; ``None`` when the request did not fail."""
    streamed: bool = False
    cancelled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow(FinishedRequest):
    """A finished request in the ring."""

    sequence: int
    """Lifelong number: 0 for the first request recorded, one more for each after it."""


@dataclass(frozen=True, slots=True)
class Page:
    """Answer to one poll."""

    rows: tuple[RequestRow, ...]
    """Oldest first, without gaps."""
    missed: int
    """Rows from the cursor on that had fallen off before this poll."""
    next_cursor: int
    """Where the next poll continues."""
    recorded_total: int
    """Requests ever recorded. Below the cursor when the cursor is of an earlier run of the server."""


class RequestRing:
    """Keeps the last ``capacity`` finished requests.

    One thread pushes; any thread may read: the rows are one immutable tuple that a push replaces.
    """

    __slots__ = ("_capacity", "_rows")

    def __init__(self, capacity: int = 200) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}, must be at least 1")
        self._capacity = capacity
        self._rows: tuple[RequestRow, ...] = ()

    @property
    def recorded_total(self) -> int:
        """Requests ever recorded."""
        return _total(self._rows)

    def rows(self) -> tuple[RequestRow, ...]:
        """All rows that are left, oldest first."""
        return self._rows

    def push(self, request: FinishedRequest) -> RequestRow:
        """Record ``request`` under the next number; the oldest row falls off a full ring."""
        row = RequestRow(**{**asdict(request), "sequence": self.recorded_total})
        self._rows = (*self._rows, row)[-self._capacity :]
        return row

    def since(self, cursor: int, limit: int = MAX_PAGE) -> Page:
        """The first ``limit`` rows numbered ``cursor`` or higher.

        A poller that starts at 0 and follows ``next_cursor`` sees each request once, in its rows or in
        ``missed``. So after a cut page the next cursor is the last row's number + 1, and only a complete
        page moves it to ``recorded_total``. A cursor beyond the end is a complete, empty page.
        Raises ``ValueError`` when ``cursor`` is negative or ``limit`` is not in ``1 .. MAX_PAGE``.
        """
        if cursor < 0:
            raise ValueError(f"cursor is {cursor}, must be at least 0")
        if not 1 <= limit <= MAX_PAGE:
            raise ValueError(f"limit is {limit}, must be from 1 to {MAX_PAGE}")
        kept = self._rows
        total = _total(kept)
        oldest = total - len(kept)
        first = max(cursor - oldest, 0)
        rows = kept[first : first + limit]
        is_cut = first + limit < len(kept)
        return Page(
            rows=rows,
            missed=max(oldest - cursor, 0),
            next_cursor=rows[-1].sequence + 1 if is_cut else total,
            recorded_total=total,
        )


def _total(rows: tuple[RequestRow, ...]) -> int:
    return rows[-1].sequence + 1 if rows else 0
