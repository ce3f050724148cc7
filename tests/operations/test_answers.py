"""Whole and streamed answers of both routes in one form, and every way in which one can be broken."""

import json
from typing import Any

import pytest

from ferrite.operations.answers import Answer, AnswerReader, ErrorBody, TokenCounts, read_error
from ferrite.operations.sse import SseEvent

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
COUNTS = TokenCounts(prompt=7, completion=3, cached=None, total=10)


def event(value: Any, name: str = "message") -> SseEvent:
    return SseEvent(name, value if isinstance(value, bytes) else json.dumps(value).encode())


def chunk(reason: str | None = None, **fields: Any) -> SseEvent:
    return event({"choices": [{"index": 0, "finish_reason": reason, **fields}]})


def read(*events: SseEvent) -> AnswerReader:
    reader = AnswerReader()
    for number, each in enumerate(events):
        reader.add_event(each, float(number))
    reader.close()
    return reader


DONE = event(b"[DONE]")


def test_a_chat_stream() -> None:
    reader = read(
        chunk(delta={"role": "assistant", "content": ""}),
        chunk(delta={"content": "Hel"}, token_ids=[1]),
        chunk(delta={"content": ""}, token_ids=[2]),
        chunk(delta={"content": "lo"}, token_ids=[3]),
        chunk("stop", delta={}),
        event({"choices": [], "usage": {**USAGE, "prompt_tokens_details": {"cached_tokens": 4}}}),
        DONE,
    )
    assert reader.failure is None
    assert reader.content_times == [1.0, 2.0, 3.0]
    assert reader.finish_time == 4.0
    assert reader.answer() == Answer("Hello", (1, 2, 3), "stop", TokenCounts(7, 3, 4, 10))


def test_a_completion_stream_without_ids_or_usage() -> None:
    reader = read(chunk(text="a"), chunk(text="b"), chunk("length", text=""), DONE)
    assert reader.answer() == Answer("ab", None, "length", None)
    assert reader.content_times == [0.0, 1.0]


def test_reasoning_is_content_in_time_and_no_text() -> None:
    reader = read(chunk(delta={"reasoning_content": "hm"}), chunk("stop", delta={}), DONE)
    assert reader.content_times == [0.0]
    assert reader.answer().text == ""


@pytest.mark.parametrize(
    ("events", "failure"),
    [
        ([], "broken_stream"),
        ([chunk(text="a")], "broken_stream"),
        ([chunk("stop", text="")], "broken_stream"),
        ([DONE], "broken_stream"),
        ([chunk("stop", text=""), DONE, chunk(text="more")], "broken_stream"),
        ([event(b"{")], "malformed_answer"),
        ([event({"choices": 1})], "malformed_answer"),
        ([event(b"no error object", "error")], "malformed_error"),
        (
            [
                chunk(text="a"),
                event(
                    {"error": {"message": "m", "type": "server_error", "param": None, "code": "gone"}},
                    "error",
                ),
            ],
            "gone",
        ),
    ],
)
def test_a_broken_stream_has_a_word_for_it(events: list[SseEvent], failure: str) -> None:
    assert read(*events).failure == failure


@pytest.mark.parametrize("choice", [{"text": "ab"}, {"message": {"role": "assistant", "content": "ab"}}])
def test_a_whole_answer(choice: dict[str, Any]) -> None:
    reader = AnswerReader()
    body = {"choices": [{**choice, "finish_reason": "length", "token_ids": [1, 2, 3]}], "usage": USAGE}
    reader.add_whole(json.dumps(body).encode())
    assert (reader.failure, reader.ended) == (None, True)
    assert reader.answer() == Answer("ab", (1, 2, 3), "length", COUNTS)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"choices":[]}',
        b'{"choices":[{"text":"a","finish_reason":null}]}',
        b'{"choices":[{"text":"a","finish_reason":"stop"}],"usage":{}}',
    ],
)
def test_a_whole_answer_that_is_none(body: bytes) -> None:
    reader = AnswerReader()
    reader.add_whole(body)
    assert reader.failure == "malformed_answer"


def test_an_error_object_needs_all_four_names() -> None:
    error = {"message": "m", "type": "t", "param": None, "code": None}
    assert read_error(json.dumps({"error": error}).encode()) == ErrorBody("m", "t", None, None)
    for name in error:
        partial = {key: value for key, value in error.items() if key != name}
        assert read_error(json.dumps({"error": partial}).encode()) is None
    assert read_error(b"busy") is None
