"""Which drafts a step evaluates: those that are likely to pay. Pure arithmetic.

A step that reads the weights for one row can evaluate a few more at less than their price. Of a draft, the
sampler takes the tokens that it would have sampled anyway, so that an answer is the same with and without;
what is at stake is time only. Three things keep it from being lost:

- how often the copied token came, by the length of the match, is known also from all steps that had no draft,
- the time of a step, by its rows, is measured,
- a sequence whose drafts have cost more than they brought pauses until steps without drafts outweigh that.
"""

from collections.abc import Sequence as Rows
from dataclasses import replace
from operator import itemgetter

from ferrite.engine.scheduler import StepPlan

MOST_ROWS = 16
"""Rows of a step with drafts; all of them have logits: 16 MiB with the largest vocabularies."""
ROW_COUNTS = (2, 4, 8, 12, MOST_ROWS)
"""Rows that are considered: the matrix kernels take four or eight in one pass, and two cost little."""
ROW_COST = 0.2
"""What a row more is believed to cost, as a share of a step of one row, before that was measured."""
MARGIN = 1.03
"""Tokens a second have to rise this much."""
HELD_UP = 1.5
"""What a step counts at most that took longer, as a multiple of what it took before: the machine was busy."""
REMEMBERED_STEPS = 256
"""Steps after which a measured time is out of date; one that a busy machine made long is tried again then."""
PAUSE_RATE = 0.015
"""Part of a token that a sequence may lose to drafts for each step without one."""
MOST_DEBT = 0.5
"""Tokens lost to drafts at which a sequence pauses."""
MOST_CREDIT = 2.0


class StepTimes:
    """How much longer a step with drafts takes than one without."""

    __slots__ = ("_plain", "_ratios", "_step")

    def __init__(self) -> None:
        self._step = 0
        self._plain: dict[int, float] = {}
        """Seconds of a step of so many sequences, with a row each."""
        self._ratios: dict[tuple[int, int], tuple[float, int]] = {}
        """Sequences and rows → the time as a multiple of that, and the step that measured it last."""

    def knows(self, sequences: int) -> bool:
        """Return whether a step of so many sequences without drafts was measured."""
        return sequences in self._plain

    def ratio(self, sequences: int, rows: int) -> float:
        """Return the time of a step as a multiple of that without drafts; guessed where it is not known."""
        nearest = min(
            (
                (abs(measured - rows), measured, ratio)
                for (count, measured), (ratio, step) in self._ratios.items()
                if count == sequences and self._step - step < REMEMBERED_STEPS
            ),
            default=(0, sequences, 1.0),
        )
        _, measured, ratio = nearest
        return ratio * _guess(rows) / _guess(measured)

    def observe(self, sequences: int, rows: int, seconds: float) -> None:
        """Note that a step without prompt rows took ``seconds``."""
        self._step += 1
        plain = self._plain.get(sequences)
        if rows == sequences:
            self._plain[sequences] = seconds if plain is None else plain + (seconds - plain) / 4
        elif plain:
            ratio = seconds / plain
            if (measured := self._ratios.get((sequences, rows))) is not None:
                known = measured[0]
                ratio = known + (min(ratio, HELD_UP * known) - known) / 4
            self._ratios[sequences, rows] = ratio, self._step


class Speculator:
    """Gives a step's decoding sequences the drafts that are likely to raise the tokens a second."""

    __slots__ = ("_times",)

    def __init__(self) -> None:
        self._times = StepTimes()

    def extend(self, plan: StepPlan) -> StepPlan:
        """Return ``plan``, which has no prompt rows, with drafts behind its rows."""
        n = len(plan.chunks)
        drafts: list[list[int]] = []
        offers: list[tuple[float, int]] = []
        for index, chunk in enumerate(plan.chunks):
            sequence, drafts_here = chunk.sequence, list[int]()
            if sequence.drafter is not None:
                drafts_here, chances = sequence.drafter.draft(min(MOST_ROWS - n, sequence.most_drafted))
                if sequence.drafter.balance > -MOST_DEBT:
                    offers += [(chance, index) for chance in chances]
            drafts.append(drafts_here)
        # Stable, and chances fall along a draft: what is taken of each is its beginning.
        offers.sort(key=itemgetter(0), reverse=True)
        taken = [0] * n
        for _, index in offers[: self._worth(n, [chance for chance, _ in offers])]:
            taken[index] += 1
        if not any(taken):
            return plan
        chunks = (
            replace(chunk, count=1 + count, draft=tuple(draft[:count])) if count else chunk
            for chunk, draft, count in zip(plan.chunks, drafts, taken, strict=True)
        )
        return StepPlan(tuple(chunks), n)

    def observe(self, plan: StepPlan, accepted: Rows[int], seconds: float) -> None:
        """Note the time of a step without prompt rows, and how much of each chunk's draft came true."""
        n = len(plan.chunks)
        drafted = [len(chunk.draft) for chunk in plan.chunks]
        total = sum(drafted)
        self._times.observe(n, n + total, seconds)
        price = n * (self._times.ratio(n, n + total) - 1) / total if total else 0.0
        for chunk, rows, tokens in zip(plan.chunks, drafted, accepted, strict=True):
            if (drafter := chunk.sequence.drafter) is not None:
                gain = tokens - price * rows if rows else PAUSE_RATE
                drafter.balance = min(drafter.balance + gain, MOST_CREDIT)

    def _worth(self, n: int, chances: list[float]) -> int:
        """Return how many of the drafted tokens, the likeliest first, give the most tokens a second."""
        room = min(len(chances), MOST_ROWS - n)
        if room <= 0 or not self._times.knows(n):
            return 0
        counts = [rows - n for rows in ROW_COUNTS if n < rows < n + room]
        best, best_rate = 0, n * MARGIN
        for count in (*counts, room):
            rate = (n + sum(chances[:count])) / self._times.ratio(n, n + count)
            if rate > best_rate:
                best, best_rate = count, rate
        return best


def _guess(rows: int) -> float:
    return 1 + ROW_COST * (rows - 1)
