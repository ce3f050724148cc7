"""One answer: ids, the whole message, finish reasons."""

import re
from typing import Literal

import pytest

from ferrite.toolcalls import AnswerStream, Call, Reasoning, Text, WholeAnswer, call_ids, whole
from ferrite.toolcalls.families import HERMES
from tests.toolcalls.support import THINK, read, syntax

CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
CUT = '<tool_call>{"name": "f", "arguments": {"a'


def test_ids_are_unique_and_repeatable() -> None:
    ids = [call_ids(unique)(index) for unique in ("a", "b") for index in range(16)]
    assert len(set(ids)) == 32
    assert all(re.fullmatch("call_[A-Za-z0-9]{24}", made) for made in ids)
    assert call_ids("a")(3) == ids[3]


def test_the_whole_answer_joins_what_was_streamed() -> None:
    stream = AnswerStream(calls=syntax(HERMES), marks=THINK)
    events = read(f"<think>\nhm {CALL}\n</think>\n\nI look.\n{CALL}\n{CALL}", stream)
    assert whole(events) == WholeAnswer(
        "I look.",
        f"hm {CALL}",
        (Call("call_0", "f", '{"a": 1}', complete=True), Call("call_1", "f", '{"a": 1}', complete=True)),
    )
    assert whole([]) == WholeAnswer("", None, ())
    assert whole(read(CALL, AnswerStream(calls=syntax(HERMES)))).content is None
    assert whole([Reasoning("a"), Reasoning("b"), Text("c")]) == WholeAnswer("c", "ab", ())


def test_without_tools_calls_are_text() -> None:
    assert whole(read(CALL, AnswerStream())) == WholeAnswer(CALL, None, ())


@pytest.mark.parametrize(
    ("text", "engine", "reason"),
    [
        ("hi", "stop", "stop"),
        ("hi", "length", "length"),
        (CALL, "stop", "tool_calls"),
        (f"{CALL} and", "length", "length"),
        (CUT, "length", "length"),
        (CUT, "stop", "length"),
        (CALL + CUT, "stop", "length"),
        ("<tool_call>x", "stop", "stop"),
    ],
)
def test_finish_reasons(text: str, engine: Literal["stop", "length"], reason: str) -> None:
    stream = AnswerStream(calls=syntax(HERMES))
    read(text, stream)
    assert stream.finish_reason(engine) == reason


def test_an_answer_that_has_ended_was_not_cut() -> None:
    stream = AnswerStream(calls=syntax(HERMES, max_calls=1))
    read(CALL, stream)
    assert stream.ended
    assert stream.finish_reason("length") == "tool_calls"
