"""Which rows of which sequences run in the next step. Pure: reads the sequences, changes nothing."""

from collections.abc import Sequence as Rows
from dataclasses import dataclass

from ferrite.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive positions ``start .. start + count - 1`` of one sequence."""

    sequence: Sequence
    start: int
    count: int
    samples: bool
    """The last row is the sequence's last known token, so the next one is sampled from it."""

    @property
    def stop(self) -> int:
        """Position after the last row."""
        return self.start + self.count


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The chunks of one step, one per sequence: decode rows first, then prompts, each oldest first."""

    chunks: tuple[Chunk, ...]

    @property
    def sampling(self) -> tuple[Chunk, ...]:
        """The chunks that end in a sampled row."""
        return tuple(chunk for chunk in self.chunks if chunk.samples)


def plan_step(sequences: Rows[Sequence], prefill_rows: int) -> StepPlan:
    """Give every decoding sequence its row and split ``prefill_rows`` among the prompts.

    ``sequences`` are the ready ones, oldest first. ``prefill_rows`` is not below their number, so each
    prompt advances. Half of the rows are shared out evenly, so that no prompt starves; the rest goes to
    the oldest, so that the first to come is the first to speak.
    """
    decoding = [sequence for sequence in sequences if not sequence.is_prefilling]
    prefilling = [sequence for sequence in sequences if sequence.is_prefilling]
    rows = [1] * len(decoding) + _split(prefill_rows, [sequence.pending for sequence in prefilling])
    return StepPlan(tuple(_chunk(*pair) for pair in zip(decoding + prefilling, rows, strict=True)))


def _chunk(sequence: Sequence, count: int) -> Chunk:
    return Chunk(sequence, sequence.computed, count, samples=count == sequence.pending)


def _split(budget: int, wanted: list[int]) -> list[int]:
    if not wanted:
        return []
    fair = max(budget // (2 * len(wanted)), 1)
    shares = [min(fair, want) for want in wanted]
    spare = budget - sum(shares)
    for index, want in enumerate(wanted):
        extra = min(want - shares[index], spare)
        shares[index] += extra
        spare -= extra
    return shares
