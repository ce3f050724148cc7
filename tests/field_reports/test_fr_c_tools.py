"""Functions and structured output on a model of random weights, which never does by itself what is asked."""

import json
import re
import socket
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from tests.api.reading import chunks_of
from tests.api.scripted import Scripted, scripted_server
from tests.api.support import WAIT_SECONDS, eventually
from tests.field_reports.serving import (
    CHAT,
    MODEL_ID,
    RENDER,
    RESPONSES,
    Served,
    only,
    question,
    serving,
    user,
)

LONG = 'a "quoted" } { \\ line\n\ttab, \U0001f980 and 日本, -3 ' * 4
EDIT_SCHEMA = {
    "type": "object",
    "properties": {"path": {"enum": ['a/"b}.txt']}, "line": {"const": -3}, "text": {"enum": [LONG]}},
    "required": ["path", "line", "text"],
    "additionalProperties": False,
}


def function(name: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    return {
        "type": "function",
        "function": {"name": name, "strict": True, "parameters": parameters or nothing},
    }


def flat(tool: dict[str, Any]) -> dict[str, Any]:
    """The same for Responses."""
    return {"type": "function", **tool["function"]}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def assembled(chunks: list[dict[str, Any]]) -> tuple[str, str, list[str]]:
    """Return the name, the arguments and their pieces of the one call of a stream, whose form is checked."""
    deltas = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
    first, *others = deltas
    assert set(first) == {"index", "id", "type", "function"}
    assert (first["index"], first["type"], first["function"]["arguments"]) == (0, "function", "")
    assert all(set(each) == {"index", "function"} for each in others)
    assert all((each["index"], set(each["function"])) == (0, {"arguments"}) for each in others)
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    pieces = [each["function"]["arguments"] for each in others]
    return first["function"]["name"], "".join(pieces), pieces


EDITING: dict[str, Any] = {
    "messages": user("Edit it."),
    "tools": [function("edit", EDIT_SCHEMA), function("other")],
    "tool_choice": named("edit"),
    "parallel_tool_calls": False,
    "temperature": 1,
    "seed": 5,
    "max_tokens": 1024,
}


def test_streamed_arguments_are_the_plain_ones_and_come_while_they_are_written(served: Served) -> None:
    """FR-13 and FR-14: quotes, braces, a negative number, line breaks, an emoji, a long text."""
    choice = served.choice(CHAT, **EDITING)
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    arguments = json.loads(call["function"]["arguments"])
    assert arguments == {"path": 'a/"b}.txt', "line": -3, "text": LONG}
    chunks = chunks_of(served.http, CHAT, {"model": MODEL_ID, **EDITING})
    name, joined, pieces = assembled(chunks)
    assert (name, joined) == ("edit", call["function"]["arguments"])
    assert len(pieces) > 100


def test_a_reader_who_falls_behind_gets_the_same_arguments(tiny: Path) -> None:
    """FR-14: small buffers, and nothing is read before the generation waits or has ended."""
    with serving(tiny, send_buffer=4096, hard_max_tokens=1024) as served:
        (call,) = served.choice(CHAT, **EDITING)["message"]["tool_calls"]
        transport = httpx.HTTPTransport(socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)])
        body = {"model": MODEL_ID, **EDITING, "stream": True, "return_token_ids": True}
        with (
            httpx.Client(base_url=served.http.base_url, transport=transport, timeout=WAIT_SECONDS) as slow,
            slow.stream("POST", CHAT, json=body) as answer,
        ):
            seen = [-1]

            def stands_still() -> bool:
                seen.append(served.get("/admin/stats")["batcher"]["decode_steps"])
                return seen[-1] > 20 and seen[-1] == seen[-2]

            eventually(stands_still)
            lines = [line for line in answer.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
        assert max(len(chunk["choices"][0].get("token_ids", ())) for chunk in chunks) > 1
        name, joined, _ = assembled(chunks)
        assert (name, joined) == ("edit", call["function"]["arguments"])


@pytest.mark.parametrize("choice", ["required", "b"])
def test_a_demanded_call_is_made_with_every_seed(served: Served, choice: str) -> None:
    """FR-16."""
    tools = [function("a"), function("b")]
    allowed = {"a", "b"} if choice == "required" else {"b"}
    fields = {"temperature": 1, "parallel_tool_calls": False}
    chat_choice: Any = "required" if choice == "required" else named("b")
    chat = {"messages": user("Say hello."), "tools": tools, "tool_choice": chat_choice, **fields}
    flat_choice: Any = "required" if choice == "required" else {"type": "function", "name": "b"}
    response = {"input": "Say hello.", "tools": [*map(flat, tools)], "tool_choice": flat_choice, **fields}
    seeds = [{"seed": seed} for seed in range(10)]
    for answer in served.together(CHAT, [{**chat, **seed} for seed in seeds]):
        (made,) = answer["choices"]
        assert (made["finish_reason"], made["message"]["content"]) == ("tool_calls", None)
        (call,) = made["message"]["tool_calls"]
        assert call["function"]["name"] in allowed
        assert json.loads(call["function"]["arguments"]) == {}
    for answer in served.together(RESPONSES, [{**response, **seed} for seed in seeds]):
        (item,) = answer["output"]
        assert (item["type"], item["status"]) == ("function_call", "completed")
        assert item["name"] in allowed
    for seed in seeds[:3]:
        called, arguments, _ = assembled(chunks_of(served.http, CHAT, {"model": MODEL_ID, **chat, **seed}))
        assert (called in allowed, json.loads(arguments)) == (True, {})


@pytest.mark.parametrize("tools", [None, [], [function("a")]], ids=["absent", "empty", "one"])
def test_a_choice_that_cannot_be_kept_is_refused_by_its_name(
    served: Served, tools: list[dict[str, Any]] | None
) -> None:
    """FR-16."""
    flat_tools = None if tools is None else [flat(tool) for tool in tools]
    named_flat = {"type": "function", "name": "undeclared"}
    assert (
        served.refusal(CHAT, messages=user("x"), tools=tools, tool_choice=named("undeclared"))["param"]
        == served.refusal(RESPONSES, input="x", tools=flat_tools, tool_choice=named_flat)["param"]
        == "tool_choice"
    )
    if not tools:
        for path, body in ((CHAT, {"messages": user("x")}), (RESPONSES, {"input": "x"})):
            error = served.refusal(path, **body, tools=flat_tools, tool_choice="required")
            assert error["param"] == "tool_choice"


def test_a_model_that_begs_for_a_call_makes_none_where_none_is_wanted() -> None:
    """FR-17: what it writes is text."""
    begging = '<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>'
    scripted: Scripted
    for scripted in scripted_server():
        scripted.writes(begging)
        assert scripted.choice(tools=[function("a")])["finish_reason"] == "tool_calls"
        for tools in (None, [], [function("a")]):
            choice = scripted.choice(tools=tools, tool_choice="none")
            assert (choice["message"]["content"], choice["finish_reason"]) == (begging, "stop")
            assert "tool_calls" not in choice["message"]
            chunks = scripted.chunks(tools=tools, tool_choice="none")
            assert not any("tool_calls" in chunk["choices"][0]["delta"] for chunk in chunks)
            assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_turn_of_calls_without_text_is_one_prompt_however_it_is_written(served: Served) -> None:
    """FR-18."""
    call = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"key":"k-17"}'}}
    result = {"role": "tool", "tool_call_id": "c1", "content": "value-42"}
    prompts = []
    for content in ({"content": None}, {}, {"content": ""}):
        turn = {"role": "assistant", "tool_calls": [call], **content}
        prompts.append(served.answer(RENDER, messages=[*user("x"), turn, result]))
        answer = served.answer(CHAT, messages=[*user("x"), turn, result], max_tokens=1)
        assert answer["usage"]["prompt_tokens"] == prompts[-1]["count"]
    assert prompts[0] == prompts[1] == prompts[2]
    for part in ("look_up", "k-17", "value-42"):
        assert part in prompts[0]["prompt"]


@pytest.mark.parametrize("arguments", ["{", "[]", "7", '{"a":1', '"x"'])
def test_broken_arguments_of_the_history_are_refused_by_their_place(served: Served, arguments: str) -> None:
    """FR-15."""
    call = {"id": "c1", "type": "function", "function": {"name": "echo", "arguments": arguments}}
    messages = [
        *user("x"),
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    ]
    for path in (CHAT, RENDER):
        error = served.refusal(path, messages=messages)
        assert error["param"] == "messages[1].tool_calls[0].function.arguments"
    call["function"]["arguments"] = ""  # type: ignore[index]
    assert served.answer(CHAT, messages=messages, max_tokens=1)
    item = {"type": "function_call", "call_id": "c1", "name": "echo", "arguments": arguments}
    output = {"type": "function_call_output", "call_id": "c1", "output": "ok"}
    assert served.refusal(RESPONSES, input=[item, output])["param"] == "input[0].arguments"


PATTERN = {"type": "string", "pattern": "^(\\d+|id:[a-z-]+)$"}
UNIT = {"anyOf": [{"enum": ["c", "f"], "type": "string"}, {"type": "null"}]}
ORDER = {
    "$defs": {
        "Order": only({"type": "array", "items": {"$ref": "#/$defs/Line"}, "maxItems": 2}),
        "Line": {
            "type": "object",
            "properties": {"unit": {"$ref": "#/$defs/Unit"}, "per": {"$ref": "#/$defs/Unit"}},
            "required": ["unit", "per"],
            "additionalProperties": False,
        },
        "Unit": {"enum": ["kg", "m"], "type": "string"},
    },
    **only({"$ref": "#/$defs/Order"}),
}
NODE = {
    "type": "object",
    "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#/properties/t/anyOf/1"}]}},
    "required": ["next"],
    "additionalProperties": False,
}
TREE = {
    "type": "object",
    "properties": {"t": {"anyOf": [{"type": "null"}, NODE]}},
    "required": ["t"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "an escape without meaning": only({"type": "string", "pattern": "^a\\!b$"}),
    "a pattern in items": only({"type": "array", "maxItems": 100, "items": PATTERN}),
    "an unanchored pattern": only({"type": "string", "pattern": "\\S", "maxLength": 20}),
    "definitions used twice": ORDER,
    "this or null": only(UNIT),
    "a recursive tree": TREE,
    "a long text": only(only({"type": "string", "maxLength": 2000})),
    "a text of any length": only(only({"type": "string", "maxLength": 10_000_000})),
    "an address": only({"type": "string", "pattern": r"^[\w.+-]{1,9}@[a-z0-9-]{1,9}\.(com|org)$"}),
}


ENDLESS = {"a pattern in items", "a recursive tree", "a long text", "a text of any length"}
"""What this model may write on for longer than it is let."""


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_followed_in_every_place_that_takes_one(served: Served, name: str) -> None:
    """FR-19, FR-20, FR-21, FR-23: what ends validates, and what the limit cuts began as it must."""
    schema = SCHEMAS[name]
    form = {"name": "f", "strict": True, "schema": schema}
    fields = {"temperature": 1, "seed": 3}
    limit = 60 if name in ENDLESS else 160
    chat = {**question(CHAT, "Go", limit=limit), **fields}
    response = {**question(RESPONSES, "Go", limit=limit), **fields}
    content = served.choice(CHAT, **chat, response_format={"type": "json_schema", "json_schema": form})
    demanded = {"tool_choice": "required", "parallel_tool_calls": False}
    calling = served.choice(CHAT, **chat, tools=[function("f", schema)], **demanded)
    text = served.answer(RESPONSES, **response, text={"format": {"type": "json_schema", **form}})
    called = served.answer(RESPONSES, **response, tools=[flat(function("f", schema))], **demanded)
    assert calling["message"]["tool_calls"][0]["function"]["name"] == "f"
    written = {
        "content": (content["finish_reason"] == "stop", content["message"]["content"]),
        "call": (
            calling["finish_reason"] == "tool_calls",
            calling["message"]["tool_calls"][0]["function"]["arguments"],
        ),
        "text": (text["status"] == "completed", text["output"][0]["content"][0]["text"]),
        "response call": (called["status"] == "completed", called["output"][0]["arguments"]),
    }
    for place, (ended, value) in written.items():
        if ended:
            jsonschema.validate(json.loads(value), schema)
        else:
            assert name in ENDLESS, place
            assert value.startswith("{")


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "array"}
    for _ in range(levels - 1):
        schema = {"type": "array", "items": schema}
    return schema


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "a look-ahead": (only({"type": "string", "pattern": "^(?=.{3,9}$)[a-z]+$"}), "pattern", "pattern"),
    "a deep look-ahead": (
        only({"type": "array", "items": {"type": "string", "pattern": "^(?=a)b$"}}),
        "pattern",
        "items",
    ),
    "5,000 parentheses": (only({"type": "string", "pattern": "(" * 5000}), "pattern", "pattern"),
    "a keyword at the root": ({"type": "object", "noSuchKeyword": {}}, "noSuchKeyword", ""),
    "a nested keyword": (
        only({"anyOf": [{"type": "null"}, {"noSuchKeyword": 1}]}),
        "noSuchKeyword",
        "anyOf[1]",
    ),
    "nowhere": (only({"$ref": "#/$defs/none"}), "$ref", "v"),
    "outside": (only({"$ref": "https://example.com/x"}), "$ref", "v"),
    "65 levels": (only(nested(65)), "", "nested"),
    "300 levels": (only(nested(300)), "", "nested"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_schema_that_cannot_be_had_is_refused_in_every_place(served: Served, name: str) -> None:
    """FR-19, FR-20, FR-21, FR-23: 400 with the keyword and where it stands."""
    schema, keyword, place = REFUSED[name]
    form = {"name": "f", "strict": True, "schema": schema}
    errors = {
        "response_format.json_schema.schema": served.refusal(
            CHAT, messages=user("Go"), response_format={"type": "json_schema", "json_schema": form}
        ),
        "tools[0].function.parameters": served.refusal(
            CHAT, messages=user("Go"), tools=[function("f", schema)]
        ),
        "text.format.schema": served.refusal(
            RESPONSES, input="Go", text={"format": {"type": "json_schema", **form}}
        ),
        "tools[0].parameters": served.refusal(RESPONSES, input="Go", tools=[flat(function("f", schema))]),
    }
    for root, error in errors.items():
        if not keyword:
            assert place in error["message"], root
            continue
        assert error["param"].startswith(root)
        assert error["param"].endswith(keyword)
        assert place in error["param"]
        if keyword == "$ref":
            assert schema["properties"]["v"]["$ref"] in error["message"]


@pytest.mark.parametrize("levels", [65, 20_000])
def test_deep_nesting_is_refused_in_every_place(served: Served, levels: int) -> None:
    """FR-23: bodies that no JSON library of a client would write."""
    array = '{"type":"array","items":' * levels + "{}" + "}" * levels
    deep = f'{{"type":"object","properties":{{"v":{array}}},"required":["v"],"additionalProperties":false}}'
    form = '{"name":"f","strict":true,"schema":DEEP}'
    tool = '{"type":"function","function":{"name":"f","strict":true,"parameters":DEEP}}'
    flat_tool = '{"type":"function","name":"f","strict":true,"parameters":DEEP}'
    for path, field in (
        (CHAT, f'"response_format":{{"type":"json_schema","json_schema":{form}}}'),
        (CHAT, f'"tools":[{tool}]'),
        (RESPONSES, f'"text":{{"format":{{"type":"json_schema",{form[1:]}}}'),
        (RESPONSES, f'"tools":[{flat_tool}]'),
    ):
        body = json.dumps(question(path, "Go"))[:-1] + f", {field.replace('DEEP', deep)}}}"
        answer = served.http.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400, (path, field)
        assert re.search(r"nest|levels|deep", answer.json()["error"]["message"]), answer.text[:300]
    assert served.chat("Hi", max_tokens=1)["usage"]["completion_tokens"] == 1


def test_blanks_between_json_tokens_come_to_an_end(served: Served) -> None:
    """FR-22: a model that wants nothing but blanks and line breaks."""
    blanks = served.answer("/v1/tokenize", prompt="\n \t  ", add_special_tokens=False)["tokens"]
    bias = dict.fromkeys(map(str, blanks), 100)
    asking = question(CHAT, "Give a JSON object.", limit=200)
    for bound in (only({"enum": ["x"]}), {"type": "object", "maxProperties": 0}):
        form = {"type": "json_schema", "json_schema": {"name": "f", "strict": True, "schema": bound}}
        choice = served.choice(CHAT, **asking, response_format=form, logit_bias=bias)
        content = choice["message"]["content"]
        assert (choice["finish_reason"], content[-1]) == ("stop", "}")
        jsonschema.validate(json.loads(content), bound)
        assert len(content) < 120
    # A quote is banned, so that no text begins in which blanks would be the model's own.
    (quote,) = served.answer("/v1/tokenize", prompt='"', add_special_tokens=False)["tokens"]
    free = served.choice(
        CHAT, **asking, response_format={"type": "json_object"}, logit_bias={**bias, str(quote): -100}
    )
    content = free["message"]["content"]
    assert (free["finish_reason"], json.loads(content), content[-1]) == ("stop", {}, "}")
    assert 2 < len(content) < 40
