"""Reasoning sections: their bounds, their newlines, their tokens, and any way of cutting the text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrite.toolcalls import AnswerEvent, AnswerStream, Reasoning, Text, prompt_opens
from tests.chat.templates import Marked
from tests.toolcalls.support import THINK, cut, read

pieces = st.lists(
    st.sampled_from(["<think>", "</think>", "</thi", "<th", "\n", "\n\n", " ", "a", "é😀", "<", "</", ">"]),
    max_size=10,
).map("".join)


def _read(text: str, *, opened: bool = False) -> list[AnswerEvent]:
    return read(text, AnswerStream(marks=THINK, opened=opened))


@pytest.mark.parametrize(
    ("text", "events"),
    [
        ("<think>\nhm\n</think>\n\nHi", [Reasoning("hm"), Text("Hi")]),
        ("<think>a</think>b", [Reasoning("a"), Text("b")]),
        ("\n <think>\n\na\n\nb\n\n</think>\n\n\nc\n", [Reasoning("a\n\nb"), Text("c\n")]),
        ("<think>\n\n</think>\n\nHi", [Text("Hi")]),
        ("<think>a </think> b", [Reasoning("a "), Text(" b")]),
        ("<think>a</thin</think>b", [Reasoning("a</thin"), Text("b")]),
        ("<think>a\n</thin", [Reasoning("a\n</thin")]),
        ("<think>a\n\n", [Reasoning("a")]),
        ("<think>1 <think> 2</think>3</think>", [Reasoning("1 <think> 2"), Text("3</think>")]),
        ("Hi <think>x</think>", [Text("Hi <think>x</think>")]),
        ("\n\n<thing>", [Text("\n\n<thing>")]),
        (" \n", [Text(" \n")]),
        ("<thin", [Text("<thin")]),
        ("", []),
    ],
)
def test_a_section_at_the_beginning_is_reasoning(text: str, events: list[AnswerEvent]) -> None:
    assert _read(text) == events


@pytest.mark.parametrize(
    ("text", "events"),
    [
        ("hm\n</think>\n\nHi", [Reasoning("hm"), Text("Hi")]),
        ("\nhm", [Reasoning("hm")]),
        ("</think>Hi", [Text("Hi")]),
        ("<think>\nhm</think>", [Reasoning("<think>\nhm")]),
    ],
)
def test_a_section_that_the_prompt_opened(text: str, events: list[AnswerEvent]) -> None:
    assert _read(text, opened=True) == events


@given(pieces, st.lists(st.integers(0, 60), max_size=6), st.booleans())
def test_any_cut_gives_the_same(text: str, places: list[int], opened: bool) -> None:
    assert read(cut(text, places), AnswerStream(marks=THINK, opened=opened)) == _read(text, opened=opened)


@given(st.text(st.characters(exclude_characters="<")), st.text(st.characters(exclude_characters="<")))
def test_reasoning_and_content_are_never_mixed(thought: str, answer: str) -> None:
    events = _read(f"<think>\n{thought}\n</think>\n\n{answer}")
    assert [event.delta for event in events if isinstance(event, Reasoning)] == [thought.strip("\n")] * bool(
        thought.strip("\n")
    )
    assert [event.delta for event in events if isinstance(event, Text)] == [answer.lstrip("\n")] * bool(
        answer.lstrip("\n")
    )


def test_tokens_of_the_section_are_counted_with_their_marks() -> None:
    stream = AnswerStream(marks=THINK)
    for token in ("<think>", "\n", "a", "", "b", "</think>", "\n\n", "c"):
        stream.push(token)
    assert stream.reasoning_tokens == 6
    opened = AnswerStream(marks=THINK, opened=True)
    opened.push("a", 3)
    opened.push("</think>", 1)
    opened.push("b", 5)
    assert opened.reasoning_tokens == 4
    assert AnswerStream().reasoning_tokens == 0
    split = AnswerStream(marks=THINK)
    for token in ("\n", "<th", "ink>", "a", "</think>"):
        split.push(token)
    assert split.reasoning_tokens == 5
    unlike = AnswerStream(marks=THINK)
    for token in ("<th", "is", "<think>"):
        unlike.push(token)
    assert unlike.reasoning_tokens == 0


def test_the_section_lasts_until_the_answer_begins() -> None:
    stream = AnswerStream(marks=THINK)
    seen = []
    for token in ("<th", "ink>", "a", "</think>", "\n", "b", "<think>"):
        stream.push(token)
        seen.append(stream.in_reasoning)
    assert seen == [False, True, True, True, True, False, False]
    assert not AnswerStream().in_reasoning


def test_a_prompt_opens_the_section_only_at_its_very_end() -> None:
    tokenizer = Marked(("<think>", "</think>", "<|im_start|>"))
    assert prompt_opens(THINK, [3, "assistant\n", 1, "\n"], tokenizer.token_text)
    assert prompt_opens(THINK, [3, "assistant\n<think>\n"], tokenizer.token_text)
    assert not prompt_opens(THINK, [3, "assistant\n", 1, "\n\n", 2, "\n\n"], tokenizer.token_text)
    assert not prompt_opens(THINK, [3, "user\n<think>", 3, "assistant\n"], tokenizer.token_text)
    assert not prompt_opens(THINK, [], tokenizer.token_text)
