"""Reasoning apart from the answer: in deltas, messages and usage, before calls and JSON, asked for or not."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from ferrite.toolcalls import ReasoningMarks
from tests.api.scripted import Scripted, calls_of, scripted_server
from tests.api.support import MODEL_ID

THINK = ReasoningMarks("<think>", "</think>")
ECHO = {"type": "function", "function": {"name": "echo"}}
CALL = '<tool_call>\n{"name": "echo", "arguments": {}}\n</tool_call>'
OBJECT = {"type": "json_object"}


@pytest.fixture(scope="module")
def server() -> Iterator[Scripted]:
    yield from scripted_server(marks=THINK)


@pytest.mark.parametrize("fields", [{}, {"tools": [ECHO]}])
def test_reasoning_comes_apart_from_the_answer(server: Scripted, fields: dict[str, Any]) -> None:
    server.writes("<think>\nLet me < see.\n</think>\n\nHello.")
    answer = server.answer(**fields)
    (choice,) = answer["choices"]
    message = choice["message"]
    assert (message["reasoning_content"], message["content"]) == ("Let me < see.", "Hello.")
    n_tokens = len("<think>\nLet me < see.\n</think>")
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": n_tokens}
    chunks = server.chunks(stream_options={"include_usage": True}, **fields)
    *deltas, usage = chunks
    for name in ("reasoning_content", "content"):
        pieces = [chunk["choices"][0]["delta"].get(name) or "" for chunk in deltas]
        assert "".join(pieces) == message[name]
        assert sum(map(bool, pieces)) > 2
    assert usage["usage"] == answer["usage"]


def test_an_answer_without_reasoning_has_no_such_field(server: Scripted) -> None:
    server.writes("Hello <think> you.")
    answer = server.answer()
    assert answer["choices"][0]["message"] == {
        "role": "assistant",
        "content": "Hello <think> you.",
        "refusal": None,
    }
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_an_answer_cut_inside_the_section_is_all_reasoning(server: Scripted) -> None:
    server.writes("<think>\nLet me see.")
    choice = server.choice(max_tokens=12)
    assert choice["finish_reason"] == "length"
    assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == ("Let ", "")


def test_a_prompt_may_open_the_section(server: Scripted) -> None:
    server.running.conversations.ending = "<think>\n"
    try:
        server.writes("Hm.\n</think>\n\nHello.")
        for fields in ({}, {"tools": [ECHO]}):
            message = server.choice(**fields)["message"]
            assert (message["reasoning_content"], message["content"]) == ("Hm.", "Hello.")
        server.writes('Hm {"a": 2}.\n</think>\n\n{"a": 1}')
        message = server.choice(response_format=OBJECT)["message"]
        assert (message["reasoning_content"], message["content"]) == ('Hm {"a": 2}.', '{"a": 1}')
    finally:
        server.running.conversations.ending = ""


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_calls_come_behind_reasoning(server: Scripted, choice: str) -> None:
    server.writes(f"<think>\nI could <tool_call> echo.\n</think>\n\n{CALL}")
    answer = server.choice(tools=[ECHO], tool_choice=choice)
    message = answer["message"]
    assert (message["reasoning_content"], message["content"]) == ("I could <tool_call> echo.", None)
    assert (calls_of(message), answer["finish_reason"]) == ([("echo", "{}")], "tool_calls")
    server.writes(CALL)
    message = server.choice(tools=[ECHO], tool_choice=choice)["message"]
    assert (message.get("reasoning_content"), calls_of(message)) == (None, [("echo", "{}")])


@pytest.mark.parametrize("fields", [{}, {"tools": [ECHO]}])
def test_json_comes_behind_reasoning(server: Scripted, fields: dict[str, Any]) -> None:
    server.writes('<think>\nHm {.\n</think>\n\n{"a": 1} and more')
    choice = server.choice(response_format=OBJECT, **fields)
    assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == ("Hm {.", '{"a": 1}')
    server.writes('{"a": 1}')
    assert server.choice(response_format=OBJECT, **fields)["message"]["content"] == '{"a": 1}'
    refused = {"type": "json_schema", "json_schema": {"name": "f", "schema": {"not": {}}}}
    assert (
        server.refusal(response_format=refused, **fields)["param"] == "response_format.json_schema.schema.not"
    )


def test_log_probabilities_are_those_of_the_content(server: Scripted) -> None:
    server.writes("<think>\nHm.\n</think>\n\nHello.")
    tokens = server.choice(logprobs=True)["logprobs"]["content"]
    assert "".join(token["token"] for token in tokens) == "Hello."


def test_reasoning_can_be_told_again(server: Scripted) -> None:
    server.writes("<think>\nHm.\n</think>\n\nHello.")
    with server.running.openai() as client:
        messages: list[Any] = [{"role": "user", "content": "Hi"}]
        answer = client.chat.completions.create(model=MODEL_ID, messages=messages, max_tokens=99)
        messages += [answer.choices[0].message, {"role": "user", "content": "And?"}]
        client.chat.completions.create(model=MODEL_ID, messages=messages, max_tokens=99)
    assert server.running.conversations.seen[-1][1].reasoning_content == "Hm."


def asked(server: Scripted, **fields: Any) -> Any:
    """The options that the template got."""
    server.writes("ok")
    server.answer(**fields)
    return server.running.conversations.options[-1]


@pytest.fixture
def reads(server: Scripted) -> Iterator[Any]:
    def read(*names: str) -> None:
        server.running.conversations.reads = frozenset(names)

    yield read
    read()


def test_template_options_reach_a_template_that_reads_them(server: Scripted, reads: Any) -> None:
    reads("enable_thinking", "reasoning_effort", "preserve_thinking")
    options = {"enable_thinking": False, "preserve_thinking": True, "thinking": None}
    assert asked(server, chat_template_kwargs=options) == {
        "enable_thinking": False,
        "preserve_thinking": True,
    }
    assert asked(server, reasoning_effort="high") == {"reasoning_effort": "high"}
    assert asked(server, reasoning_effort="none") == {"reasoning_effort": "none"}
    assert asked(server, reasoning_effort=None, chat_template_kwargs=None) == {}


def test_an_effort_is_given_once(server: Scripted, reads: Any) -> None:
    reads("reasoning_effort")
    low = {"reasoning_effort": "low"}
    assert asked(server, chat_template_kwargs=low) == low
    assert asked(server, chat_template_kwargs=low, reasoning_effort="low") == low
    assert server.refusal(chat_template_kwargs=low, reasoning_effort="high")["param"] == "reasoning_effort"


def test_no_effort_is_no_thinking_where_the_template_knows_only_that(server: Scripted, reads: Any) -> None:
    reads("enable_thinking")
    assert asked(server, reasoning_effort="none") == {"enable_thinking": False}
    assert server.refusal(reasoning_effort="low")["param"] == "reasoning_effort"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"reasoning_effort": "none"}, "reasoning_effort"),
        ({"reasoning_effort": "extreme"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "chat_template_kwargs.enable_thinking"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs.enable_thinking"),
        ({"chat_template_kwargs": {"enable_thinking": "no"}}, "chat_template_kwargs.enable_thinking"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"reasoning_effort": "low"}}, "chat_template_kwargs.reasoning_effort"),
    ],
)
def test_options_that_the_template_does_not_read_are_refused(
    server: Scripted, fields: dict[str, Any], param: str
) -> None:
    assert server.refusal(**fields)["param"] == param


def test_a_model_that_does_not_reason_can_be_asked_not_to() -> None:
    for scripted in scripted_server():
        assert asked(scripted, reasoning_effort="none") == {}
        assert asked(scripted, chat_template_kwargs={"enable_thinking": False, "thinking": False}) == {}
        refused = scripted.refusal(chat_template_kwargs={"enable_thinking": True})
        assert refused["param"] == "chat_template_kwargs.enable_thinking"
        assert scripted.refusal(reasoning_effort="medium")["code"] == "unsupported_value"


def test_the_official_client_streams_reasoning(server: Scripted) -> None:
    server.writes("<think>\nHm.\n</think>\n\nHello.")
    client: openai.OpenAI
    with (
        server.running.openai() as client,
        client.chat.completions.stream(
            model=MODEL_ID, messages=[{"role": "user", "content": "Hi"}], max_tokens=99
        ) as stream,
    ):
        message = stream.get_final_completion().choices[0].message
    assert message.content == "Hello."
    assert json.loads(message.model_dump_json())["reasoning_content"] == "Hm."
