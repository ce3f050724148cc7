"""The input of a Responses request is the equivalent chat, or is refused by path."""

from typing import Any

import msgspec
import pytest

from ferrite.api import chat
from ferrite.api.errors import ApiError
from ferrite.api.responses_input import conversation
from ferrite.api.responses_wire import MAX_INPUT_BYTES, MAX_ITEMS, MAX_PARTS, ResponsesBody
from ferrite.api.schema import BodyDecoder
from ferrite.api.wire import ChatBody
from ferrite.chat import Message

DECODER = BodyDecoder(ResponsesBody, ignore_unknown=False)
CHAT_DECODER = BodyDecoder(ChatBody, ignore_unknown=False)

CALL = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "c1",
    "name": "weather",
    "arguments": '{"city":"Oslo"}',
}
OTHER_CALL = {"type": "function_call", "call_id": "c2", "name": "clock", "arguments": ""}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "rain"}
REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "hm"}],
}


def messages_of(given: Any, **fields: Any) -> list[Message]:
    return conversation(DECODER.decode(msgspec.json.encode({"model": "m", "input": given, **fields}))[0])


def chat_messages(written: list[dict[str, Any]]) -> list[Message]:
    return chat.conversation(CHAT_DECODER.decode(msgspec.json.encode({"model": "m", "messages": written}))[0])


def refusal(given: Any, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        messages_of(given, **fields)
    assert caught.value.status == 400
    return caught.value


def test_a_string_is_a_user_s_message_behind_the_instructions() -> None:
    assert messages_of("Hi") == [Message("user", "Hi")]
    assert messages_of("Hi", instructions="Be brief.") == [
        Message("system", "Be brief."),
        Message("user", "Hi"),
    ]
    assert messages_of("Hi", instructions="") == [Message("user", "Hi")]


def test_items_as_clients_send_them_are_the_equivalent_chat() -> None:
    items = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello!"}]},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "B"}, {"type": "input_text", "text": "ye"}],
        },
    ]
    written = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "Bye"},
    ]
    assert [seen(message) for message in messages_of(items)] == [seen(m) for m in chat_messages(written)]


@pytest.mark.parametrize("role", ["user", "system", "developer", "assistant"])
def test_text_parts_are_the_joined_string_in_every_role(role: str) -> None:
    parts = [{"type": "input_text", "text": "Say"}, {"type": "input_text", "text": " hi"}]
    assert messages_of([{"role": role, "content": parts}]) == messages_of(
        [{"role": role, "content": "Say hi"}]
    )


def test_an_answer_with_text_and_calls_is_one_turn() -> None:
    said = {
        "type": "message",
        "id": "msg_1",
        "status": "completed",
        "role": "assistant",
        "content": [
            {"type": "output_text", "text": "Let me see.", "annotations": [], "logprobs": [{"token": "L"}]}
        ],
    }
    given = messages_of([{"role": "user", "content": "x"}, REASONING, said, CALL, OTHER_CALL, OUTPUT])
    expected = chat_messages(
        [
            {"role": "user", "content": "x"},
            {
                "role": "assistant",
                "content": "Let me see.",
                "reasoning_content": "hm",
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "weather", "arguments": '{"city":"Oslo"}'},
                    },
                    {"id": "c2", "type": "function", "function": {"name": "clock", "arguments": ""}},
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        ]
    )
    assert [seen(message) for message in given] == [seen(message) for message in expected]


def seen(message: Message) -> tuple[object, ...]:
    calls = [(call.id, call.name, call.arguments) for call in message.tool_calls]
    return message.role, message.content, message.reasoning_content, message.tool_call_id, calls


def test_calls_with_results_between_them_are_turns_of_their_own() -> None:
    given = messages_of([CALL, OUTPUT, OTHER_CALL])
    assert [(message.role, len(message.tool_calls)) for message in given] == [
        ("assistant", 1),
        ("tool", 0),
        ("assistant", 1),
    ]
    assert given[2].content is None


def test_reasoning_belongs_to_the_answer_behind_it() -> None:
    summary = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "so"}]}
    assert messages_of([summary, CALL])[0].reasoning_content == "so"
    alone = messages_of([REASONING, {"role": "user", "content": "go on"}])
    assert [(m.role, m.content, m.reasoning_content) for m in alone] == [
        ("assistant", "", "hm"),
        ("user", "go on", None),
    ]
    assert messages_of([{"role": "user", "content": "x"}, REASONING])[-1].reasoning_content == "hm"


def test_a_result_may_come_in_parts() -> None:
    parts = [{"type": "input_text", "text": "ra"}, {"type": "input_text", "text": "in"}]
    assert messages_of([CALL, {**OUTPUT, "output": parts}]) == messages_of([CALL, OUTPUT])


IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
TEXT_PART = {"type": "input_text", "text": "a"}


@pytest.mark.parametrize(
    ("given", "param"),
    [
        (None, "input"),
        ([], "input"),
        (7, "input"),
        ([{"role": "user", "content": [TEXT_PART, IMAGE]}], "input[0].content[1].type"),
        ([{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}], "input[0].content[0].type"),
        ([{"role": "user", "content": []}], "input[0].content"),
        ([{"role": "user"}], "input[0].content"),
        ([{"content": "x"}], "input[0].role"),
        ([{"role": "tool", "content": "x"}], "input[0].role"),
        ([{"role": "user", "content": "x", "opts": {}}], "input[0].opts"),
        ([{"role": "user", "content": "x", "arguments": "{}"}], "input[0].arguments"),
        ([{"role": "user", "content": [{"type": "output_text", "text": "a"}]}], "input[0].content[0].type"),
        (
            [{"role": "assistant", "content": [{"type": "reasoning_text", "text": "a"}]}],
            "input[0].content[0].type",
        ),
        ([{"type": "item_reference", "id": "msg_1"}], "input[0].type"),
        ([{"type": "web_search_call", "id": "w"}], "input[0].type"),
        ([{**CALL, "arguments": "{"}], "input[0].arguments"),
        ([{**CALL, "arguments": "[]"}], "input[0].arguments"),
        ([{**CALL, "arguments": None}], "input[0].arguments"),
        ([{**CALL, "call_id": ""}], "input[0].call_id"),
        ([{"type": "function_call", "call_id": "c", "arguments": "{}"}], "input[0].name"),
        ([OUTPUT], "input[0].call_id"),
        ([CALL, {**OUTPUT, "call_id": "c2"}], "input[1].call_id"),
        ([CALL, {**OUTPUT, "output": [IMAGE]}], "input[1].output[0].type"),
        ([CALL, {**OUTPUT, "output": []}], "input[1].output"),
        ([{**REASONING, "content": "x"}], "input[0].content"),
        ([{**REASONING, "content": [TEXT_PART]}], "input[0].content[0].type"),
        ([{**REASONING, "encrypted_content": "abc"}], "input[0].encrypted_content"),
        ([{"role": "user", "content": "x"}] * (MAX_ITEMS + 1), "input"),
        ([{"role": "user", "content": [TEXT_PART] * (MAX_PARTS + 1)}], "input[0].content"),
        ("é" * (MAX_INPUT_BYTES // 2 + 1), "input"),
        ([{"role": "user", "content": "x" * (MAX_INPUT_BYTES // 2 + 1)}] * 2, "input"),
    ],
)
def test_what_does_not_fit_is_refused_by_path(given: Any, param: str) -> None:
    assert refusal(given).body.param == param


def test_the_limits_themselves_are_accepted() -> None:
    assert len(messages_of([{"role": "user", "content": [TEXT_PART] * MAX_PARTS}] * MAX_ITEMS)) == MAX_ITEMS
    assert messages_of("é" * (MAX_INPUT_BYTES // 2))
