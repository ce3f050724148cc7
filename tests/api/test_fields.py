"""Every field of the official client is honoured, accepted on purpose, or refused by name."""

import json
import typing
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types import completion_create_params as completion_params
from openai.types.chat import completion_create_params as chat_params

from ferrite.api.errors import ApiError
from ferrite.api.fields import CHAT_FIELDS, COMPLETION_FIELDS, Field, Support
from ferrite.api.schema import BodyDecoder
from ferrite.api.wire import ChatBody, CompletionBody, GenerationBody
from tests.api.support import MODEL_ID, Running, Script, chat_body, completion_body, running_server

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TEXT = "abcdefgh"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    runner = Script(TEXT).runner(context_length=512)
    with running_server(runner, default_max_tokens=200, hard_max_tokens=400) as running:
        yield running


@pytest.fixture(scope="module")
def http(server: Running) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def refusal(http: httpx.Client, path: str, body: object, status: int = 400) -> dict[str, Any]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = http.post(path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error: dict[str, Any] = answer.json()["error"]
    return error


def test_harmless_extras_change_nothing(http: httpx.Client) -> None:
    extras = {
        "parallel_tool_calls": True,
        "tools": [],
        "tool_choice": "none",
        "store": False,
        "metadata": {},
        "user": "u",
        "n": 1,
        "logit_bias": {},
        "stop": None,
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "prediction": None,
        "stream_options": None,
        "service_tier": "auto",
        "logprobs": False,
        "top_logprobs": 0,
        "seed": None,
    }
    body = {"model": MODEL_ID, "messages": [{"role": "user", "content": "Hi", "name": "ann"}], **extras}
    with_extras = http.post(CHAT, json=body)
    plain = http.post(CHAT, json=chat_body())
    assert with_extras.status_code == 200
    assert with_extras.json()["choices"] == plain.json()["choices"]


def test_unknown_fields_are_refused_by_name_and_option(http: httpx.Client) -> None:
    error = refusal(http, CHAT, chat_body(num_ctx=4096))
    assert (error["param"], error["code"]) == ("num_ctx", "unknown_field")
    assert "--unknown-fields ignore" in error["message"]
    assert refusal(http, COMPLETIONS, completion_body(messages=[]))["param"] == "messages"


def test_unknown_fields_can_be_ignored_and_are_named() -> None:
    with running_server(Script(TEXT).runner(), unknown_fields="ignore") as running, running.client() as http:
        body = {
            "model": MODEL_ID,
            "messages": [
                {"role": "system", "content": [{"type": "text", "text": "a", "cache": 1}], "x": {"y": 1}},
                {"role": "user", "content": "Hi"},
            ],
            "num_ctx": 4096,
            "strange,näme\n": 1,
        }
        answer = http.post(CHAT, json=body)
        assert answer.status_code == 200
        assert answer.headers["x-ferrite-ignored"] == (
            "messages[0].content[0].cache, messages[0].x, num_ctx, strange%2Cn%C3%A4me%0A"
        )
        assert "x-ferrite-ignored" not in http.post(CHAT, json=chat_body()).headers
        assert refusal(http, CHAT, chat_body(num_ctx=1, temperature="hot"))["param"] == "temperature"
        assert refusal(http, CHAT, {"num_ctx": 1, "model": MODEL_ID})["param"] == "messages"
        many = http.post(CHAT, json=chat_body(**{f"field{index}": index for index in range(1000)}))
        assert many.status_code == 200
        assert len(many.headers["x-ferrite-ignored"]) < 2100


def client_fields(params: Any) -> set[str]:
    streaming = typing.get_type_hints(params.CompletionCreateParamsStreaming)
    return set(typing.get_type_hints(params.CompletionCreateParamsBase)) | set(streaming)


def test_the_table_has_every_field_of_the_client_and_of_the_body() -> None:
    ours = {"top_k", "min_p", "repetition_penalty", "return_token_ids", "prompt_cache_key"}
    assert (
        set(CHAT_FIELDS)
        == set(ChatBody.__struct_fields__)
        == client_fields(chat_params) | ours | {"chat_template_kwargs"}
    )
    assert (
        set(COMPLETION_FIELDS)
        == set(CompletionBody.__struct_fields__)
        == client_fields(completion_params) | ours | {"metadata"}
    )


NOT_NEUTRAL: dict[str, Any] = {
    "n": 2,
    "logprobs": True,
    "top_logprobs": 2,
    "functions": [{"name": "f"}],
    "function_call": {"name": "f"},
    "modalities": ["text", "audio"],
    "audio": {"voice": "alloy", "format": "wav"},
    "prediction": {"type": "content", "content": "a"},
    "web_search_options": {},
    "moderation": {"model": "m"},
    "verbosity": "low",
    "store": True,
    "service_tier": "flex",
    "prompt_cache_options": {"mode": "explicit"},
    "prompt_cache_retention": "24h",
    "best_of": 2,
    "echo": True,
    "suffix": "end",
}
RESTRICTED = [
    (path, name, field)
    for path, table in ((CHAT, CHAT_FIELDS), (COMPLETIONS, COMPLETION_FIELDS))
    for name, field in table.items()
    if field.support is Support.NEVER
]


@pytest.mark.parametrize(("path", "name", "field"), RESTRICTED)
def test_a_value_that_is_not_honoured_is_refused_by_name(
    http: httpx.Client, path: str, name: str, field: Field
) -> None:
    body = chat_body() if path == CHAT else completion_body()
    value = 3 if (path, name) == (COMPLETIONS, "logprobs") else NOT_NEUTRAL[name]
    error = refusal(http, path, {**body, name: value}, 400)
    assert error["param"] == name
    assert f"`{name}`" in error["message"]
    for neutral in (None, *field.neutral):
        accepted = {**body, name: msgspec.to_builtins(neutral)}
        assert http.post(path, json=accepted).status_code == 200


def test_stream_options_need_a_stream(http: httpx.Client) -> None:
    error = refusal(http, CHAT, chat_body(stream_options={"include_usage": True}))
    assert error["param"] == "stream_options"


def test_a_named_function_needs_tools(http: httpx.Client) -> None:
    choice = {"type": "function", "function": {"name": "f"}}
    assert refusal(http, CHAT, chat_body(tool_choice=choice))["param"] == "tool_choice"
    assert refusal(http, CHAT, chat_body(response_format={"type": "xml"}))["param"] == "response_format.type"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.sampled_from([ChatBody, CompletionBody]),
    st.dictionaries(st.sampled_from([*CHAT_FIELDS, *COMPLETION_FIELDS, "zz", "a b"]), json_values),
    st.booleans(),
)
@settings(max_examples=60)
def test_any_body_is_decoded_or_refused_with_a_path_of_its_own(
    body_type: type[GenerationBody], body: dict[str, Any], ignore: bool
) -> None:
    outcome = decoded_or_error(BodyDecoder(body_type, ignore_unknown=ignore), json.dumps(body).encode())
    if isinstance(outcome, ApiError):
        assert outcome.status == 400
        roots = {None, *body, *body_type.__struct_fields__}
        assert (outcome.body.param and outcome.body.param.split("[")[0].split(".")[0]) in roots
    else:
        assert isinstance(outcome, body_type)


def decoded_or_error(decoder: BodyDecoder[Any], data: bytes) -> object:
    try:
        return decoder.decode(data)[0]
    except ApiError as error:
        return error
