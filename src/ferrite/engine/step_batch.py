"""A plan as the flat arrays that the runner takes."""

from array import array
from collections.abc import Sequence as Rows
from itertools import takewhile

from ferrite.engine.scheduler import StepPlan
from ferrite.engine.sequence import Sequence
from ferrite.program.step import Scorer, StepBatch, StepError


def build_step_batch(plan: StepPlan, sampled: Rows[Sequence]) -> StepBatch:
    """Lay out the plan's rows. Each block table already covers its sequence's last row here.

    ``sampled`` are the sequences of ``plan.sampled()``: a sequence and its followers share a row.
    """
    token_ids: list[int] = []
    positions: list[int] = []
    sequences: list[int] = []
    sample_rows: list[int] = []
    scored: list[tuple[int, Scorer]] = []
    drafted: list[int] = []
    for index, chunk in enumerate(plan.chunks):
        sequence, start, stop = chunk.sequence, chunk.start, chunk.stop
        if sequence.scorer is not None:
            scored.append((len(token_ids), sequence.scorer))
        token_ids += sequence.tokens[start:stop]
        token_ids += chunk.draft
        positions += range(start, stop)
        sequences += [index] * chunk.count
        if chunk.samples:
            sample_rows += [len(token_ids) - 1 - len(chunk.draft)] * (1 + len(sequence.followers))
            drafted += [len(chunk.draft)] * (1 + len(sequence.followers))
    return StepBatch(
        token_ids=array("i", token_ids),
        positions=array("i", positions),
        sequences=array("i", sequences),
        block_tables=tuple([chunk.sequence.table.array for chunk in plan.chunks]),
        sample_rows=array("i", sample_rows),
        samplers=tuple([sequence.sampler for sequence in sampled]),
        scored=scored,
        drafted=drafted if any(drafted) else (),
    )


def split_runs(batch: StepBatch, ids: Rows[int]) -> list[list[int]]:
    """Return what each sampler of ``batch`` gave: -1 alone, or tokens up to the first not drafted.

    Raises ``StepError`` for another number of ids than the batch asked for.
    """
    wanted = len(batch.samplers) + sum(batch.drafted)
    if len(ids) != wanted:
        raise StepError(f"{wanted} rows were to be sampled, {len(ids)} were")
    if not batch.drafted:
        return [[token] for token in ids]
    runs = []
    start = 0
    for drafted in batch.drafted:
        run = ids[start : start + 1 + drafted]
        runs.append([run[0], *takewhile(lambda token: token >= 0, run[1:])])
        start += len(run)
    return runs
