"""One generation becomes items and events: the same response streamed and whole, whatever the pieces are."""

import json
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import pydantic
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent

from ferrite.api.errors import server_error
from ferrite.api.replies import ReplyOptions
from ferrite.api.responses_answers import ReasoningAnswer, ResponseAnswer, TextAnswer
from ferrite.api.responses_reply import ResponsesBuilder
from ferrite.api.tools import AnswerRules
from ferrite.engine.events import CacheTrace, Delta, Finished, Timings, Usage
from ferrite.toolcalls import ReasoningMarks
from ferrite.toolcalls.families import HERMES
from tests.engine.fakes import ByteDetokenizer

EVENTS: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(ResponseStreamEvent)
THINK = ReasoningMarks("<think>", "</think>")
WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": -3}}\n</tool_call>'
CLOCK = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'


def reading(*, parallel: bool = True) -> AnswerRules:
    names = frozenset({"weather", "clock"})
    return AnswerRules(None, HERMES, names, max_calls=16 if parallel else 1, marks=THINK)


def builder(rules: AnswerRules, **changes: Any) -> ResponsesBuilder:
    given: dict[str, Any] = {
        "unique": "0123abcd",
        "request_id": "req-1",
        "model_id": "m",
        "prompts": ((1, 2, 3),),
        "n": 1,
        "stream": True,
        "include_usage": False,
        "include_obfuscation": False,
        "token_ids": False,
        "logprobs": None,
        "cache_trace": False,
        "cache_key_given": False,
        **changes,
    }
    response = ResponseAnswer(
        id="resp_0123abcd",
        created_at=1,
        status="in_progress",
        model="m",
        instructions=None,
        max_output_tokens=None,
        temperature=0.0,
        top_p=1.0,
        top_logprobs=0,
        text=TextAnswer({"type": "text"}),
        tools=[],
        tool_choice="auto",
        parallel_tool_calls=True,
        metadata={},
        prompt_cache_key=None,
        safety_identifier=None,
        user=None,
        reasoning=ReasoningAnswer(None),
    )
    return ResponsesBuilder(
        response,
        rules,
        ReplyOptions(**given),
        detokenizer=ByteDetokenizer(),
        token_bytes=lambda token: bytes([token]),
    )


def run(
    made: ResponsesBuilder,
    pieces: Sequence[str],
    *,
    reason: Literal["stop", "length"] = "stop",
    cache: CacheTrace | None = None,
) -> list[dict[str, Any]]:
    """Return the events of a generation, as a client decodes them; each is one of the client's own."""
    sent = made.opening()
    for piece in pieces:
        sent += made.add(0, Delta(piece, (7,)))
        if made.ended(0):
            break
    usage = Usage(3, len(pieces), 2 if cache else 0)
    timings = Timings(0.0, 0.0, 0.0)
    sent += made.add(0, Finished(reason, usage, timings, (), None, cache or CacheTrace()))
    sent += made.closing()
    decoded = []
    for number, each in enumerate(sent):
        data = msgspec.json.encode(each.data)
        event = EVENTS.validate_json(data, strict=True)
        assert event.type == each.event
        assert event.sequence_number == number
        decoded.append(json.loads(data))
    return decoded


def whole(made: ResponsesBuilder) -> dict[str, Any]:
    data = msgspec.json.encode(made.whole())
    Response.model_validate_json(data, strict=True)
    decoded: dict[str, Any] = json.loads(data)
    return decoded


def types(events: Sequence[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_text_is_the_sequence_that_clients_know() -> None:
    made = builder(AnswerRules())
    events = run(made, ["Hel", "", "lo"])
    assert types(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    response = events[-1]["response"]
    assert response == whole(made)
    assert response["status"] == "completed"
    assert response["completed_at"] >= response["created_at"]
    assert response["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 6,
    }
    (item,) = response["output"]
    assert item["content"] == [{"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}]
    assert {event["item_id"] for event in events if "item_id" in event} == {item["id"]}
    assert events[2]["item"] == {**item, "status": "in_progress", "content": []}
    assert events[0]["response"]["request_id"] == "req-1"
    assert events[0]["response"]["output"] == events[1]["response"]["output"] == []
    assert made.finish_reasons == ["stop"]


def test_calls_are_items_with_two_ids() -> None:
    made = builder(reading())
    events = run(made, list("Well. " + WEATHER + "\n" + CLOCK))
    said, weather, clock = events[-1]["response"]["output"]
    assert said["content"][0]["text"].strip() == "Well."
    assert (weather["type"], weather["name"], weather["status"]) == ("function_call", "weather", "completed")
    assert json.loads(weather["arguments"]) == {"city": "Oslo", "days": -3}
    assert clock["arguments"] == "{}"
    assert weather["call_id"].startswith("call_")
    assert len({said["id"], weather["id"], clock["id"], weather["call_id"], clock["call_id"]}) == 5
    for index, item in ((1, weather), (2, clock)):
        of_item = [event for event in events if event.get("output_index") == index]
        assert of_item[0]["item"] == {**item, "status": "in_progress", "arguments": ""}
        deltas = [event["delta"] for event in of_item if event["type"].endswith("arguments.delta")]
        assert "".join(deltas) == item["arguments"] == of_item[-2]["arguments"]
        assert of_item[-1]["item"] == item
        assert {event["item_id"] for event in of_item if "item_id" in event} == {item["id"]}
    assert made.finish_reasons == ["tool_calls"]


def test_reasoning_is_an_item_before_the_answer() -> None:
    made = builder(reading())
    events = run(made, ["<think>\n", "hm", "\n</think>\n\n", "Yes."])
    thought, said = events[-1]["response"]["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert (thought["summary"], thought["status"]) == ([], "completed")
    assert said["content"][0]["text"] == "Yes."
    assert types(events)[2:8] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
    ]
    assert events[-1]["response"]["usage"]["output_tokens_details"]["reasoning_tokens"] == 3


def test_an_answer_that_its_budget_cut_is_incomplete() -> None:
    made = builder(AnswerRules())
    events = run(made, ["Hel"], reason="length")
    assert events[-1]["type"] == "response.incomplete"
    response = events[-1]["response"]
    assert (response["status"], response["completed_at"]) == ("incomplete", None)
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "incomplete"
    assert response == whole(made)


def test_a_call_that_breaks_off_is_incomplete() -> None:
    made = builder(reading())
    events = run(made, [CLOCK + WEATHER[:60]], reason="length")
    clock, weather = events[-1]["response"]["output"]
    assert (clock["status"], weather["status"]) == ("completed", "incomplete")
    assert (events[-1]["type"], made.finish_reasons) == ("response.incomplete", ["length"])


def test_an_empty_answer_is_an_empty_message() -> None:
    made = builder(reading())
    events = run(made, [])
    assert types(events)[2:-1] == [
        "output_item.added",
        "content_part.added",
        "output_text.done",
        "content_part.done",
        "output_item.done",
    ]
    assert whole(made)["output"][0]["content"][0]["text"] == ""


def test_an_answer_ends_behind_its_only_call() -> None:
    made = builder(reading(parallel=False))
    events = run(made, [WEATHER, "\nmore", " text"])
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["function_call"]


def test_extras_come_where_they_were_asked_for() -> None:
    trace = CacheTrace("hit", 2, 2, False, True, "id")
    made = builder(
        AnswerRules(), token_ids=True, cache_trace=True, cache_key_given=True, include_obfuscation=True
    )
    events = run(made, ["a", "b"], cache=trace)
    response = whole(made)
    assert response["token_ids"] == [7, 7]
    assert response["ferrite_cache_trace"]["outcome"] == "hit"
    assert response["ferrite_cache_trace"]["key_given"] is True
    assert response["usage"]["input_tokens_details"] == {"cached_tokens": 2, "cache_write_tokens": 1}
    padded = [event for event in events if event["type"].endswith(".delta")]
    assert all(len(event["delta"].encode()) + len(event["obfuscation"]) == 32 for event in padded)
    plain = whole_of(AnswerRules())
    assert not {"token_ids", "ferrite_cache_trace", "request_id"} & plain.keys()


def whole_of(rules: AnswerRules) -> dict[str, Any]:
    made = builder(rules, stream=False)
    run(made, ["a"])
    return whole(made)


def test_a_failure_is_an_event_with_the_next_number() -> None:
    made = builder(AnswerRules())
    made.opening()
    made.add(0, Delta("a", (1,)))
    (sent,) = made.failure(server_error("The step failed."))
    event = json.loads(msgspec.json.encode(sent.data))
    EVENTS.validate_python(event, strict=True)
    assert (sent.event, event["type"], event["sequence_number"]) == ("error", "error", 5)
    assert (event["message"], event["code"], event["param"]) == ("The step failed.", "internal_error", None)
    assert event["error"] == {
        "message": "The step failed.",
        "type": "server_error",
        "param": None,
        "code": "internal_error",
    }


PARTS = st.sampled_from(
    ["Hi ", "é🦀", "\n", "{", "<tool", "<think>\n", "hm\n", "</think>", WEATHER, CLOCK, "}", " "]
)


@settings(max_examples=40)
@given(
    st.lists(PARTS, max_size=8), st.lists(st.integers(1, 9), min_size=1), st.sampled_from(["stop", "length"])
)
def test_the_pieces_do_not_matter(
    parts: list[str], sizes: list[int], reason: Literal["stop", "length"]
) -> None:
    text = "".join(parts)
    pieces: list[str] = []
    at = 0
    while at < len(text):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(text[at : at + size])
        at += size
    streamed, at_once = builder(reading()), builder(reading())
    events = run(streamed, pieces, reason=reason)
    run(at_once, [text] if text else [], reason=reason)
    output = events[-1]["response"]["output"]
    assert output == whole(at_once)["output"] == whole(streamed)["output"]
    check_events(events, output)


def check_events(events: Sequence[dict[str, Any]], output: Sequence[dict[str, Any]]) -> None:
    """Each item begins, is written by its deltas alone, and ends before the next begins."""
    open_items: list[int] = []
    n_done = 0
    written = [""] * len(output)
    for event in events[2:-1]:
        index = event["output_index"]
        if event["type"] == "response.output_item.added":
            assert (index, open_items) == (n_done, [])
            open_items.append(index)
        assert open_items == [index]
        if "delta" in event:
            assert event["delta"]
            written[index] += event["delta"]
        if event["type"] == "response.output_item.done":
            assert event["item"] == output[index]
            open_items.remove(index)
            n_done += 1
    assert n_done == len(output)
    for text, item in zip(written, output, strict=True):
        whole_text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert text == whole_text
