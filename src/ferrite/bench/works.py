"""What is measured: prompts of several lengths, and streams that decode at several depths."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ferrite.bench.rates import PREFILL_CHUNK
from ferrite.program.runner import NativeRunner


@dataclass(frozen=True, slots=True)
class Work:
    """One kind of work. A prompt of ``depth`` tokens, or ``steps`` steps of ``streams`` at that depth."""

    kind: Literal["prefill", "decode"]
    depth: int
    streams: int = 1
    steps: int = 1

    @property
    def tokens(self) -> int:
        """Tokens that it evaluates."""
        return self.depth if self.kind == "prefill" else self.streams * self.steps

    @property
    def positions(self) -> int:
        """Positions that its sequences have in the end, all together."""
        return self.depth if self.kind == "prefill" else self.streams * (self.depth + self.steps)


@dataclass(frozen=True, slots=True)
class Need:
    """What a work must do at the least."""

    read_bytes: int
    """weights once a step, and in decode the keys and values of every position"""
    multiply_adds: int
    """of the matrices, every row of the output matrix only where logits are wanted"""

    def seconds(self, bandwidth: float, peak: float) -> float:
        """Return the floor at ``bandwidth`` bytes and ``peak`` multiply-adds a second: the larger time."""
        return max(self.read_bytes / bandwidth, self.multiply_adds / peak)


def works(
    lengths: Sequence[int], streams: Sequence[int], depths: Sequence[int], steps: int
) -> Iterator[Work]:
    """Every prompt length, then every depth with every number of streams."""
    yield from (Work("prefill", length) for length in lengths)
    yield from (Work("decode", depth, count, steps) for depth in depths for count in streams)


def need(work: Work, runner: NativeRunner) -> Need:
    """Count what ``work`` must read and compute on a loaded model."""
    per_row = runner.multiply_adds - runner.logits_multiply_adds
    if work.kind == "prefill":
        # A prompt's keys and values are read by many rows at once, out of a cache.
        steps = -(-work.depth // PREFILL_CHUNK)
        return Need(steps * runner.step_bytes, work.depth * per_row + steps * runner.logits_multiply_adds)
    kv = sum(runner.kv_read_bytes(work.depth + step) for step in range(work.steps))
    return Need(work.steps * runner.step_bytes + work.streams * kv, work.tokens * runner.multiply_adds)
