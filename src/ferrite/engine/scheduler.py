"""Which rows of which sequences run in the next step. Pure: reads the sequences, changes nothing."""

from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass

from ferrite.engine.sequence import Sequence

MOST_SCORED_ROWS = 16
"""Prompt rows of one step whose logits are all wanted, over all sequences: 16 MiB with the largest
vocabularies."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive positions ``start .. start + count - 1`` of one sequence."""

    sequence: Sequence
    start: int
    count: int
    samples: bool
    """The last row but the draft's is the sequence's last known token, and the next is sampled from it."""
    draft: tuple[int, ...] = ()
    """Tokens of the last rows: what may be sampled next."""

    @property
    def stop(self) -> int:
        """Position after the last row."""
        return self.start + self.count

    @property
    def known(self) -> int:
        """Rows whose tokens are known."""
        return self.count - len(self.draft)

    def scored_tokens(self) -> list[int]:
        """Return the known tokens that the rows predict, from the first row on."""
        return self.sequence.tokens[self.start + 1 : self.stop + 1]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The chunks of one step, one per sequence: decode rows first, then prompts, each oldest first."""

    chunks: tuple[Chunk, ...]
    decode_rows: int
    """How many of the chunks are decode rows."""

    @property
    def prefill_rows(self) -> int:
        """Prompt rows of all chunks."""
        return sum(chunk.count for chunk in self.chunks[self.decode_rows :])

    def sampled(self) -> list[Sequence]:
        """Return the sequences that get a token: of each chunk that samples, its own and its followers."""
        return [
            sequence
            for chunk in self.chunks
            if chunk.samples
            for sequence in (chunk.sequence, *chunk.sequence.followers)
        ]


def plan_step(sequences: Rows[Sequence], prefill_rows: Callable[[int], int]) -> StepPlan:
    """Give every decoding sequence its row and split the step's prompt rows among the prompts.

    ``sequences`` are the ready ones, oldest first, none of which follows another. ``prefill_rows`` says how
    many prompt rows a step with so many decoding sequences may have. Half of them are shared out evenly, so
    that no prompt starves; the rest goes to the oldest, so that the first to come is the first to speak.
    Where there are fewer rows than prompts the oldest get one each. Prompts that are scored share
    ``MOST_SCORED_ROWS`` evenly.
    """
    decoding = [sequence for sequence in sequences if not sequence.is_prefilling]
    chunks = [Chunk(sequence, sequence.computed, 1, samples=True) for sequence in decoding]
    if len(decoding) < len(sequences):
        prefilling = [sequence for sequence in sequences if sequence.is_prefilling]
        shares = _split(prefill_rows(len(decoding)), _wanted_rows(prefilling))
        chunks += [_chunk(*pair) for pair in zip(prefilling, shares, strict=True) if pair[1]]
    return StepPlan(tuple(chunks), len(decoding))


def _chunk(sequence: Sequence, count: int) -> Chunk:
    samples = count == sequence.pending and sequence.ticket.request.max_tokens > 0
    return Chunk(sequence, sequence.computed, count, samples)


def _wanted_rows(prefilling: list[Sequence]) -> list[int]:
    n_scored = sum(sequence.ticket.request.prompt_logprobs for sequence in prefilling)
    if n_scored == 0:
        return [sequence.pending for sequence in prefilling]
    left, each = MOST_SCORED_ROWS, max(MOST_SCORED_ROWS // n_scored, 1)
    wanted = []
    for sequence in prefilling:
        wanted.append(sequence.pending)
        if sequence.ticket.request.prompt_logprobs:
            wanted[-1] = min(sequence.pending, each, left)
            left -= wanted[-1]
    return wanted


def _split(budget: int, wanted: list[int]) -> list[int]:
    fair = max(budget // (2 * len(wanted)), 1)
    shares = []
    for want in wanted:
        shares.append(min(fair, want, budget))
        budget -= shares[-1]
    for index, want in enumerate(wanted):
        extra = min(want - shares[index], budget)
        shares[index] += extra
        budget -= extra
    return shares
