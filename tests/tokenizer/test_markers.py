"""Cutting marker tokens out of text."""

from hypothesis import given
from hypothesis import strategies as st

from ferrite.tokenizer.markers import MarkerSplitter

NEWLINES = {"\n" * count: count for count in range(1, 32)}


def test_the_longest_marker_at_a_place_wins() -> None:
    splitter = MarkerSplitter({"<a>": 1, "<a>b": 2, "<": 3})
    assert splitter.split("x<a>bc<a>c<<b") == ["x", 2, "c", 1, "c", 3, 3, "b"]


def test_neighbouring_markers_leave_no_empty_text() -> None:
    splitter = MarkerSplitter({"<a>": 1})
    assert splitter.split("<a><a>") == [1, 1]
    assert splitter.split("") == []


def test_without_markers_the_text_stays_whole() -> None:
    assert MarkerSplitter({}).split("<a>") == ["<a>"]
    assert MarkerSplitter({}).split("") == []


def test_characters_special_in_patterns_are_plain() -> None:
    markers = {"^a": 1, "]": 2, "-": 3, "\\d": 4, "[[": 5, "&&": 6}
    assert MarkerSplitter(markers).split("^a]0-9\\d[[&&[&") == [1, 2, "0", 3, "9", 4, 5, 6, "[&"]


@given(st.integers(1, 100))
def test_runs_take_the_longest_markers_first(length: int) -> None:
    whole, rest = divmod(length, 31)
    assert MarkerSplitter(NEWLINES).split("\n" * length) == [31] * whole + ([rest] if rest else [])


@given(
    st.dictionaries(st.text("ab<", min_size=1, max_size=4), st.integers(0, 99), max_size=6),
    st.text("ab<c", max_size=30),
)
def test_equal_to_trying_every_marker_at_every_place(markers: dict[str, int], text: str) -> None:
    expected: list[str | int] = []
    at = 0
    while at < len(text):
        found = max((marker for marker in markers if text.startswith(marker, at)), key=len, default="")
        if found:
            expected.append(markers[found])
        elif expected and isinstance(expected[-1], str):
            expected[-1] += text[at]
        else:
            expected.append(text[at])
        at += len(found) or 1
    assert MarkerSplitter(markers).split(text) == expected
