from dataclasses import FrozenInstanceError, asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrite.telemetry import MAX_PAGE, Page, RequestRing
from tests.telemetry.support import request


def ring_of(count: int, capacity: int = 4) -> RequestRing:
    ring = RequestRing(capacity)
    for number in range(count):
        ring.push(request(f"r{number}"))
    return ring


def numbers(page: Page) -> list[int]:
    return [row.sequence for row in page.rows]


def test_a_row_is_the_request_with_its_lifelong_number() -> None:
    ring = RequestRing(2)
    finished = request("a", queue_ms=1.5, prompt_tokens=7, finish_reason="stop", streamed=True)
    rows = [ring.push(finished) for _ in range(3)]
    assert [row.sequence for row in rows] == [0, 1, 2]
    assert asdict(rows[0]) == {**asdict(finished), "sequence": 0}
    assert ring.rows() == tuple(rows[1:])
    with pytest.raises(FrozenInstanceError):
        rows[0].sequence = 5  # type: ignore[misc]


def test_what_was_not_measured_is_none() -> None:
    row = RequestRing().push(request())
    assert (row.queue_ms, row.prefill_ms, row.decode_ms, row.total_ms) == (None, None, None, None)
    assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (None, None, None)
    assert (row.finish_reason, row.error, row.ttft_ms) == (None, None, None)


def test_a_row_begins_with_its_number() -> None:
    row = RequestRing().push(request(ttft_ms=32.0))
    assert next(iter(asdict(row))) == "sequence"
    assert (row.sequence, row.ttft_ms) == (0, 32.0)


def test_an_empty_ring_answers_an_empty_page() -> None:
    assert RequestRing().since(0) == Page((), missed=0, next_cursor=0, recorded_total=0)


def test_a_complete_page_moves_the_cursor_to_the_all_time_count() -> None:
    page = ring_of(3).since(1)
    assert numbers(page) == [1, 2]
    assert (page.missed, page.next_cursor, page.recorded_total) == (0, 3, 3)


def test_a_cut_page_moves_the_cursor_only_behind_its_last_row() -> None:
    page = ring_of(4).since(1, limit=2)
    assert numbers(page) == [1, 2]
    assert (page.missed, page.next_cursor, page.recorded_total) == (0, 3, 4)


def test_a_page_of_exactly_what_is_left_is_complete() -> None:
    page = ring_of(4).since(1, limit=3)
    assert numbers(page) == [1, 2, 3]
    assert page.next_cursor == 4


def test_rows_that_fell_off_are_counted_as_missed() -> None:
    page = ring_of(10).since(1, limit=2)
    assert numbers(page) == [6, 7]
    assert (page.missed, page.next_cursor, page.recorded_total) == (5, 8, 10)


def test_a_cursor_at_the_oldest_row_missed_nothing() -> None:
    ring = ring_of(10)
    assert ring.since(6).missed == 0
    assert ring.since(5).missed == 1


@pytest.mark.parametrize("cursor", [3, 4, 10_000])
def test_a_cursor_at_or_beyond_the_end_is_a_complete_empty_page(cursor: int) -> None:
    assert ring_of(3).since(cursor) == Page((), missed=0, next_cursor=3, recorded_total=3)


def test_the_ring_holds_the_last_200_by_default() -> None:
    ring = RequestRing()
    for _ in range(450):
        ring.push(request())
    assert [row.sequence for row in ring.rows()] == list(range(250, 450))
    assert ring.recorded_total == 450
    assert len(ring.since(0).rows) == MAX_PAGE == 200


@pytest.mark.parametrize("limit", [-1, 0, MAX_PAGE + 1])
def test_a_limit_out_of_bounds_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match=f"limit is {limit}, must be from 1 to 200"):
        ring_of(3).since(0, limit)


def test_a_negative_cursor_and_an_empty_ring_are_refused() -> None:
    with pytest.raises(ValueError, match="cursor is -1"):
        ring_of(3).since(-1)
    with pytest.raises(ValueError, match="capacity is 0"):
        RequestRing(0)


pushes_and_polls = st.lists(
    st.one_of(st.tuples(st.just("push"), st.integers(0, 12)), st.tuples(st.just("poll"), st.integers(1, 9))),
    max_size=40,
)


@given(capacity=st.integers(1, 8), actions=pushes_and_polls, last_limit=st.integers(1, 9))
def test_a_poller_gets_each_request_once_in_order_or_in_missed(
    capacity: int, actions: list[tuple[str, int]], last_limit: int
) -> None:
    ring = RequestRing(capacity)
    recorded, cursor, missed = 0, 0, 0
    seen: list[int] = []

    def poll(limit: int) -> None:
        nonlocal cursor, missed
        page = ring.since(cursor, limit)
        assert len(page.rows) <= limit
        assert page.recorded_total == recorded
        # What lies between the old cursor and the next one is exactly what the page accounts for.
        assert page.next_cursor - cursor == page.missed + len(page.rows)
        assert numbers(page) == list(range(cursor + page.missed, page.next_cursor))
        assert all(row.request_id == f"r{row.sequence}" for row in page.rows)
        seen.extend(numbers(page))
        missed += page.missed
        cursor = page.next_cursor

    for action, count in actions:
        if action == "poll":
            poll(count)
            continue
        for _ in range(count):
            ring.push(request(f"r{recorded}"))
            recorded += 1
    while cursor < recorded:
        poll(last_limit)
    assert seen == sorted(set(seen))
    assert len(seen) + missed == recorded == ring.recorded_total
