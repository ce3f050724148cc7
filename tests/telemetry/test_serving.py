import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrite.telemetry import Percentiles, RequestRing, ServingStats
from tests.telemetry.support import request


def stats_of(*, capacity: int = 200) -> ServingStats:
    return ServingStats(RequestRing(capacity))


def test_nothing_measured_is_none() -> None:
    stats = stats_of()
    assert stats.latency_ms() is None
    assert stats.ttft_ms() is None
    stats.started()
    stats.finished(request(error="server_error"))
    assert stats.latency_ms() is None
    assert stats.ttft_ms() is None


def test_each_request_ends_in_one_count() -> None:
    stats = stats_of()
    for _ in range(5):
        stats.started()
    assert (stats.in_flight, stats.completed, stats.aborted, stats.failed) == (5, 0, 0, 0)
    stats.finished(request("done", finish_reason="stop"))
    stats.finished(request("gone", cancelled=True))
    stats.finished(request("gone while failing", cancelled=True, error="server_error"))
    stats.finished(request("failed", error="server_error"))
    assert (stats.in_flight, stats.completed, stats.aborted, stats.failed) == (1, 1, 2, 1)
    assert [row.request_id for row in stats.ring.rows()] == ["done", "gone", "gone while failing", "failed"]


def test_finishing_gives_the_row() -> None:
    stats = stats_of()
    stats.started()
    stats.started()
    assert stats.finished(request("a")).sequence == 0
    assert stats.finished(request("b")).sequence == 1


def test_token_totals_outlive_the_ring() -> None:
    stats = stats_of(capacity=1)
    for _ in range(3):
        stats.started()
    stats.finished(request(prompt_tokens=10, completion_tokens=4))
    stats.finished(request(prompt_tokens=7, completion_tokens=1, cancelled=True))
    stats.finished(request(error="rate_limit_exceeded"))
    assert (stats.prompt_tokens_total, stats.completion_tokens_total) == (17, 5)


def test_latency_is_that_of_completed_requests() -> None:
    stats = stats_of()
    for finished in (
        request(total_ms=100.0),
        request(total_ms=1.0, error="rate_limit_exceeded"),
        request(total_ms=2.0, cancelled=True),
    ):
        stats.started()
        stats.finished(finished)
    assert stats.latency_ms() == Percentiles(p50=100.0, p95=100.0)
    seen = stats.end_to_end_seconds.snapshot()
    assert (seen.count, seen.sum) == (1, 0.1)


def test_the_first_token_of_a_cancelled_request_counts() -> None:
    stats = stats_of()
    stats.started()
    stats.finished(request(ttft_ms=10.0, cancelled=True))
    assert stats.ttft_ms() == Percentiles(p50=10.0, p95=10.0)


@pytest.mark.parametrize(
    ("count", "p50", "p95"), [(1, 1, 1), (2, 1, 2), (3, 2, 3), (10, 5, 10), (20, 10, 19), (100, 50, 95)]
)
def test_percentiles_are_nearest_rank(count: int, p50: float, p95: float) -> None:
    stats = stats_of()
    for milliseconds in range(count, 0, -1):
        stats.started()
        stats.finished(request(total_ms=float(milliseconds)))
    assert stats.latency_ms() == Percentiles(p50, p95)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30), st.integers(1, 10))
def test_a_percentile_was_measured_and_bounds_its_share(values: list[float], capacity: int) -> None:
    stats = stats_of(capacity=capacity)
    for value in values:
        stats.started()
        stats.finished(request(total_ms=value))
    kept = values[-capacity:]
    seen = stats.latency_ms()
    assert seen is not None
    assert seen.p50 == statistics.median_low(kept)
    assert seen.p95 in kept
    assert sum(value <= seen.p95 for value in kept) >= 0.95 * len(kept)
    assert sum(value < seen.p95 for value in kept) < 0.95 * len(kept)
