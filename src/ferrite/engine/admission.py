"""Who may start: permits, KV block reservations and the waiting line. No clock, no thread: pure decisions."""

import math
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from ferrite.engine.errors import EngineBusy

T = TypeVar("T")

MAX_RETRY_AFTER_SECONDS = 60


def arrival_delay(now: float, first_at: float, window_seconds: float, *, free_permits: int) -> float:
    """Return the seconds that an idle engine may still wait for others to start with its first arrival.

    ``first_at`` is the reading at which that one got its permit. Nobody is waited for who could not start.
    """
    if free_permits == 0:
        return 0.0
    return max(first_at + window_seconds - now, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting(Generic[T]):
    blocks: dict[T, int]
    """The items of the group, in order, and the blocks of each."""
    deadline: float
    continues: bool


@dataclass(frozen=True, slots=True)
class _Holding:
    blocks: int
    granted_at: float


class Admission(Generic[T]):
    """First in, first out. An item holds one permit and its block reservation from grant to release.

    Items come in groups, of which all start at one moment: a group has one place in the line. Everything an
    item can ever need is reserved before it starts, so a running one never waits for another: no deadlock,
    no over-commitment. A group that does not fit holds up those behind it, so a large one is not starved by
    small ones. Items are hashable; times are readings of one clock, in seconds.
    """

    def __init__(self, *, permits: int, n_blocks: int, wait_seconds: float, waiting_limit: int) -> None:
        self._permits = permits
        self._n_blocks = n_blocks
        self._wait_seconds = wait_seconds
        self._waiting_limit = waiting_limit
        self._waiting: deque[_Waiting[T]] = deque()
        self._holding: dict[T, _Holding] = {}
        self._reserved = 0
        self._mean_hold_seconds: float | None = None

    @property
    def n_holding(self) -> int:
        """Items that hold a permit."""
        return len(self._holding)

    @property
    def free_permits(self) -> int:
        """Permits that nobody holds."""
        return self._permits - len(self._holding)

    @property
    def n_waiting(self) -> int:
        """Groups in the waiting line."""
        return len(self._waiting)

    @property
    def reserved_blocks(self) -> int:
        """Blocks reserved by the items that hold a permit."""
        return self._reserved

    def check_room(self) -> None:
        """Raise the ``EngineBusy`` that an item of the smallest size would meet now."""
        self._check_wait([1])

    def offer(self, group: Mapping[T, int], now: float, *, continues: bool = False) -> float:
        """Put a group in line (``grant`` follows) and return the reading at which its wait is over.

        ``group`` is the items, in order, and the blocks of each: not more together than ``permits`` and
        ``n_blocks``. One that continues admitted work goes in front of those that do not and waits as long
        as it takes. Raises ``EngineBusy`` when another one would have to wait and may not: no waiting time,
        or the line is full.
        """
        if continues:
            ahead = sum(waiting.continues for waiting in self._waiting)
            self._waiting.insert(ahead, _Waiting(dict(group), math.inf, continues))
            return math.inf
        self._check_wait(group.values())
        deadline = now + self._wait_seconds
        self._waiting.append(_Waiting(dict(group), deadline, continues))
        return deadline

    def grant(self, now: float) -> list[T]:
        """Give permits to the groups at the head of the line for as long as they fit; returns their items."""
        granted: list[T] = []
        while self._waiting and self._fits(self._waiting[0].blocks.values()):
            for item, blocks in self._waiting.popleft().blocks.items():
                self._holding[item] = _Holding(blocks, now)
                self._reserved += blocks
                granted.append(item)
        return granted

    def expire(self, now: float) -> list[list[T]]:
        """Take the groups whose wait is over out of the line; returns the items of each."""
        expired = [waiting for waiting in self._waiting if waiting.deadline <= now]
        for waiting in expired:
            self._waiting.remove(waiting)
        return [list(waiting.blocks) for waiting in expired]

    def withdraw(self, item: T) -> bool:
        """Take ``item`` out of the line, where the others of its group stay; False when it does not wait."""
        for waiting in self._waiting:
            if item in waiting.blocks:
                del waiting.blocks[item]
                if not waiting.blocks:
                    self._waiting.remove(waiting)
                return True
        return False

    def release(self, item: T, now: float) -> None:
        """Return the permit and the reservation of ``item``."""
        holding = self._holding.pop(item)
        self._reserved -= holding.blocks
        held_seconds = now - holding.granted_at
        mean = self._mean_hold_seconds
        # An eighth per request follows a change of load within about ten requests without jumping at one.
        self._mean_hold_seconds = held_seconds if mean is None else mean + (held_seconds - mean) / 8

    def busy(self, reason: str) -> EngineBusy:
        """Return the refusal to raise, with an estimate of when a permit will be free."""
        seconds = (self._mean_hold_seconds or 0.0) * (len(self._waiting) + 1) / self._permits
        return EngineBusy(
            f"the server is busy: {reason}", min(max(math.ceil(seconds), 1), MAX_RETRY_AFTER_SECONDS)
        )

    def _check_wait(self, blocks: Collection[int]) -> None:
        if not self._waiting and self._fits(blocks):
            return
        if self._wait_seconds == 0:
            raise self.busy("not enough inference permits are free")
        if len(self._waiting) >= self._waiting_limit:
            raise self.busy(f"not enough inference permits are free and {len(self._waiting)} requests wait")

    def _fits(self, blocks: Collection[int]) -> bool:
        return len(blocks) <= self.free_permits and self._reserved + sum(blocks) <= self._n_blocks
