"""How many prompt rows a step may carry, so that running streams keep their pace. Pure arithmetic.

A step with ``k`` decoding sequences and ``n`` prompt rows is taken to last ``decode[k] + n * row`` seconds.
``decode[k]`` is measured in steps without prompt rows, ``row`` in those with both, as moving averages. Where
they are in doubt, a prompt waits for one step rather than the streams for a long one.
"""

DECODE_STRETCH = 1.5
"""A step with prompt rows may last this many times as long as one without."""
MOST_STEP_SECONDS = 0.25
"""Without a decoding sequence: what a cancelled prompt or a newcomer may have to wait for."""
ROW_GROUP = 8
"""Rows the widest matrix kernels take in one pass over the weights (four on AVX2, which divides it). A last
group that is not full costs nearly as much as a full one, and so would fewer prompt rows than one group."""
SAFE_ROWS = 32
"""Prompt rows of the first step that has no decoding sequence, and the fewest of any. In smaller steps
reading the weights once costs more than the rows do."""
OFF = 1.5
"""A step this many times shorter or longer than expected puts the measurements in doubt."""
MOST_UNCHECKED_STEPS = 32
"""Steps with prompt rows after which one without them measures the decode time again: 2 % of the prompt's
time at most."""


class Pace:
    """Learns from the measured times of steps. One thread uses it."""

    __slots__ = (
        "_checked",
        "_decode",
        "_decoding",
        "_doubt",
        "_most",
        "_prefill_row",
        "_reach",
        "_row",
        "_unchecked",
    )

    def __init__(self, most_rows: int) -> None:
        """``most_rows``: prompt rows that no step exceeds."""
        self._most = most_rows
        self._decode: dict[int, float] = {}
        """Seconds of a step of so many decoding sequences without prompt rows."""
        self._decoding = 0
        """Decoding sequences of the last step."""
        self._row: float | None = None
        """Seconds that a prompt row adds to a step of decoding sequences."""
        self._reach = ROW_GROUP
        """Twice the most rows that ``_row`` was measured with: how far it is believed."""
        self._prefill_row: float | None = None
        """Seconds of a step without decoding sequences, for each of its rows."""
        self._doubt = False
        """The last step was off, so that the next one measures the decode time."""
        self._checked = False
        """That has just been done, so that a step that is still off is the new truth."""
        self._unchecked = 0
        """Steps with both kinds of rows since the last one without prompt rows."""

    def prefill_rows(self, decoding: int) -> int:
        """Return how many prompt rows the next step may have beside ``decoding`` decode rows.

        0 when a step without any has to be measured first; never twice in a row for one number of
        sequences.
        """
        if decoding == 0:
            return self._rows_alone()
        decode = self._decode.get(decoding)
        if decode is None or self._doubt or self._unchecked >= MOST_UNCHECKED_STEPS:
            return 0
        if self._row is None:
            rows = ROW_GROUP
        else:
            budget = decode * (DECODE_STRETCH - 1)
            rows = min(int(budget / self._row), self._reach) if self._row else self._reach
            rows -= (decoding + rows) % ROW_GROUP
        return min(max(rows, ROW_GROUP), self._most)

    def observe(self, seconds: float, *, decode_rows: int, prefill_rows: int) -> None:
        """Note that a step took ``seconds``."""
        if not decode_rows:
            self._observe_alone(seconds, prefill_rows)
        elif not prefill_rows:
            self._observe_decode(seconds, decode_rows)
        else:
            self._observe_mixed(seconds, decode_rows, prefill_rows)
        self._decoding = decode_rows

    def _rows_alone(self) -> int:
        if self._prefill_row is None:
            rows = SAFE_ROWS
        elif self._prefill_row:
            rows = max(int(MOST_STEP_SECONDS / self._prefill_row), SAFE_ROWS)
        else:
            rows = self._most
        return min(rows, self._most)

    def _observe_alone(self, seconds: float, rows: int) -> None:
        if rows >= min(SAFE_ROWS, self._most):
            self._prefill_row = _average(self._prefill_row, seconds / rows)

    def _observe_decode(self, seconds: float, decoding: int) -> None:
        before = self._decode.get(decoding)
        if self._doubt:
            after = seconds
            self._decode.clear()
            self._doubt, self._checked = False, True
        else:
            # What was measured before other numbers of sequences ran may be long out of date.
            after = _average(before if decoding == self._decoding else None, seconds)
        if before and self._row is not None and decoding == self._decoding:
            # The machine changed since the last step, and with it the cost of a row.
            self._row *= after / before
        self._decode[decoding] = after
        self._unchecked = 0

    def _observe_mixed(self, seconds: float, decoding: int, rows: int) -> None:
        self._unchecked += 1
        decode = self._decode.get(decoding)
        if decode is None:
            # A sequence left the step after it was planned: there is nothing to compare this one with.
            return
        if self._row is not None and not self._checked:
            expected = decode + self._row * rows
            if seconds > OFF * expected or OFF * seconds < expected:
                self._doubt = True
                return
        if rows >= min(ROW_GROUP, self._most):
            self._row = _average(self._row, max(seconds - decode, 0.0) / rows)
            self._reach = max(self._reach, 2 * rows)
        self._checked = False


def _average(average: float | None, value: float) -> float:
    # A quarter follows a change within about ten steps and a single odd one not too far.
    return value if average is None else average + (value - average) / 4
