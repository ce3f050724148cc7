"""The pace on a simulated machine."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from ferrite.engine.pace import (
    DECODE_STRETCH,
    MOST_STEP_SECONDS,
    MOST_UNCHECKED_STEPS,
    ROW_GROUP,
    SAFE_ROWS,
    Pace,
)

CHUNK = 128


@dataclass
class Machine:
    """Steps last a base cost, a cost for each decode row and one for each prompt row."""

    pace: Pace = field(default_factory=lambda: Pace(CHUNK))
    base: float = 0.018
    decode_row: float = 0.0005
    prefill_row: float = 0.0012
    group: int = 1
    """Prompt rows that cost as much as one."""
    slowness: float = 1.0
    noise: Callable[[], float] = lambda: 1.0
    rows: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def decode_seconds(self, decoding: int) -> float:
        return self.slowness * (self.base + self.decode_row * decoding)

    def step(self, decoding: int, pending: int) -> int:
        """One step; returns the prompt rows it carried."""
        rows = min(self.pace.prefill_rows(decoding), pending) if pending else 0
        assert rows or decoding or not pending
        paid = -(-rows // self.group) * self.group
        seconds = (self.decode_seconds(decoding) + self.slowness * self.prefill_row * paid) * self.noise()
        self.pace.observe(seconds, decode_rows=decoding, prefill_rows=rows)
        self.rows.append(rows)
        self.seconds.append(seconds)
        return rows

    def run(self, decoding: int, pending: int) -> list[int]:
        """Steps until the prompt is done; returns their rows."""
        first = len(self.rows)
        while pending:
            pending -= self.step(decoding, pending)
        return self.rows[first:]

    def decode(self, decoding: int, steps: int = 5) -> None:
        for _ in range(steps):
            self.step(decoding, 0)


@pytest.mark.parametrize("prefill_row", [0.0003, 0.0008, 0.0012])
@pytest.mark.parametrize("base", [0.018, 0.05])
def test_long_prompt_among_four_streams_stretches_no_step_beyond_the_bound(
    base: float, prefill_row: float
) -> None:
    machine = Machine(base=base, prefill_row=prefill_row)
    machine.decode(4)
    rows = machine.run(4, 2000)
    decode_only = machine.decode_seconds(4)
    assert max(machine.seconds) <= DECODE_STRETCH * decode_only * 1.001
    # The bound is used: all but the first steps and those that measure are near it, or at the chunk.
    allowed = decode_only * (DECODE_STRETCH - 1) / prefill_row
    assert max(rows) > min(allowed, CHUNK) - ROW_GROUP
    assert len(rows) <= 2000 / max(rows) * (1 + 1 / MOST_UNCHECKED_STEPS) + 8


def test_first_prompt_begins_with_one_group_of_rows() -> None:
    machine = Machine()
    machine.decode(4)
    assert machine.pace.prefill_rows(4) == ROW_GROUP


def test_steps_fill_the_groups_of_the_kernels() -> None:
    machine = Machine()
    machine.decode(3)
    rows = machine.run(3, 2000)
    assert all((3 + n) % ROW_GROUP == 0 for n in rows[:-1] if n > ROW_GROUP)


def test_unknown_number_of_streams_is_measured_first_and_once() -> None:
    machine = Machine()
    assert machine.pace.prefill_rows(2) == 0
    machine.decode(2, 1)
    assert machine.pace.prefill_rows(2) > 0
    assert machine.pace.prefill_rows(3) == 0


def test_machine_where_a_group_is_too_much_gets_a_group_all_the_same() -> None:
    machine = Machine(prefill_row=0.01)
    machine.decode(4)
    assert set(machine.run(4, 400)[:-1]) <= {0, ROW_GROUP}


def test_a_prompt_is_left_out_of_at_most_one_step_in_a_row_and_few_in_all() -> None:
    source = random.Random(1)
    machine = Machine(noise=lambda: source.uniform(0.6, 1.7))
    machine.decode(4)
    rows = machine.run(4, 20_000)
    assert not any(a == b == 0 for a, b in pairwise(rows))
    assert rows.count(0) < len(rows) / 3


def test_without_streams_chunks_are_whole_after_a_safe_first_one() -> None:
    machine = Machine()
    assert machine.run(0, 1000)[:3] == [SAFE_ROWS, CHUNK, CHUNK]


def test_without_streams_a_slow_machine_gets_shorter_steps() -> None:
    machine = Machine(prefill_row=0.004)
    machine.run(0, 1000)
    assert max(machine.seconds) <= MOST_STEP_SECONDS
    assert SAFE_ROWS < max(machine.rows) < CHUNK
    very_slow = Machine(prefill_row=0.05)
    assert set(very_slow.run(0, 960)) == {SAFE_ROWS}


def test_short_prompts_teach_nothing_about_long_ones() -> None:
    machine = Machine()
    machine.run(0, 1000)
    for _ in range(20):
        machine.run(0, 3)
    assert machine.pace.prefill_rows(0) == CHUNK


def test_short_rest_of_a_prompt_teaches_nothing_about_chunks() -> None:
    machine = Machine(group=ROW_GROUP)
    machine.decode(4)
    usual = max(machine.run(4, 2000))
    for _ in range(20):
        machine.run(4, usual + 1)
    assert next(rows for rows in machine.run(4, 2000) if rows) == usual


def test_cheap_first_measurement_is_not_extrapolated_far() -> None:
    machine = Machine()
    machine.decode(4)
    machine.noise = lambda: 0.7
    assert machine.step(4, 2000) == ROW_GROUP
    machine.noise = lambda: 1.0
    machine.run(4, 2000)
    assert max(machine.seconds) <= 1.5 * DECODE_STRETCH * machine.decode_seconds(4)


def test_noise_stretches_few_steps_and_none_far() -> None:
    source = random.Random(3)
    machine = Machine(noise=lambda: source.uniform(0.8, 1.2))
    machine.decode(4)
    machine.run(4, 20_000)
    bound = DECODE_STRETCH * machine.decode_seconds(4)
    late = sorted(seconds / bound for seconds in machine.seconds)
    assert late[-1] < 1.6
    assert late[len(late) * 95 // 100] < 1.25
    assert late[len(late) // 2] > 0.75


def test_rows_that_become_dearer_shorten_the_chunks() -> None:
    machine = Machine(prefill_row=0.0003)
    machine.decode(4)
    machine.run(4, 4000)
    machine.prefill_row *= 4
    changed = len(machine.rows)
    rows = machine.run(4, 4000)
    late = sum(s > DECODE_STRETCH * machine.decode_seconds(4) for s in machine.seconds[changed:])
    assert late <= 8
    assert rows[8:].count(0) <= len(rows) / MOST_UNCHECKED_STEPS + 1


def test_every_odd_step_is_checked() -> None:
    machine = Machine()
    machine.decode(4)
    machine.run(4, 400)
    for slowness in (3.0, 1.0, 3.0):
        machine.slowness = slowness
        while not machine.step(4, 2000):
            pass
        assert machine.pace.prefill_rows(4) == 0
        machine.run(4, 400)


def test_old_measurement_of_another_number_of_streams_does_not_change_the_cost_of_a_row() -> None:
    machine = Machine(slowness=3.0)
    for decoding in (3, 4):
        machine.decode(decoding)
        machine.run(decoding, 400)
    machine.slowness = 1.0
    machine.decode(4, 30)
    machine.decode(3, 30)
    changed = len(machine.rows)
    machine.run(3, 2000)
    assert max(machine.seconds[changed:]) <= DECODE_STRETCH * machine.decode_seconds(3) * 1.05


def test_what_was_measured_before_the_machine_changed_is_forgotten() -> None:
    machine = Machine()
    for decoding in (3, 4):
        machine.decode(decoding)
    machine.run(4, 400)
    machine.slowness = 3.0
    machine.run(4, 400)
    assert machine.pace.prefill_rows(3) == 0
    assert machine.pace.prefill_rows(4) > 0


def test_creeping_slowness_within_a_prompt_does_not_starve_it() -> None:
    machine = Machine()
    machine.decode(4)
    usual = max(machine.run(4, 2000))
    for _ in range(200):
        machine.slowness *= 1.01
        machine.step(4, 2000)
    machine.run(4, 2000)
    assert machine.slowness > 7
    assert machine.run(4, 4000)[-40:].count(usual) > 20
    assert max(machine.seconds[-100:]) <= DECODE_STRETCH * machine.decode_seconds(4) * 1.05


@pytest.mark.parametrize("when", ["while decoding", "within a prompt"])
def test_follows_a_machine_that_slows_down_and_recovers(when: str) -> None:
    machine = Machine()
    machine.decode(4)
    usual = max(machine.run(4, 4000))
    for slowness in (3.0, 1.0):
        machine.slowness = slowness
        if when == "while decoding":
            machine.decode(4, 20)
        changed = len(machine.rows)
        machine.run(4, 4000)
        bound = DECODE_STRETCH * machine.decode_seconds(4) * 1.05
        late = sum(seconds > bound for seconds in machine.seconds[changed:])
        assert late == 0
        # Chunks are as long again as they were: both costs changed alike.
        assert machine.rows[-MOST_UNCHECKED_STEPS // 2 : -1].count(usual) > MOST_UNCHECKED_STEPS // 4


def test_one_step_held_up_by_something_else_is_forgotten() -> None:
    machine = Machine()
    machine.decode(4)
    usual = max(machine.run(4, 2000))
    for stalled in ("decode", "mixed"):
        machine.slowness = 20.0
        machine.step(4, 0 if stalled == "decode" else 1000)
        machine.slowness = 1.0
        stall = len(machine.seconds)
        machine.run(4, 2000)
        assert max(machine.seconds[stall:]) <= DECODE_STRETCH * machine.decode_seconds(4) * 1.3
        assert max(machine.rows[stall:]) <= usual + ROW_GROUP


def test_step_that_lost_a_stream_after_it_was_planned_teaches_nothing() -> None:
    machine = Machine()
    machine.decode(2)
    rows = machine.pace.prefill_rows(2)
    machine.pace.observe(10.0, decode_rows=1, prefill_rows=rows)
    assert machine.pace.prefill_rows(2) == rows
    assert machine.pace.prefill_rows(1) == 0


def test_a_chunk_limit_below_a_group_is_kept() -> None:
    machine = Machine(pace=Pace(3))
    machine.decode(4)
    assert set(machine.run(4, 30)) <= {0, 3}
    assert set(machine.run(0, 30)) == {3}


def test_a_clock_that_stands_still_limits_nothing() -> None:
    machine = Machine(base=0.0, decode_row=0.0, prefill_row=0.0)
    machine.decode(1)
    assert max(machine.run(1, 2000)) >= CHUNK - ROW_GROUP
    assert machine.run(0, 1000)[1] == CHUNK
