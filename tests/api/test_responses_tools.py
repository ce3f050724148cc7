"""Functions and JSON on ``/v1/responses``: calls as items, hosted tools refused or dropped."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.api.support import Script, running_server
from tests.api.test_responses import PATH, answered, events_of, refusal, response_body

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CLOCK = {"type": "function", "name": "clock", "parameters": None, "strict": None, "description": "The time."}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city":"Oslo"}}\n</tool_call>'
SCHEMA = {
    "type": "object",
    "properties": {"v": {"enum": ["x"]}},
    "required": ["v"],
    "additionalProperties": False,
}
JSON_FORMAT = {"format": {"type": "json_schema", "name": "f", "strict": True, "schema": SCHEMA}}


def test_a_call_streamed_and_whole_and_its_follow_up() -> None:
    with running_server(Script(CALL).runner(), default_max_tokens=200) as running, running.client() as http:
        body = response_body("Weather in Oslo?", tools=[WEATHER], tool_choice="required")
        whole = answered(http, body)
        (call,) = whole["output"]
        assert (call["type"], call["name"], call["status"]) == ("function_call", "weather", "completed")
        assert json.loads(call["arguments"]) == {"city": "Oslo"}
        assert call["id"] != call["call_id"]
        assert whole["status"] == "completed"
        assert whole["tools"] == [{**WEATHER, "description": None, "strict": False}]
        assert whole["tool_choice"] == "required"
        events = events_of(http, body)
        (streamed,) = events[-1]["response"]["output"]
        assert (streamed["name"], streamed["arguments"]) == (call["name"], call["arguments"])
        of_call = [event for event in events if event.get("item_id") == streamed["id"]]
        assert "".join(event.get("delta", "") for event in of_call) == call["arguments"]
        assert [event["item"]["call_id"] for event in events if "item" in event] == [streamed["call_id"]] * 2
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
        follow_up = [{"role": "user", "content": "Weather in Oslo?"}, call, result]
        answered(http, response_body(follow_up, tools=[WEATHER], tool_choice="required"))
        asked, called, told = running.conversations.seen[-1]
        assert (asked.content, told.content, told.tool_call_id) == (
            "Weather in Oslo?",
            "rain",
            call["call_id"],
        )
        assert [(each.name, each.arguments) for each in called.tool_calls] == [("weather", {"city": "Oslo"})]


def test_calls_that_may_or_must_not_be() -> None:
    with running_server(Script("Fine.").runner(), default_max_tokens=50) as running, running.client() as http:
        right: tuple[dict[str, Any], ...] = (
            {"tools": [WEATHER, CLOCK]},
            {"tools": [WEATHER], "tool_choice": "none"},
            {"tool_choice": "none"},
            {"tool_choice": "auto", "parallel_tool_calls": False},
            {"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [
                {"type": "function", "name": "weather"}]}},
        )  # fmt: skip
        for fields in right:
            (item,) = answered(http, response_body(**fields))["output"]
            assert item["content"][0]["text"] == "Fine."
        wrong: tuple[dict[str, Any], ...] = (
            {"tool_choice": "required"},
            {"tool_choice": {"type": "function", "name": "weather"}},
            {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "other"}},
        )
        for fields in wrong:
            assert refusal(http, response_body(**fields))["param"] == "tool_choice"
        hosted = response_body(tools=[WEATHER], tool_choice={"type": "web_search_preview"})
        assert refusal(http, hosted)["param"] == "tool_choice.type"


@pytest.fixture(scope="module")
def plain() -> Iterator[httpx.Client]:
    with running_server(Script("Fine.").runner(), default_max_tokens=50) as running, running.client() as http:
        yield http


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{"type": "web_search"}], "tools[0].type"),
        ([WEATHER, {"type": "mcp", "server_label": "x"}], "tools[1].type"),
        ([WEATHER, {"type": "custom", "name": "x"}], "tools[1].type"),
        ([{"name": "x"}], "tools[0].type"),
        ([{"type": "function", "function": {"name": "x"}}], "tools[0].function"),
        ([{"type": "function", "name": "a b"}], "tools[0].name"),
        ([WEATHER, WEATHER], "tools[1].name"),
        ([{**WEATHER, "parameters": {"type": "array"}}], "tools[0].parameters.type"),
        ([{**WEATHER, "defer_loading": True}], "tools[0].defer_loading"),
        ([{**WEATHER, "output_schema": {}}], "tools[0].output_schema"),
        ([{**WEATHER, "strict": True, "parameters": {"type": "object", "properties": {
            "a": {"type": "string", "pattern": "^(?=a)b$"}}}}], "tools[0].parameters.properties.a.pattern"),
        ([WEATHER] * 65, "tools"),
    ],
)  # fmt: skip
def test_tools_are_refused_by_path(plain: httpx.Client, tools: list[Any], param: str) -> None:
    error = refusal(plain, response_body(tools=tools))
    assert error["param"] == param
    if param.endswith(".type") and "parameters" not in param:
        assert "--unknown-fields ignore" in error["message"]


def test_neutral_extras_of_a_function_are_accepted(plain: httpx.Client) -> None:
    extras = {
        "strict": False,
        "async": False,
        "defer_loading": False,
        "allowed_callers": None,
        "output_schema": None,
    }
    answered(plain, response_body(tools=[{**WEATHER, **extras}]))


def test_hosted_tools_can_be_dropped_and_are_named() -> None:
    hosted = {"type": "web_search", "filters": {"allowed_domains": ["x"]}}
    with (
        running_server(Script("Fine.").runner(), unknown_fields="ignore") as running,
        running.client() as http,
    ):
        body = response_body(tools=[hosted, {**WEATHER, "defer_loading": True}], extra=1)
        answer = http.post(PATH, json=body)
        assert answer.status_code == 200
        assert answer.headers["x-ferrite-ignored"] == "extra, tools[0], tools[1].defer_loading"
        assert [tool["name"] for tool in answer.json()["tools"]] == ["weather"]
        only_hosted = http.post(PATH, json=response_body(tools=[hosted]))
        assert (only_hosted.status_code, only_hosted.json()["tools"]) == (200, [])
        assert "x-ferrite-ignored" not in http.post(PATH, json=response_body()).headers
        refusal(http, response_body(tools=[hosted], tool_choice={"type": "web_search_preview"}))


def test_text_follows_a_schema() -> None:
    with (
        running_server(Script('{"v":"x"}').runner(), default_max_tokens=50) as running,
        running.client() as http,
    ):
        for body in (
            response_body(text=JSON_FORMAT),
            response_body(text={"format": {"type": "json_object"}}),
        ):
            whole = answered(http, body)
            assert whole["output"][0]["content"][0]["text"] == '{"v":"x"}'
            assert whole["status"] == "completed"
            assert whole["text"]["format"]["type"] == body["text"]["format"]["type"]
            events = events_of(http, body)
            assert "".join(event.get("delta", "") for event in events) == '{"v":"x"}'
        cut = answered(http, response_body(text=JSON_FORMAT, max_output_tokens=4))
        assert (cut["status"], cut["output"][0]["content"][0]["text"]) == ("incomplete", '{"v"')


def test_text_that_is_no_such_json_cannot_come(plain: httpx.Client) -> None:
    answer = plain.post(PATH, json=response_body(text=JSON_FORMAT))
    assert "Fine." not in answer.text


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"schema": {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?=a)b$"}}}},
         "text.format.schema.properties.a.pattern"),
        ({"schema": {"$ref": "#/$defs/nowhere"}}, "text.format.schema.$ref"),
        ({"name": "a b"}, "text.format.name"),
        ({"json_schema": {}}, "text.format.json_schema"),
        ({"schema": None}, "text.format.schema"),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_had_is_refused_by_keyword(
    plain: httpx.Client, changes: dict[str, Any], param: str
) -> None:
    text = {"format": {**JSON_FORMAT["format"], **changes}}
    assert refusal(plain, response_body(text=text))["param"] == param
