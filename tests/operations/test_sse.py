"""Bytes to events, however they are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrite.operations.sse import SseError, SseEvent, SseReader

STREAM = (
    b"data: one\n\n"
    b": a comment\r\n\r\n"
    b"event: error\r\ndata: {}\r\n\r\n"
    b"id: 7\nretry: 1\ndata:two\ndata:  three\n\n"
    b"event: nothing\n\n"
    b"data\n\n"
    b"data: cut"
)
EVENTS = [
    SseEvent("message", b"one"),
    SseEvent("error", b"{}"),
    SseEvent("message", b"two\n three"),
    SseEvent("message", b""),
]


@given(st.lists(st.integers(0, len(STREAM))))
def test_events_do_not_depend_on_how_the_bytes_arrive(cuts: list[int]) -> None:
    places = sorted({0, len(STREAM), *cuts})
    reader = SseReader()
    events = [event for start, end in pairwise(places) for event in reader.feed(STREAM[start:end])]
    assert events == EVENTS


@pytest.mark.parametrize("data", [b"data: " + b"x" * 40, b"data: 012345678\n" * 4, b"x" * 33])
def test_an_event_without_end_is_refused(data: bytes) -> None:
    with pytest.raises(SseError, match="larger than 32 bytes"):
        SseReader(max_event_bytes=32).feed(data)


def test_many_small_events_are_not_one_large_one() -> None:
    assert len(SseReader(max_event_bytes=32).feed(b"data: 0123456789\n\n" * 100)) == 100
