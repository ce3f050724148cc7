"""Recent throughput over a sliding window."""

BUCKETS = 100
"""Of a window; 50 ms each when it is 5 s. The oldest leaves whole, so a rate covers 99 to 100 % of it."""


class RateWindow:
    """Counts per second over the last ``window_seconds``.

    Until a whole window has passed since counting began, the divisor is the time since then: dividing by
    the whole window would report a server that just started as slower than it is. Counting begins where
    the work of the first sample began, so that sample's own rate is the rate of that work. A first sample
    without a duration is given one bucket, the resolution of the window, and no rate is infinite.

    Counts go into buckets, so memory is fixed and ``add`` takes constant time. One thread adds, any thread
    may read; ``now`` is seconds of one clock that never goes back.
    """

    __slots__ = ("_began", "_buckets", "_width")

    def __init__(self, window_seconds: float = 5.0) -> None:
        if not window_seconds > 0:
            raise ValueError(f"window_seconds is {window_seconds}, must be above 0")
        self._width = window_seconds / BUCKETS
        self._began: float | None = None
        # (number, count) pairs, each replaced whole: a reader never sees a new number with an old count.
        self._buckets: list[tuple[int, int]] = [(-1, 0)] * BUCKETS

    def add(self, now: float, count: int, *, seconds: float = 0.0) -> None:
        """Note ``count`` more, done at ``now`` by work that took ``seconds``."""
        number = int(now // self._width)
        slot = number % BUCKETS
        stored, before = self._buckets[slot]
        self._buckets[slot] = (number, before + count if stored == number else count)
        if self._began is None:
            self._began = now - seconds

    def rate(self, now: float) -> float | None:
        """Counts per second at ``now``; ``None`` before the first sample, 0.0 when the window is idle."""
        if self._began is None:
            return None
        oldest = int(now // self._width) - BUCKETS + 1
        total = sum(count for number, count in tuple(self._buckets) if number >= oldest)
        covered = now - max(self._began, oldest * self._width)
        return total / max(covered, self._width)
