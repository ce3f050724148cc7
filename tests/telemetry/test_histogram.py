import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrite.telemetry import Histogram, histogram

TABLES = {
    name: table for name, table in vars(histogram).items() if name.isupper() and isinstance(table, tuple)
}


def test_bounds_are_inclusive_and_the_last_is_infinite() -> None:
    counts = Histogram((1, 2, 5))
    for value in (0.5, 1.0, 1.5, 2.0, 5.0, 5.1, 1e9):
        counts.observe(value)
    seen = counts.snapshot()
    assert seen.bounds == (1.0, 2.0, 5.0, math.inf)
    assert seen.cumulative == (2, 4, 5, 7)
    assert seen.count == 7
    assert seen.sum == pytest.approx(1e9 + 15.6)


def test_an_untouched_histogram_counts_nothing() -> None:
    seen = Histogram((1.0,)).snapshot()
    assert (seen.cumulative, seen.count, seen.sum) == ((0, 0), 0, 0.0)


def test_a_snapshot_does_not_move() -> None:
    counts = Histogram((1.0,))
    before = counts.snapshot()
    counts.observe(0.5)
    assert before.cumulative == (0, 0)
    assert counts.snapshot().cumulative == (1, 1)


def test_extreme_observations_have_a_bucket() -> None:
    counts = Histogram((1.0,))
    counts.observe(-3.0)
    counts.observe(math.inf)
    assert counts.snapshot().cumulative == (1, 2)


def test_what_is_not_a_number_is_refused() -> None:
    counts = Histogram((1.0,))
    with pytest.raises(ValueError, match="must be a number"):
        counts.observe(math.nan)
    assert counts.snapshot().count == 0


@pytest.mark.parametrize("bounds", [(), (1.0, 1.0), (2.0, 1.0), (1.0, math.inf), (math.nan,)])
def test_bounds_must_be_finite_and_increase(bounds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="bounds must"):
        Histogram(bounds)


@given(st.lists(st.floats(-10, 200, allow_nan=False)), st.sampled_from(sorted(TABLES)))
def test_counts_equal_those_of_the_list_of_observations(values: list[float], table: str) -> None:
    counts = Histogram(TABLES[table])
    for value in values:
        counts.observe(value)
    seen = counts.snapshot()
    assert list(seen.cumulative) == [sum(value <= bound for value in values) for bound in seen.bounds]
    assert seen.count == len(values)
    assert seen.sum == sum(values)


def test_every_table_is_found() -> None:
    assert set(TABLES) == {
        "TTFT_SECONDS",
        "INTER_TOKEN_SECONDS",
        "QUEUE_WAIT_SECONDS",
        "END_TO_END_SECONDS",
        "STEP_SECONDS",
        "BATCH_SEQUENCES",
    }


def test_a_stall_of_three_times_the_median_lies_two_bounds_away() -> None:
    bounds = [bound for bound in histogram.INTER_TOKEN_SECONDS if bound <= 1.0]
    for below, beyond in zip(bounds, bounds[2:], strict=False):
        assert beyond / below <= 2.5 * (1 + 1e-9)


def test_the_arrival_window_is_a_bound_of_the_queue_wait() -> None:
    assert 0.005 in histogram.QUEUE_WAIT_SECONDS


def test_batches_up_to_eight_are_told_apart() -> None:
    assert histogram.BATCH_SEQUENCES[:8] == tuple(range(1, 9))
