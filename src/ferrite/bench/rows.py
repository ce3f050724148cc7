"""Step batches for measurements: plain sequences in KV blocks of their own, no scheduler."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ferrite.program.step import Int32Array, Sampler, StepBatch


@dataclass(slots=True)
class Line:
    """One sequence: its blocks and how far it has been evaluated."""

    blocks: Int32Array
    length: int = 0


@dataclass(slots=True)
class Lines:
    """Sequences of equal capacity, laid out one after the other in the KV store."""

    count: int
    blocks_each: int
    lines: list[Line] = field(init=False)

    def __post_init__(self) -> None:
        self.lines = [
            Line(np.arange(i * self.blocks_each, (i + 1) * self.blocks_each, dtype=np.int32))
            for i in range(self.count)
        ]

    def batch(
        self, rows: Sequence[tuple[int, Sequence[int]]], *, logits: str, samplers: Sequence[Sampler] = ()
    ) -> StepBatch:
        """Append tokens to sequences: (index, tokens) each, in ascending order; ``logits`` is all or last."""
        tokens: list[int] = []
        positions: list[int] = []
        sequences: list[int] = []
        wanted: list[int] = []
        for order, (index, ids) in enumerate(rows):
            line = self.lines[index]
            positions.extend(range(line.length, line.length + len(ids)))
            sequences.extend([order] * len(ids))
            first = len(tokens)
            tokens.extend(ids)
            wanted.extend(range(first, len(tokens)) if logits == "all" else [len(tokens) - 1])
            line.length += len(ids)
        return StepBatch(
            token_ids=np.asarray(tokens, np.int32),
            positions=np.asarray(positions, np.int32),
            sequences=np.asarray(sequences, np.int32),
            block_tables=[self.lines[index].blocks for index, _ in rows],
            sample_rows=np.asarray(wanted, np.int32),
            samplers=samplers,
        )
