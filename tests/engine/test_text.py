from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrite.engine.text import TextStream, compile_stops, feed, initial_state
from tests.engine.fakes import ByteDetokenizer, PieceDetokenizer


def run(pieces: Sequence[str], stops: Sequence[str]) -> tuple[list[str], str | None, int]:
    """Deltas, the stop string that ended the text, and how many pieces that took."""
    stream = TextStream(PieceDetokenizer(pieces), compile_stops(tuple(stops)))
    deltas = []
    for index in range(len(pieces)):
        deltas.append(stream.push(index))
        if stream.stop is not None:
            return deltas, stream.stop, index + 1
    return [*deltas, stream.finish()], stream.stop, len(pieces)


def naive(pieces: Sequence[str], stops: Sequence[str]) -> tuple[str, bool, int]:
    """Look for the stops in the whole text after each piece."""
    text = ""
    for count, piece in enumerate(pieces, 1):
        text += piece
        starts = [text.find(stop) for stop in stops if stop in text]
        if starts:
            return text[: min(starts)], True, count
    return text, False, len(pieces)


words = st.text(alphabet="ab", min_size=1, max_size=5)


@given(st.lists(st.text(alphabet="ab", max_size=4), max_size=12), st.lists(words, max_size=4))
def test_equals_the_naive_search_for_any_split(pieces: list[str], stops: list[str]) -> None:
    deltas, stop, used = run(pieces, stops)
    text, stopped, naively_used = naive(pieces, stops)
    assert ("".join(deltas), stop is not None, used) == (text, stopped, naively_used)


@given(st.lists(st.text(alphabet="ab", max_size=4), max_size=12), st.lists(words, min_size=1, max_size=4))
def test_holds_back_exactly_what_could_become_a_stop(pieces: list[str], stops: list[str]) -> None:
    definition = compile_stops(tuple(stops))
    state, seen, sent = initial_state(definition), "", ""
    for piece in pieces:
        step = feed(definition, state, piece)
        seen, sent, state = seen + piece, sent + step.text, step.state
        if step.stop is not None:
            return
        held = max(
            (n for stop in stops for n in range(len(stop)) if seen.endswith(stop[:n])),
            default=0,
        )
        assert state.held == seen[len(seen) - held :]
        assert sent + state.held == seen


@pytest.mark.parametrize(
    ("pieces", "stops", "text"),
    [
        (["red", " gr", "een", " blue", " black"], ["green blue"], "red "),
        (["red", " green", " blue", " black"], ["n b"], "red gree"),
        (["red", " green", " blue", " black"], ["green blue", "en"], "red gre"),
        (["red", " green blue", " black"], ["en", "green blue"], "red "),
        (["{", '"v":"', "yes?", '"}'], ['"}'], '{"v":"yes?'),
        (["{", '"v":"yes?"}'], ['"}'], '{"v":"yes?'),
        (["{", '"v":"', "yes?", '"}'], ['"}and more'], '{"v":"yes?"}'),
        (["a", "a", "a", "b"], ["aab"], "a"),
        (["abab", "abc"], ["ababc"], "ab"),
        (["x"], ["x"], ""),
    ],
)
def test_field_reports_1_and_2(pieces: list[str], stops: list[str], text: str) -> None:
    deltas, _, _ = run(pieces, stops)
    assert "".join(deltas) == text
    assert not any(stop in delta for delta in deltas for stop in stops)


def test_generation_ends_at_the_token_that_completes_the_stop() -> None:
    assert run(["a", "b", "c", "d"], ["bc"]) == (["a", "", ""], "bc", 3)


def test_state_is_a_value() -> None:
    definition = compile_stops(("end",))
    state = feed(definition, initial_state(definition), "the e").state
    assert feed(definition, state, "nd").stop == "end"
    assert feed(definition, state, "at").text == "eat"


def stream_bytes(data: bytes, stops: tuple[str, ...] = ()) -> list[str]:
    stream = TextStream(ByteDetokenizer(), compile_stops(stops))
    return [*(stream.push(byte) for byte in data), stream.finish()]


def test_characters_are_never_split() -> None:
    text = "né 東京 👩‍🚀 щёки"
    deltas = stream_bytes(text.encode(), ("京都",))
    assert "".join(deltas) == text
    assert not any("\ufffd" in delta for delta in deltas)


@pytest.mark.parametrize(
    ("data", "text"),
    [(b"\xe2\x80A", "\ufffdA"), (b"\xf0", "\ufffd"), (b"a\xf0\x9f", "a\ufffd"), (b"\x80", "\ufffd")],
)
def test_ill_formed_bytes_become_one_mark(data: bytes, text: str) -> None:
    assert "".join(stream_bytes(data)) == text


def test_stop_string_completed_by_the_end_of_the_text() -> None:
    stream = TextStream(ByteDetokenizer(), compile_stops(("\ufffd",)))
    assert [stream.push(ord("a")), stream.push(0xE2), stream.finish()] == ["a", "", ""]
    assert stream.stop == "\ufffd"


def test_long_repetitive_stop_string_takes_linear_time() -> None:
    # 20,000 characters that all match a prefix: quadratic matching would compare 2 * 10**8 characters.
    pieces = ["aaaa"] * 5_000
    deltas, stop, _ = run(pieces, ["a" * 19_999 + "b"])
    assert "".join(deltas) == "a" * 20_000
    assert stop is None
