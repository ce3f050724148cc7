"""Where the time of steps went, as shares that add up to one."""

from dataclasses import dataclass
from typing import Protocol


class OpTimes(Protocol):
    """What the executor records of its steps (native); seconds, of ops summed over the threads."""

    @property
    def linear(self) -> float:
        """In matrix products, the output matrix with them."""

    @property
    def attention(self) -> float:
        """In attention over the KV cache."""

    @property
    def norm(self) -> float:
        """In norms and the quantisation behind them."""

    @property
    def other(self) -> float:
        """In every other op: embedding, rotation and KV writes, gates, additions."""

    @property
    def wait(self) -> float:
        """Of threads that had nothing to do until others were done."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Shares of the time of all threads."""

    linear: float
    attention: float
    norm: float
    other: float
    wait: float
    """a thread had nothing to do until other threads, or the system, were done"""
    outside: float
    """between two native steps: the batch is made, ids are handed back"""


def breakdown(times: OpTimes, seconds: float, threads: int) -> Breakdown:
    """Divide ``seconds`` of wall time of ``threads`` threads."""
    whole = seconds * threads
    inside = times.linear + times.attention + times.norm + times.other + times.wait
    return Breakdown(
        linear=times.linear / whole,
        attention=times.attention / whole,
        norm=times.norm / whole,
        other=times.other / whole,
        wait=times.wait / whole,
        outside=max(0.0, 1.0 - inside / whole),
    )
