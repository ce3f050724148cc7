"""``/v1/responses``: what it takes, what it refuses by name, and what it shares with the other routes."""

import json
import typing
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from openai.types.responses import response_create_params

from ferrite.api.fields import RESPONSE_FIELDS, Field, Support
from ferrite.api.responses_wire import ResponsesBody
from tests.api.support import MODEL_ID, Gate, Running, Script, chat_body, prefix_cache, running_server

PATH, CHAT = "/v1/responses", "/v1/chat/completions"
TEXT = "Hello, wörld! 🦀 日本"


def response_body(given: Any = "Hi", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL_ID, "input": given, **fields}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    runner = Script(TEXT).runner(context_length=512)
    with running_server(runner, default_max_tokens=200, hard_max_tokens=400) as running:
        yield running


@pytest.fixture(scope="module")
def http(server: Running) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def answered(http: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    answer = http.post(PATH, json=body)
    assert answer.status_code == 200, answer.text
    decoded: dict[str, Any] = answer.json()
    return decoded


def events_of(http: httpx.Client, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the data of a stream, whose events are named as their data are typed."""
    answer = http.post(PATH, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = []
    for block in answer.text.strip().split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def refusal(http: httpx.Client, body: Any, status: int = 400) -> dict[str, Any]:
    answer = http.post(PATH, json=body)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error: dict[str, Any] = answer.json()["error"]
    return error


def text_of(response: dict[str, Any]) -> str:
    (item,) = response["output"]
    (part,) = item["content"]
    text: str = part["text"]
    return text


def test_the_streamed_response_is_the_whole_one(http: httpx.Client) -> None:
    for body in (response_body(), response_body(max_output_tokens=9), response_body(stop=["rl"])):
        whole = answered(http, body)
        events = events_of(http, body)
        last = events[-1]["response"]
        assert text_of(last) == text_of(whole)
        assert "".join(event.get("delta", "") for event in events) == text_of(whole)
        assert last["usage"] == whole["usage"]
        assert (last["status"], last["incomplete_details"]) == (whole["status"], whole["incomplete_details"])
        assert events[-1]["type"] == f"response.{last['status']}"
        assert {event["response"]["id"] for event in events if "response" in event} == {last["id"]}
        assert last["store"] is whole["store"] is False


def test_it_has_the_prompt_and_the_answer_of_the_chat(http: httpx.Client, server: Running) -> None:
    given = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello!"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "Bye"}]},
    ]
    response = answered(http, response_body(given))
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "Bye"},
    ]
    chat = http.post(CHAT, json={"model": MODEL_ID, "messages": messages}).json()
    ours, theirs = server.runner.samplers[-2:]
    assert ours.prompt == theirs.prompt
    assert text_of(response) == chat["choices"][0]["message"]["content"] == TEXT
    assert response["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
    assert response["usage"]["output_tokens"] == chat["usage"]["completion_tokens"]
    assert response["usage"]["total_tokens"] == chat["usage"]["total_tokens"]


def test_the_response_says_how_the_request_was_understood(http: httpx.Client) -> None:
    response = answered(
        http,
        response_body(
            instructions="Be brief.",
            temperature=0.5,
            top_p=0.9,
            max_output_tokens=3,
            metadata={"a": "b"},
            prompt_cache_key="k",
            user="u",
            safety_identifier="s",
            parallel_tool_calls=False,
        ),
    )
    assert {name: response[name] for name in ("temperature", "top_p", "max_output_tokens", "user")} == {
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 3,
        "user": "u",
    }
    assert (response["instructions"], response["metadata"]) == ("Be brief.", {"a": "b"})
    assert (response["prompt_cache_key"], response["safety_identifier"]) == ("k", "s")
    assert response["parallel_tool_calls"] is False
    assert (response["object"], response["model"], response["error"]) == ("response", MODEL_ID, None)
    plain = answered(http, response_body())
    assert (plain["temperature"], plain["top_p"], plain["truncation"]) == (0.0, 1.0, "disabled")
    assert (plain["tools"], plain["tool_choice"], plain["text"]) == ([], "auto", {"format": {"type": "text"}})


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("text", [TEXT, "👩‍🚀"])
def test_a_small_budget_is_kept(text: str, n: int) -> None:
    with running_server(Script(text).runner()) as running, running.client() as http:
        response = answered(http, response_body(max_output_tokens=n))
        assert response["usage"]["output_tokens"] == n
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert (response["status"], response["output"][0]["status"]) == ("incomplete", "incomplete")


def test_the_server_s_limits_are_the_only_ones() -> None:
    runner = Script("z", endless=True).runner()
    with (
        running_server(runner, default_max_tokens=200, hard_max_tokens=400) as running,
        running.client() as http,
    ):
        assert answered(http, response_body())["usage"]["output_tokens"] == 200
        assert answered(http, response_body(max_output_tokens=400))["usage"]["output_tokens"] == 400
        error = refusal(http, response_body(max_output_tokens=401))
        assert error["param"] == "max_output_tokens"
        assert "401" in error["message"]
        assert "400" in error["message"]
        assert refusal(http, response_body(max_output_tokens=0))["param"] == "max_output_tokens"


def test_what_does_not_fit_into_the_context_is_refused_with_the_numbers(http: httpx.Client) -> None:
    overhead = len("user:;")
    fits = response_body("x" * (512 - 200 - overhead), truncation="disabled")
    assert answered(http, fits)["usage"]["input_tokens"] == 312
    error = refusal(http, response_body("x" * (512 - 200 - overhead + 1)))
    assert (error["param"], error["code"]) == ("input", "context_length_exceeded")
    assert all(number in error["message"] for number in ("313", "200", "513", "512"))
    assert refusal(http, response_body(truncation="auto"))["param"] == "truncation"


def client_fields() -> set[str]:
    streaming = typing.get_type_hints(response_create_params.ResponseCreateParamsStreaming)
    return set(typing.get_type_hints(response_create_params.ResponseCreateParamsBase)) | set(streaming)


OURS = {
    "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias", "seed",
    "stop", "return_token_ids", "max_tokens", "n", "chat_template_kwargs",
}  # fmt: skip


def test_the_table_has_every_field_of_the_client_and_of_the_body() -> None:
    assert set(RESPONSE_FIELDS) == set(ResponsesBody.__struct_fields__) == client_fields() | OURS


NOT_NEUTRAL: dict[str, Any] = {
    "max_tokens": 5,
    "n": 2,
    "truncation": "auto",
    "store": True,
    "background": True,
    "background_options": {"completion_window": "2h"},
    "previous_response_id": "resp_1",
    "conversation": "conv_1",
    "prompt": {"id": "p"},
    "context_management": [{"type": "compaction"}],
    "max_tool_calls": 1,
    "moderation": {"model": "m"},
    "image": {"context_compression": "auto"},
    "access_programs": {"cyber": "standard"},
    "service_tier": "flex",
    "prompt_cache_options": {"mode": "explicit"},
    "prompt_cache_retention": "24h",
}
RESTRICTED = [(name, field) for name, field in RESPONSE_FIELDS.items() if field.support is Support.NEVER]


@pytest.mark.parametrize(("name", "field"), RESTRICTED)
def test_a_value_that_is_not_honoured_is_refused_by_name(http: httpx.Client, name: str, field: Field) -> None:
    error = refusal(http, {"model": MODEL_ID, name: NOT_NEUTRAL[name]})
    assert error["param"] == name
    assert f"`{name}`" in error["message"]
    for neutral in (None, *field.neutral):
        answered(http, response_body(**{name: msgspec.to_builtins(neutral)}))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"include": ["reasoning.encrypted_content", "code_interpreter_call.outputs"]}, "include[1]"),
        ({"include": ["file_search_call.results"]}, "include[0]"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 2, "include": ["reasoning.encrypted_content"]}, "top_logprobs"),
        ({"top_logprobs": 21, "include": ["message.output_text.logprobs"]}, "top_logprobs"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"reasoning": {"summary": "auto"}}, "reasoning.summary"),
        ({"reasoning": {"generate_summary": "auto"}}, "reasoning.generate_summary"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"reasoning": {"context": "all_turns"}}, "reasoning.context"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"stream": True, "stream_options": {"include_usage": False}}, "stream_options.include_usage"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options"),
        ({"messages": []}, "messages"),
        ({"temperature": 2.5}, "temperature"),
        ({"input": None}, "input"),
        ({"model": "gpt"}, "model"),
    ],
)
def test_what_it_does_not_do_is_refused_by_path(
    http: httpx.Client, fields: dict[str, Any], param: str
) -> None:
    error = refusal(http, response_body(**fields), 404 if param == "model" else 400)
    assert error["param"] == param


def test_harmless_extras_change_nothing(http: httpx.Client) -> None:
    extras = {
        "tools": [],
        "tool_choice": "none",
        "parallel_tool_calls": True,
        "store": False,
        "background": False,
        "truncation": "disabled",
        "metadata": {},
        "include": ["reasoning.encrypted_content"],
        "top_logprobs": 0,
        "reasoning": {"effort": None, "mode": "standard"},
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "service_tier": "auto",
        "previous_response_id": None,
        "stream_options": None,
        "n": 1,
    }
    assert text_of(answered(http, response_body(**extras))) == TEXT


def test_template_errors_name_instructions_or_input(http: httpx.Client) -> None:
    error = refusal(http, response_body("refuse me"))
    assert (error["param"], error["message"]) == ("input", "Conversation roles must alternate")
    assert (error["code"], error["type"]) == ("chat_template_error", "invalid_request_error")
    assert refusal(http, response_body("Hi", instructions="refuse me"))["param"] == "instructions"
    assert refusal(http, response_body("refuse me", instructions="Be brief."))["param"] == "input"
    assert refusal(http, response_body("break"), 500)["message"] == "An internal error occurred."
    answered(http, response_body())


def test_ids_usage_in_streams_and_obfuscation(http: httpx.Client) -> None:
    body = response_body(stream_options={"include_obfuscation": True, "include_usage": True})
    events = events_of(http, body)
    padded = [event for event in events if event["type"].endswith(".delta")]
    assert all((len(event["delta"].encode()) + len(event["obfuscation"])) % 32 == 0 for event in padded)
    request_id = "my-id-1"
    answer = http.post(PATH, json=response_body(stream=True), headers={"x-request-id": request_id})
    assert answer.headers["x-request-id"] == request_id
    first = json.loads(answer.text.split("\n")[1].removeprefix("data: "))
    assert first["response"]["request_id"] == request_id


def test_token_ids(http: httpx.Client) -> None:
    response = answered(http, response_body(return_token_ids=True))
    assert bytes(response["token_ids"]).decode() == TEXT
    assert (
        events_of(http, response_body(return_token_ids=True))[-1]["response"]["token_ids"]
        == response["token_ids"]
    )
    assert "token_ids" not in answered(http, response_body(return_token_ids=True, stop="zz"))


def test_the_prefix_cache_serves_it_and_says_so() -> None:
    runner = Script(TEXT).runner(context_length=512)
    with running_server(runner, **prefix_cache()) as running, running.client() as http:
        body = response_body(
            "a long question", prompt_cache_key="k", metadata={"ferrite_cache_trace": "true"}
        )
        cold, warm = answered(http, body), answered(http, body)
        assert cold["output"][0]["content"] == warm["output"][0]["content"]
        n_prompt = len("user:a long question;")
        assert cold["usage"]["input_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": n_prompt}
        assert warm["usage"]["input_tokens_details"]["cached_tokens"] == n_prompt - 1
        assert warm["ferrite_cache_trace"]["outcome"] == "hit"
        streamed = events_of(http, body)[-1]["response"]
        assert streamed["ferrite_cache_trace"]["cached_tokens"] == n_prompt - 1
        chat = chat_body("a long question", prompt_cache_key="k")
        assert http.post(CHAT, json=chat).json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_it_has_rows_and_log_fields_as_the_other_routes(http: httpx.Client) -> None:
    n_before = http.get("/v1/requests").json()["recorded_total"]
    answered(http, response_body(max_output_tokens=2))
    events_of(http, response_body())
    cut, streamed = http.get(f"/v1/requests?since={n_before}").json()["rows"]
    assert (cut["endpoint"], cut["finish_reason"], cut["completion_tokens"]) == (PATH, "length", 2)
    assert (streamed["streamed"], streamed["finish_reason"]) == (True, "stop")


def test_a_failing_step_ends_the_stream_with_an_error_event() -> None:
    gate = Gate()
    runner = Script("z", endless=True).runner()

    def fail(batch: Any) -> None:
        gate(batch)
        if gate_is_broken:
            raise RuntimeError("the step broke")

    gate_is_broken = False
    runner.before_step = fail
    with running_server(runner) as running, running.client() as http:
        with http.stream("POST", PATH, json=response_body(stream=True)) as answer:
            lines = answer.iter_lines()
            gate.pass_one()
            gate.pass_one()
            assert any("output_text.delta" in line for line in lines)
            gate_is_broken = True
            gate.open()
            rest = [line for line in lines if line]
        assert rest[-2] == "event: error"
        error = json.loads(rest[-1].removeprefix("data: "))
        assert (error["type"], error["error"]["type"]) == ("error", "server_error")
        assert error["message"] == error["error"]["message"]
        assert "[DONE]" not in "".join(rest)
        gate_is_broken = False
        assert answered(http, response_body(max_output_tokens=1))["status"] == "incomplete"


SAMPLING: dict[str, Any] = {
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "frequency_penalty": 0.5,
    "presence_penalty": -0.5,
    "repetition_penalty": 1.1,
    "logit_bias": {"65": 3},
    "seed": 7,
}


@pytest.mark.parametrize("name", list(SAMPLING))
def test_sampling_fields_reach_the_sampler_as_a_chat_s_do(
    http: httpx.Client, server: Running, name: str
) -> None:
    answered(http, response_body())
    answered(http, response_body(**{name: SAMPLING[name]}))
    http.post(CHAT, json=chat_body(**{name: SAMPLING[name]}))
    plain, ours, theirs = server.runner.samplers[-3:]
    assert ours.params == theirs.params
    assert ours.params != plain.params
