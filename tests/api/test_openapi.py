"""The document is true: its routes are the server's, and what is sent and answered follows its schemas."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from msgspec import inspect
from starlette.routing import Route

from ferrite.api import ServerConfig, ServerState, openapi
from ferrite.api.app import build_app
from ferrite.api.errors import ApiError
from ferrite.api.fields import CHAT_FIELDS, COMPLETION_FIELDS, RESPONSE_FIELDS, Field, Support, check_fields
from ferrite.api.openapi import document
from ferrite.api.responses_wire import ResponsesBody
from ferrite.api.routes import LATER_ROUTES
from ferrite.api.schema import BodyDecoder
from ferrite.api.tokenize import DetokenizeBody, TokenizeTextBody
from ferrite.api.wire import ChatBody, CompletionBody
from tests.api.spelling import spelling_server
from tests.api.support import (
    MODEL_ID,
    Running,
    batching,
    chat_body,
    completion_body,
    gated_server,
    prefix_cache,
    send_raw,
)

Document = Mapping[str, Any]
MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with spelling_server(api_key="k", max_body_bytes=4096, **prefix_cache()) as running:
        yield running


@pytest.fixture(scope="module")
def http(server: Running) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def test_the_document_is_made_once_and_not_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ServerConfig] = []

    def noted(config: ServerConfig, vocab_size: int | None) -> dict[str, Any]:
        made.append(config)
        return document(config, vocab_size)

    monkeypatch.setattr(openapi, "document", noted)
    with spelling_server() as running, running.client() as client:
        assert not made
        assert client.get("/openapi.json").json() == client.get("/openapi.json").json()
        assert len(made) == 1


@pytest.fixture(scope="module")
def served(http: httpx.Client) -> Document:
    answer = http.get("/openapi.json", headers={"authorization": ""})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    found: Document = answer.json()
    return found


def validator(of: Document, schema: Mapping[str, Any]) -> Draft202012Validator:
    return Draft202012Validator({**schema, "components": of["components"]})


def body_validator(of: Document, name: str) -> Draft202012Validator:
    return validator(of, {"$ref": f"#/components/schemas/{name}"})


def resolved(of: Document, value: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" not in value:
        return value
    found: Any = of
    for part in value["$ref"].removeprefix("#/").split("/"):
        found = found[part]
    return dict(found)


def references(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def check_answer(of: Document, answer: httpx.Response, method: str, path: str) -> None:
    """The answer's status, headers, content type and content are what the document says."""
    declared = resolved(of, of["paths"][path][method]["responses"][str(answer.status_code)])
    for name, header in declared["headers"].items():
        assert name in answer.headers or not resolved(of, header)["required"]
    content = declared["content"][answer.headers["content-type"].partition(";")[0]]
    if "itemSchema" not in content:
        whole = answer.json() if "json" in answer.headers["content-type"] else answer.text
        validator(of, content["schema"]).validate(whole)
        return
    schema = content["itemSchema"]
    kinds = [kind.get("contentSchema", kind) for kind in schema["properties"]["data"]["anyOf"]]
    for written in answer.text.split("\n\n")[:-1]:
        fields = [line.split(": ", 1) for line in written.split("\n")]
        event = {"event": "message", **dict(fields)}
        validator(of, schema).validate(event)
        if kinds[1:] and event["data"] == "[DONE]":
            assert answer.text.endswith("data: [DONE]\n\n")
        else:
            validator(of, kinds[0]["anyOf"][0]).validate(json.loads(event["data"]))


def test_every_route_that_does_something_is_described(served: Document) -> None:
    routes = {
        (route.path.replace(":path", ""), method.lower())
        for route in build_app(ServerConfig(), ServerState(None)).routes
        if isinstance(route, Route)
        for method in route.methods or ()
        if method != "HEAD" and route.path not in LATER_ROUTES
    }
    assert {(path, method) for path, methods in served["paths"].items() for method in methods} == routes


def test_the_schemas_are_schemas_and_every_reference_leads_somewhere(served: Document) -> None:
    assert served["openapi"] == "3.2.0"
    for schema in served["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    for reference in references(served):
        assert resolved(served, reference)
    names = [op["operationId"] for methods in served["paths"].values() for op in methods.values()]
    assert len(names) == len(set(names))


def test_the_document_of_a_server_tells_its_limits_and_no_secret() -> None:
    config = ServerConfig(api_key="s3cr3t-key", model_id="a/b", hard_max_tokens=77, default_max_tokens=5)
    found = document(config, 1000)
    assert "s3cr3t" not in json.dumps(found)
    bodies = found["components"]["schemas"]
    assert bodies["ChatBody"]["properties"]["model"]["const"] == "a/b"
    assert bodies["ChatBody"]["properties"]["max_tokens"]["anyOf"][0]["minimum"] == 1
    assert bodies["CompletionBody"]["properties"]["max_tokens"]["anyOf"][0]["maximum"] == 77
    assert bodies["DetokenizeBody"]["properties"]["tokens"]["items"]["maximum"] == 999
    chat = found["paths"]["/v1/chat/completions"]["post"]
    assert chat["security"] == [{"ApiKey": []}]
    assert {"401", "429"} <= set(chat["responses"])
    assert "504" not in chat["responses"]
    assert "security" not in found["paths"]["/health"]["get"]


def test_without_a_key_and_a_model_nothing_is_said_of_them() -> None:
    found = document(ServerConfig(request_timeout_ms=5), None)
    operation = found["paths"]["/v1/detokenize"]["post"]
    assert "security" not in operation
    assert "401" not in operation["responses"]
    assert "504" in operation["responses"]
    assert "securitySchemes" not in found["components"]
    assert "maximum" not in found["components"]["schemas"]["DetokenizeBody"]["properties"]["tokens"]["items"]


def test_ignored_fields_are_allowed_at_every_depth() -> None:
    odd = {**chat_body([{"type": "text", "text": "a", "zz": 1}]), "num_ctx": 1}
    for unknown, valid in (("refuse", False), ("ignore", True)):
        found = document(ServerConfig(model_id=MODEL_ID, unknown_fields=unknown), 256)
        assert body_validator(found, "ChatBody").is_valid(odd) is valid
        assert body_validator(found, "TokenizeChatBody").is_valid(odd) is valid


@pytest.mark.parametrize(
    ("name", "fields"),
    [("ChatBody", CHAT_FIELDS), ("CompletionBody", COMPLETION_FIELDS), ("ResponsesBody", RESPONSE_FIELDS)],
)
def test_a_field_that_is_not_honoured_has_its_neutral_values_only(
    served: Document, name: str, fields: Mapping[str, Field]
) -> None:
    properties = served["components"]["schemas"][name]["properties"]
    assert set(properties) == set(fields)
    for field, rule in fields.items():
        restricted = rule.support is Support.NEVER
        assert restricted is (properties[field].get("enum", ["value"])[0] is None)


@pytest.mark.parametrize(
    "path",
    ["/health", "/metrics", "/openapi.json", "/v1/models", "/v1/stats", "/v1/requests", "/admin/stats"],
)
def test_what_is_read_is_as_described(http: httpx.Client, served: Document, path: str) -> None:
    assert http.post("/v1/completions", json=completion_body()).status_code == 200
    answer = http.get(path)
    assert answer.status_code == 200
    check_answer(served, answer, "get", path)


EXTRAS = {"return_token_ids": True, "metadata": {"ferrite_cache_trace": "true"}, "prompt_cache_key": "k"}
STREAMED = {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": True}}
TEXT_PARTS = [{"type": "text", "text": "a"}]
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLED = [*MESSAGES, {"role": "assistant", "tool_calls": [CALL]}]
ACCEPTED: list[tuple[str, str, dict[str, Any]]] = [
    ("/v1/chat/completions", "ChatBody", chat_body()),
    ("/v1/chat/completions", "ChatBody", chat_body(TEXT_PARTS, **EXTRAS, max_tokens=3, logit_bias={"5": 1})),
    ("/v1/chat/completions", "ChatBody", chat_body(**EXTRAS, **STREAMED)),
    ("/v1/chat/completions", "ChatBody", {"model": MODEL_ID, "messages": CALLED}),
    ("/v1/completions", "CompletionBody", completion_body()),
    ("/v1/completions", "CompletionBody", completion_body(["a", "b"], **EXTRAS)),
    ("/v1/completions", "CompletionBody", completion_body([1, 255], max_tokens=0)),
    ("/v1/completions", "CompletionBody", completion_body([[1], [2]], stop=["x"])),
    ("/v1/completions", "CompletionBody", completion_body(**EXTRAS, **STREAMED)),
    ("/v1/responses", "ResponsesBody", {"model": MODEL_ID, "input": "Hi"}),
    ("/v1/responses", "ResponsesBody", {"model": MODEL_ID, "input": MESSAGES, "instructions": "x", **EXTRAS}),
    ("/v1/responses", "ResponsesBody", {"model": MODEL_ID, "input": "Hi", "stream": True}),
    ("/v1/responses", "ResponsesBody", {"model": MODEL_ID, "input": "Hi", "max_output_tokens": 1}),
    ("/v1/tokenize", "TokenizeTextBody", completion_body("aé", with_pieces=True)),
    ("/v1/tokenize", "TokenizeChatBody", chat_body(with_pieces=True)),
    ("/v1/detokenize", "DetokenizeBody", {"model": MODEL_ID, "tokens": [1, 255]}),
    ("/v1/chat/completions/render", "ChatBody", chat_body()),
]


def lonely_tags(found: inspect.Type, *, chosen: bool = False) -> Iterator[str]:
    """The structs for whose tag msgspec does not ask: it does only where it must choose among several."""
    match found:
        case inspect.UnionType():
            several = sum(isinstance(each, inspect.StructType) for each in found.types) > 1
            for each in found.types:
                yield from lonely_tags(each, chosen=several)
        case inspect.ListType():
            yield from lonely_tags(found.item_type)
        case inspect.StructType():
            if found.tag_field is not None and not chosen:
                yield found.cls.__name__
            for field in found.fields:
                yield from lonely_tags(field.type)


@pytest.mark.parametrize("body", [ChatBody, CompletionBody, ResponsesBody, TokenizeTextBody, DetokenizeBody])
def test_every_tag_that_is_described_as_required_is(body: type[msgspec.Struct]) -> None:
    assert list(lonely_tags(inspect.type_info(body))) == []


@pytest.mark.parametrize(("path", "body_type", "body"), ACCEPTED)
def test_what_is_sent_and_answered_is_as_described(
    http: httpx.Client, served: Document, path: str, body_type: str, body: dict[str, Any]
) -> None:
    body_validator(served, body_type).validate(body)
    written = served["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    validator(served, written).validate(body)
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    check_answer(served, answer, "post", path)


REFUSED: list[tuple[str, str, dict[str, Any]]] = [
    ("/v1/chat/completions", "ChatBody", chat_body(temperature=3)),
    ("/v1/chat/completions", "ChatBody", chat_body(max_tokens=0)),
    ("/v1/chat/completions", "ChatBody", chat_body(max_completion_tokens=257)),
    ("/v1/chat/completions", "ChatBody", chat_body(audio={})),
    ("/v1/chat/completions", "ChatBody", chat_body(n=2)),
    ("/v1/chat/completions", "ChatBody", chat_body(metadata={"ferrite_cache_trace": "yes"})),
    ("/v1/chat/completions", "ChatBody", chat_body(logit_bias={"05": 1})),
    ("/v1/chat/completions", "ChatBody", {"model": MODEL_ID, "messages": [{"role": "assistant"}]}),
    ("/v1/completions", "CompletionBody", completion_body([1, "a"])),
    ("/v1/completions", "CompletionBody", completion_body([256])),
    ("/v1/completions", "CompletionBody", completion_body(["a"] * 129)),
    ("/v1/completions", "CompletionBody", completion_body(model="other")),
    ("/v1/responses", "ResponsesBody", {"model": MODEL_ID, "input": "a", "max_output_tokens": 257}),
    ("/v1/responses", "ResponsesBody", {"model": MODEL_ID, "input": "a", "store": True}),
    ("/v1/detokenize", "DetokenizeBody", {"model": MODEL_ID, "tokens": [256]}),
    ("/v1/tokenize", "TokenizeTextBody", completion_body(temperature=1)),
]


@pytest.mark.parametrize(("path", "body_type", "body"), REFUSED)
def test_what_the_schemas_refuse_is_refused(
    http: httpx.Client, served: Document, path: str, body_type: str, body: dict[str, Any]
) -> None:
    assert not body_validator(served, body_type).is_valid(body)
    answer = http.post(path, json=body)
    assert answer.status_code in (400, 404), answer.text
    check_answer(served, answer, "post", path)


def test_refusals_are_as_described(http: httpx.Client, served: Document) -> None:
    for path, methods in served["paths"].items():
        url = path.replace("{id}", MODEL_ID)
        (method,) = methods
        answers = [http.request("PATCH", url)]
        if path.startswith(("/v1", "/admin")):
            answers.append(http.request(method, url, headers={"authorization": ""}))
        if method == "post":
            answers += [http.post(url), http.post(url, json={"a": "b" * 5000}), http.post(url, json={})]
        for answer in answers:
            assert answer.status_code in (400, 401, 405, 413, 415)
            check_answer(served, answer, method, path)
    answer = http.get("/v1/models/other")
    check_answer(served, answer, "get", "/v1/models/{id}")
    answer = http.get("/v1/requests?limit=0")
    check_answer(served, answer, "get", "/v1/requests")


def test_a_full_server_answers_as_described(served: Document) -> None:
    with gated_server(**batching(1, 0)) as (running, gate):
        running_one = send_raw(running, "/v1/completions", completion_body())
        with running_one, running.client() as http:
            gate.wait_until_reached()
            answer = http.post("/v1/completions", json=completion_body())
            assert answer.status_code == 429
            check_answer(served, answer, "post", "/v1/completions")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 300) | st.just(0.5) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=5,
)
TABLES: Mapping[Any, Mapping[str, Field]] = {ChatBody: CHAT_FIELDS, CompletionBody: COMPLETION_FIELDS}


def cases(body_type: Any, valid: dict[str, Any]) -> st.SearchStrategy[tuple[Any, dict[str, Any]]]:
    names = st.sampled_from(sorted({*body_type.__struct_fields__, "zz"} - {"messages", "model"}))
    more = st.dictionaries(names, json_values, max_size=2)
    return more.map(lambda fields: (body_type, {**valid, **fields}))


@pytest.fixture(scope="module")
def accepts(served: Document) -> Callable[[Any, dict[str, Any]], bool]:
    return lambda body_type, body: body_validator(served, body_type.__name__).is_valid(body)


@given(
    case=cases(ChatBody, chat_body())
    | cases(CompletionBody, completion_body())
    | cases(TokenizeTextBody, completion_body())
    | cases(DetokenizeBody, {"model": MODEL_ID, "tokens": [1]})
)
@settings(max_examples=200)
def test_decoder_and_schema_agree(
    accepts: Callable[[Any, dict[str, Any]], bool], case: tuple[Any, dict[str, Any]]
) -> None:
    """What the schema refuses, the route does; what it accepts has at least the right types."""
    body_type, body = case
    accepted = accepts(body_type, body)
    fields = TABLES.get(body_type, {})
    refused = refusal_of(body_type, fields, body)
    if refused is not None:
        # Fields that need each other are more than the schema says.
        assert not accepted or refused.body.param in ("stream_options", "top_logprobs", "tool_choice")
    elif not accepted:
        assert body.keys() & {"max_tokens", "max_completion_tokens", "n", "prompt", "logit_bias"}, (
            "only these have rules that are checked behind the decoder"
        )


def refusal_of(body_type: Any, fields: Mapping[str, Field], body: dict[str, Any]) -> ApiError | None:
    try:
        decoded = BodyDecoder(body_type, ignore_unknown=False).decode(json.dumps(body).encode())[0]
        if fields:
            check_fields(decoded, fields)
    except ApiError as error:
        return error
    return None
