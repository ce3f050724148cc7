from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrite.telemetry import RateWindow

RESOLUTION = 0.05


def test_there_is_no_rate_before_the_first_sample() -> None:
    window = RateWindow()
    assert window.rate(0.0) is None
    assert window.rate(1e6) is None


def test_the_first_sample_s_own_rate_is_that_of_its_work() -> None:
    window = RateWindow()
    window.add(100.0, 128, seconds=0.5)
    assert window.rate(100.0) == pytest.approx(256.0)
    assert window.rate(101.0) == pytest.approx(128 / 1.5)


def test_a_first_sample_without_a_duration_has_a_finite_rate() -> None:
    window = RateWindow()
    window.add(100.0, 3)
    assert window.rate(100.0) == pytest.approx(3 / RESOLUTION)
    assert window.rate(102.0) == pytest.approx(1.5)


def test_a_young_window_divides_by_the_time_since_counting_began() -> None:
    window = RateWindow()
    for tick in range(1, 21):
        window.add(50 + tick / 10, 4, seconds=0.1)
    assert window.rate(52.0) == pytest.approx(40.0)


def test_a_full_window_divides_by_what_its_buckets_cover() -> None:
    window = RateWindow()
    for tick in range(1, 2001):
        window.add(50 + tick / 100, 1, seconds=0.01)
        if tick > 500:
            assert window.rate(50 + tick / 100) == pytest.approx(100, rel=0.011)


def test_the_oldest_bucket_is_the_hundredth() -> None:
    window = RateWindow(100.0)
    for second in range(1000):
        window.add(second + 0.5, 1)
    # 100 samples since the start of bucket 900, which is 99.5 s ago.
    assert window.rate(999.5) == 100 / 99.5
    assert window.rate(1000.0) == 99 / 99


def test_the_rate_falls_with_idleness_to_exactly_zero() -> None:
    window = RateWindow()
    for tick in range(100):
        window.add(10 + tick / 10, 2)
    last = 10 + 99 / 10
    rates = [window.rate(last + idle / 2) or 0.0 for idle in range(10)]
    assert all(before > after > 0 for before, after in pairwise(rates))
    assert window.rate(last + 4.9) != 0.0
    assert window.rate(last + 5.0) == 0.0
    assert window.rate(last + 1e9) == 0.0


def test_work_after_idleness_is_spread_over_the_window() -> None:
    window = RateWindow()
    window.add(0.0, 1000)
    window.add(3600.0, 50)
    assert window.rate(3600.0) == pytest.approx(10, rel=0.011)


def test_a_sample_of_nothing_is_a_sample() -> None:
    window = RateWindow()
    window.add(1.0, 0)
    assert window.rate(1.0) == 0.0


def test_memory_is_fixed_under_a_million_samples() -> None:
    window = RateWindow()
    slots = len(window._buckets)
    for tick in range(1_000_000):
        window.add(tick * 1e-5, 1)
    assert len(window._buckets) == slots == 100
    assert window.rate(10.0) == pytest.approx(1e5, rel=0.011)


def test_a_reader_whose_clock_reading_is_a_little_older_sees_the_newest_samples() -> None:
    window = RateWindow()
    window.add(10.0, 5, seconds=1.0)
    window.add(10.2, 5)
    assert window.rate(10.0) == pytest.approx(10.0)


def test_a_window_needs_a_length() -> None:
    for seconds in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="window_seconds"):
            RateWindow(seconds)


@given(
    gaps=st.lists(
        st.tuples(st.one_of(st.floats(0, 0.3), st.floats(0, 12)), st.integers(0, 500)),
        min_size=1,
        max_size=60,
    ),
    start=st.floats(0, 1e6),
    idle=st.floats(0, 7),
)
def test_the_rate_equals_that_of_the_list_of_all_samples(
    gaps: list[tuple[float, int]], start: float, idle: float
) -> None:
    window = RateWindow(5.0)
    samples: list[tuple[float, int]] = []
    now = start
    for gap, count in gaps:
        now += gap
        window.add(now, count)
        samples.append((now, count))
    now += idle
    rate = window.rate(now)
    assert rate is not None
    # The oldest bucket is in or out as a whole: the truth lies between both ends of one bucket.
    slack = RESOLUTION + 1e-6
    fewest = sum(count for at, count in samples if at > now - 5.0 + slack)
    most = sum(count for at, count in samples if at > now - 5.0 - slack)
    covered = max(min(now - samples[0][0], 5.0), RESOLUTION)
    assert fewest / (covered + 1e-6) <= rate * (1 + 1e-9)
    assert rate <= most / (min(covered, 5.0 - slack) - 1e-6)
