"""Calls over HTTP: declared, chosen, forced, streamed, cut, and told again in the history."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrite.api.errors import ApiError
from ferrite.api.tools import answer_rules, read_tools
from ferrite.toolcalls import AnswerFormat, ToolFamily
from ferrite.toolcalls.families import HERMES, LLAMA3, MISTRAL_NAMED, PYTHONIC_MARKED
from tests.api.scripted import CHAT, Scripted, calls_of, scripted_server
from tests.api.support import MODEL_ID, WAIT_SECONDS, batching, chat_body
from tests.grammar.support import compiler

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
ECHO: dict[str, Any] = {"type": "function", "function": {"name": "echo"}}
TOOLS = [WEATHER, ECHO]
NAMED = {"type": "function", "function": {"name": "weather"}}


def written(name: str, arguments: str) -> str:
    """A call as the Hermes family writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


OSLO = written("weather", '{"city": "Oslo", "days": -3}')


@pytest.fixture(scope="module")
def server() -> Iterator[Scripted]:
    yield from scripted_server()


@pytest.fixture(scope="module")
def client(server: Scripted) -> Iterator[openai.OpenAI]:
    with server.running.openai() as client:
        yield client


def without_ids(choice: dict[str, Any]) -> dict[str, Any]:
    """A choice without random ids, nulls, and what only a streamed or only a whole one has."""
    message = {name: value for name, value in choice["message"].items() if value is not None}
    message.pop("parsed", None)
    calls = [
        {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
        for call in message.pop("tool_calls", ())
    ]
    return {"message": message, "calls": calls, "finish_reason": choice["finish_reason"]}


def test_a_call_and_its_telemetry(server: Scripted) -> None:
    server.writes(f"Let me see.\n{OSLO}")
    answer = server.answer(tools=TOOLS)
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    (call,) = choice["message"]["tool_calls"]
    assert (call["type"], call["function"]["name"]) == ("function", "weather")
    assert json.loads(call["function"]["arguments"]) == {"city": "Oslo", "days": -3}
    assert call["id"].startswith("call_")
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}
    assert server.running.conversations.tools[-1] == [
        WEATHER,
        {
            "type": "function",
            "function": {"name": "echo", "parameters": {"type": "object", "properties": {}}},
        },
    ]
    with server.running.client() as http:
        (*_, row) = http.get("/v1/requests").json()["rows"]
    assert row["finish_reason"] == "tool_calls"


def test_a_streamed_call_has_the_chunks_that_clients_expect(server: Scripted) -> None:
    server.writes(OSLO)
    opening, first, *pieces, last = server.chunks(tools=TOOLS, tool_choice=NAMED)
    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": None}
    (call,) = first["choices"][0]["delta"]["tool_calls"]
    assert call == {
        "index": 0,
        "id": call["id"],
        "type": "function",
        "function": {"name": "weather", "arguments": ""},
    }
    arguments = []
    for piece in pieces:
        (delta,) = piece["choices"][0]["delta"]["tool_calls"]
        assert set(delta) == {"index", "function"}
        assert set(delta["function"]) == {"arguments"}
        arguments.append(delta["function"]["arguments"])
    assert "".join(arguments) == '{"city": "Oslo", "days": -3}'
    assert len(arguments) > 10
    assert last["choices"][0]["delta"] == {}
    assert [chunk["choices"][0]["finish_reason"] for chunk in (first, *pieces)] == [None] * (1 + len(pieces))
    assert last["choices"][0]["finish_reason"] == "tool_calls"


ANSWERS = [
    OSLO,
    f"Hm.\n{OSLO}\n{written('echo', '{}')}",
    "Hello < world > <tool_cal",
    "",
    f'{OSLO[:40]}{{"',
]


@pytest.mark.parametrize("text", ANSWERS)
@pytest.mark.parametrize(
    "fields",
    [
        {"tools": TOOLS},
        {"tools": TOOLS, "tool_choice": "required"},
        {"tools": TOOLS, "parallel_tool_calls": False},
        {"tools": TOOLS, "tool_choice": "none"},
        {"tools": TOOLS, "max_tokens": 60},
    ],
)
def test_a_stream_assembles_to_the_whole_answer(
    server: Scripted, client: openai.OpenAI, text: str, fields: dict[str, Any]
) -> None:
    server.writes(text)
    whole = server.choice(**fields)
    chunks = server.chunks(**fields)
    message: dict[str, Any] = {"role": "assistant"}
    calls: list[dict[str, str]] = []
    for chunk in chunks:
        delta = chunk["choices"][0]["delta"]
        if delta.get("content") is not None:
            message["content"] = message.get("content", "") + delta["content"]
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                calls.append({"name": call["function"]["name"], "arguments": ""})
            calls[call["index"]]["arguments"] += call["function"]["arguments"]
    streamed = {
        "message": message,
        "calls": calls,
        "finish_reason": chunks[-1]["choices"][0]["finish_reason"],
    }
    assert streamed == without_ids(whole)
    if "max_tokens" not in fields and whole["finish_reason"] != "length":
        assert without_ids(server.assembled(client, **fields)) == without_ids(whole)


texts = st.text(st.characters(codec="utf-8", exclude_characters="\x03\x7f"), max_size=12)
values = st.recursive(
    st.integers(-(2**53), 2**53) | st.booleans() | st.none() | texts | st.sampled_from(['}"', "-3", "🦀\n"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(texts, values, max_size=3), st.booleans())
@settings(max_examples=30)
def test_arguments_are_the_same_in_a_stream_and_arrive_while_they_are_written(
    server: Scripted, arguments: dict[str, Any], compact: bool
) -> None:
    separators = (",", ":") if compact else (", ", ": ")
    server.writes(written("echo", json.dumps(arguments, separators=separators, ensure_ascii=False)))
    ((name, whole),) = calls_of(
        server.choice(tools=TOOLS, tool_choice="required", max_tokens=1500)["message"]
    )
    assert name == "echo"
    assert json.loads(whole) == arguments
    chunks = server.chunks(tools=TOOLS, tool_choice="required", max_tokens=1500)
    pieces = [
        call["function"]["arguments"]
        for chunk in chunks
        for call in chunk["choices"][0]["delta"].get("tool_calls", ())
    ]
    assert "".join(pieces) == whole
    assert len(pieces) > len(whole) / 8


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("choice", "names"), [("required", {"weather", "echo"}), (NAMED, {"weather"})])
def test_a_demanded_call_is_made_whatever_the_model_would_say(
    server: Scripted, *, choice: Any, names: set[str], stream: bool
) -> None:
    server.writes("Hello there, I would rather talk.")
    fields = {"tools": TOOLS, "tool_choice": choice}
    if stream:
        chunks = server.chunks(**fields)
        assert not any(chunk["choices"][0]["delta"].get("content") for chunk in chunks)
        called = [
            c["choices"][0]["delta"]["tool_calls"][0]
            for c in chunks
            if "tool_calls" in c["choices"][0]["delta"]
        ]
        assert {call["function"]["name"] for call in called if "id" in call} <= names
        assert called
    else:
        message = server.choice(**fields)["message"]
        assert message["content"] is None
        assert {name for name, _ in calls_of(message)} <= names
        assert calls_of(message)


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tool_choice": NAMED},
        {"tool_choice": NAMED, "tools": [ECHO]},
        {"tool_choice": NAMED, "tools": []},
        {"tool_choice": "sometimes", "tools": TOOLS},
    ],
)
def test_a_choice_that_cannot_be_kept_is_refused(server: Scripted, fields: dict[str, Any]) -> None:
    assert server.refusal(**fields)["param"] == "tool_choice"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tools", [None, [], TOOLS])
def test_no_call_is_made_where_none_is_wanted(server: Scripted, tools: Any, *, stream: bool) -> None:
    server.writes("Hello.")
    fields = {"tool_choice": "none", "tools": tools}
    if stream:
        chunks = server.chunks(**fields)
        assert not any("tool_calls" in chunk["choices"][0]["delta"] for chunk in chunks)
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    else:
        choice = server.choice(**fields)
        assert (choice["message"]["content"], choice["finish_reason"]) == ("Hello.", "stop")
        assert "tool_calls" not in choice["message"]
    assert server.running.conversations.tools[-1] is None


def test_one_call_where_parallel_calls_are_off(server: Scripted) -> None:
    server.writes(f"{OSLO}\n{OSLO}")
    assert len(calls_of(server.choice(tools=TOOLS)["message"])) == 2
    choice = server.choice(tools=TOOLS, parallel_tool_calls=False)
    assert (len(calls_of(choice["message"])), choice["finish_reason"]) == (1, "tool_calls")
    with server.running.client() as http:
        assert http.get("/v1/stats").json()["aborted"] == 0
        assert http.get("/admin/stats").json()["batcher"]["aborted"] == 0
        row = http.get("/v1/requests").json()["rows"][-1]
    assert (row["finish_reason"], row["cancelled"]) == ("tool_calls", False)
    assert row["completion_tokens"] == len(OSLO.encode())
    assert row["decode_ms"] is not None


def test_only_allowed_functions_are_called_and_all_are_shown(server: Scripted) -> None:
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "echo"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    server.writes(OSLO)
    made = server.choice(tools=TOOLS, tool_choice=choice)["message"]
    assert "weather" not in {name for name, _ in calls_of(made)}
    assert len(server.running.conversations.tools[-1] or ()) == 2
    allowed["mode"] = "required"
    assert {name for name, _ in calls_of(server.choice(tools=TOOLS, tool_choice=choice)["message"])} == {
        "echo"
    }
    allowed["mode"] = "never"
    assert server.refusal(tools=TOOLS, tool_choice=choice)["param"] == "tool_choice.allowed_tools.mode"


def test_a_call_cut_by_the_limit_is_told_as_cut(server: Scripted) -> None:
    server.writes(OSLO)
    cut = len(OSLO.partition("Os")[0]) + 2
    choice = server.choice(tools=TOOLS, max_tokens=cut)
    assert choice["finish_reason"] == "length"
    assert calls_of(choice["message"]) == [("weather", '{"city": "Os')]


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("limit", [11, 20, 35])
def test_a_call_cut_before_its_arguments_is_no_text(server: Scripted, choice: str, limit: int) -> None:
    server.writes(OSLO)
    answer = server.choice(tools=TOOLS, tool_choice=choice, max_tokens=limit)
    assert answer["finish_reason"] == "length"
    assert (answer["message"]["content"], calls_of(answer["message"])) == ("", [])
    server.writes(f"{OSLO}\n{OSLO}")
    answer = server.choice(tools=TOOLS, tool_choice=choice, max_tokens=len(OSLO) + 1 + limit)
    assert answer["finish_reason"] == "length"
    assert (answer["message"]["content"], len(calls_of(answer["message"]))) == (None, 1)


def test_a_stop_string_ends_a_call_too(server: Scripted) -> None:
    server.writes(OSLO)
    choice = server.choice(tools=TOOLS, stop="slo")
    assert (calls_of(choice["message"]), choice["finish_reason"]) == ([("weather", '{"city": "O')], "length")


def strict(parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "strict": True, "parameters": parameters}}


LOOK_AHEAD = {"type": "string", "pattern": "^(?=.{3,9}$)[a-z]+$"}


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize(
    ("tools", "param"),
    [
        (
            [ECHO, strict({"type": "object", "properties": {"a": {"type": "array", "items": LOOK_AHEAD}}})],
            "tools[1].function.parameters.properties.a.items.pattern",
        ),
        (
            [strict({"type": "object", "not": {"additionalProperties": False}})],
            "tools[0].function.parameters.not",
        ),
        ([strict({"type": "array"})], "tools[0].function.parameters.type"),
        ([{"type": "function", "function": {"name": "a b"}}], "tools[0].function.name"),
        (
            [{"type": "function", "function": {"name": "f", "parameters": "x"}}],
            "tools[0].function.parameters",
        ),
        ([{"type": "function", "function": {"name": "f", "x": 1}}], "tools[0].function.x"),
        ([{"type": "function"}], "tools[0].function"),
        ([{"type": "custom", "custom": {"name": "f"}}], "tools[0].type"),
        ([ECHO, ECHO], "tools[1].function.name"),
        ([{"type": "function", "function": {"name": f"f{index}"}} for index in range(65)], "tools"),
    ],
)
def test_tools_that_cannot_be_had_are_refused_by_their_place(
    server: Scripted, tools: list[Any], param: str, choice: str
) -> None:
    assert server.refusal(tools=tools, tool_choice=choice)["param"] == param


def test_compiling_has_a_time_budget() -> None:
    tools = read_tools(TOOLS, "auto", parallel=None)
    times = iter((0.0, 1.0, 6.0))
    with pytest.raises(ApiError) as caught:
        answer_rules(
            tools,
            None,
            grammars=compiler(),
            answer_format=AnswerFormat(HERMES, None),
            prompt=["Hi"],
            token_text=str,
            clock=lambda: next(times),
        )
    assert (caught.value.status, caught.value.body.param) == (400, "tools")
    assert "5 seconds" in caught.value.body.message


def test_schemas_that_are_too_much_together_are_followed_where_they_are_strict() -> None:
    wide = {"type": "object", "properties": {f"p{index}": {"enum": ["x" * 200]} for index in range(100)}}
    loose: list[dict[str, Any]] = [
        {"type": "function", "function": {"name": f"f{n}", "parameters": wide}} for n in range(64)
    ]
    for scripted in scripted_server():
        scripted.writes(written("f1", '{"p3": 7}'))
        assert calls_of(scripted.choice(tools=loose)["message"]) == [("f1", '{"p3": 7}')]
        for tool in loose:
            tool["function"]["strict"] = True
        assert scripted.refusal(tools=loose)["param"] == "tools"


def test_a_loose_schema_that_cannot_be_enforced_leaves_any_object(server: Scripted) -> None:
    loose = {"type": "object", "properties": {"a": LOOK_AHEAD}}
    server.writes(written("f", '{"b": 1}'))
    tools = [{"type": "function", "function": {"name": "f", "parameters": loose}}]
    assert calls_of(server.choice(tools=tools)["message"]) == [("f", '{"b": 1}')]


def test_strict_arguments_follow_their_schema(server: Scripted) -> None:
    kinds = {"type": "object", "properties": {"kind": {"enum": ["x", "y"]}}, "required": ["kind"]}
    server.writes(written("f", '{"kind": "z"}'))
    ((_, arguments),) = calls_of(server.choice(tools=[strict(kinds)])["message"])
    assert json.loads(arguments)["kind"] in ("x", "y")


def test_unknown_fields_of_a_tool_can_be_ignored_and_known_ones_stay() -> None:
    for scripted in scripted_server(unknown_fields="ignore"):
        scripted.writes(OSLO)
        tool = {**WEATHER, "cache_control": {}, "function": {**WEATHER["function"], "returns": {}}}
        response = scripted.post(tools=[tool, ECHO], response_format={"type": "text", "x": 1})
        assert response.status_code == 200, response.text
        assert response.headers["x-ferrite-ignored"] == (
            "tools[0].function.returns, tools[0].cache_control, response_format.x"
        )
        shown = scripted.running.conversations.tools[-1]
        assert shown is not None
        assert shown[0] == WEATHER


HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "x"},
    {
        "role": "assistant",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "echo", "arguments": '{ "a":1}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "ok"},
]


def test_a_turn_of_calls_needs_no_text(server: Scripted) -> None:
    server.writes("Done.")
    for content in ({}, {"content": None}, {"content": ""}):
        messages = [HISTORY[0], {**HISTORY[1], **content}, HISTORY[2]]
        assert server.choice(messages=messages, tools=TOOLS)["message"]["content"] == "Done."
        _, assistant, tool = server.running.conversations.seen[-1]
        (call,) = assistant.tool_calls
        assert (call.id, call.name, call.arguments, call.written) == ("c1", "echo", {"a": 1}, '{ "a":1}')
        assert (assistant.content or "", tool.tool_call_id, tool.content) == ("", "c1", "ok")


@pytest.mark.parametrize("arguments", ["{", "[]", "7", '"x"', "null"])
def test_broken_arguments_in_the_history_are_the_clients_fault(server: Scripted, arguments: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "echo", "arguments": arguments}}
    messages = [HISTORY[0], {"role": "assistant", "tool_calls": [call]}, HISTORY[2]]
    error = server.refusal(messages=messages)
    assert error["param"] == "messages[1].tool_calls[0].function.arguments"


def test_empty_arguments_are_none(server: Scripted) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "echo", "arguments": ""}}
    server.writes("ok")
    server.answer(messages=[HISTORY[0], {"role": "assistant", "tool_calls": [call]}, HISTORY[2]])
    assert server.running.conversations.seen[-1][1].tool_calls[0].arguments == {}


def test_an_answer_can_be_told_again_as_the_client_has_it(server: Scripted, client: openai.OpenAI) -> None:
    server.writes(OSLO)
    messages: list[Any] = [{"role": "user", "content": "Weather?"}]
    tools: list[Any] = TOOLS
    answer = client.chat.completions.create(model=MODEL_ID, messages=messages, tools=tools, max_tokens=400)
    message = answer.choices[0].message
    assert message.tool_calls
    result: Any = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"}
    server.writes("It rains.")
    replays: list[Any] = [message, message.model_dump()]
    for replayed in replays:
        again = client.chat.completions.create(
            model=MODEL_ID, messages=[*messages, replayed, result], tools=tools
        )
        assert again.choices[0].message.content == "It rains."


def test_ids_log_probabilities_and_padding_beside_calls(server: Scripted) -> None:
    text = f"See é:\n{OSLO}"
    server.writes(text)
    fields = {"tools": TOOLS, "return_token_ids": True, "logprobs": True, "top_logprobs": 2}
    whole = server.choice(**fields)
    assert whole["token_ids"] == list(text.encode())
    shown = whole["logprobs"]["content"]
    assert b"".join(bytes(token["bytes"]) for token in shown) == "See é:".encode()
    assert all(len(token["top_logprobs"]) == 2 for token in shown)
    chunks = server.chunks(stream_options={"include_obfuscation": True}, **fields)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [token for choice in choices for token in choice.get("token_ids", ())] == list(text.encode())
    streamed = [token for choice in choices if choice["logprobs"] for token in choice["logprobs"]["content"]]
    assert streamed == shown
    for chunk in chunks[:-1]:
        delta = chunk["choices"][0]["delta"]
        texts = [delta.get("content") or ""]
        texts += [call["function"]["arguments"] for call in delta.get("tool_calls", ())]
        assert (len("".join(texts).encode()) + len(chunk["obfuscation"])) % 32 == 0


def test_each_of_several_answers_has_calls_of_its_own() -> None:
    for scripted in scripted_server(**batching(2, 2)):
        scripted.writes(OSLO)
        first, second = scripted.answer(tools=TOOLS, n=2)["choices"]
        assert calls_of(first["message"]) == calls_of(second["message"])
        ids = {choice["message"]["tool_calls"][0]["id"] for choice in (first, second)}
        assert len(ids) == 2


@pytest.mark.parametrize(
    ("family", "text"),
    [
        (LLAMA3, '{"name": "weather", "parameters": {"city": "Oslo"}}'),
        (MISTRAL_NAMED, '[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}'),
        (PYTHONIC_MARKED, '<|tool_call_start|>[weather(city="Oslo")]<|tool_call_end|>'),
    ],
)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_other_families(family: ToolFamily, text: str, choice: str) -> None:
    for scripted in scripted_server(family):
        scripted.writes(text)
        answer = scripted.choice(tools=TOOLS, tool_choice=choice)
        ((name, arguments),) = calls_of(answer["message"])
        assert (name, json.loads(arguments)) == ("weather", {"city": "Oslo"})
        assert (answer["message"]["content"], answer["finish_reason"]) == (None, "tool_calls")


SCHEMA = {
    "type": "object",
    "properties": {"v": {"enum": ["x"]}},
    "required": ["v"],
    "additionalProperties": False,
}
JSON_FORM = {"type": "json_schema", "json_schema": {"name": "f", "strict": True, "schema": SCHEMA}}


def test_the_content_is_json_where_both_are_asked_for(server: Scripted) -> None:
    fields = {"tools": TOOLS, "response_format": JSON_FORM}
    server.writes('{"v": "x"}')
    choice = server.choice(**fields)
    assert (choice["message"]["content"], choice["finish_reason"]) == ('{"v": "x"}', "stop")
    server.writes(OSLO)
    assert [name for name, _ in calls_of(server.choice(**fields)["message"])] == ["weather"]
    server.writes("{Hello.")
    assert json.loads(server.choice(**fields)["message"]["content"]) == {"v": "x"}
    assert calls_of(server.choice(**fields, tool_choice="required")["message"])
    server.writes('{"name": "weather", "arguments": {}}')
    free = {"tools": TOOLS, "response_format": {"type": "json_object"}}
    assert server.choice(**free)["message"]["content"] == '{"name": "weather", "arguments": {}}'


def test_a_slow_reader_gets_the_same_call(server: Scripted) -> None:
    server.writes(written("echo", json.dumps({"text": "word " * 200})))
    body = chat_body(tools=TOOLS, tool_choice="required", max_tokens=2000, stream=True)
    whole = calls_of(server.choice(tools=TOOLS, tool_choice="required", max_tokens=2000)["message"])
    pieces = []
    with (
        server.running.client() as http,
        http.stream("POST", CHAT, json=body, timeout=WAIT_SECONDS) as response,
    ):
        for line in response.iter_lines():
            if line.startswith("data: {"):
                delta = json.loads(line.removeprefix("data: "))["choices"][0]["delta"]
                pieces += [call["function"]["arguments"] for call in delta.get("tool_calls", ())]
    assert [("echo", "".join(pieces))] == whole
