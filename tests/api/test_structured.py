"""``response_format``: what comes out is JSON of its schema, or the request is refused by its keyword."""

import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import jsonschema
import openai
import pydantic
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ferrite.api.errors import ApiError
from ferrite.api.structured import CachedGrammars, JsonForm, schema_refusal
from ferrite.grammar import Grammar, GrammarCompiler, GrammarError
from tests.api.scripted import CHAT, Scripted, scripted_server
from tests.api.support import MODEL_ID, batching, chat_body, gated_server, receive_until, send_raw
from tests.grammar.support import compiler
from tests.grammar.test_random_schemas import SCHEMAS, TREE

Schema = dict[str, Any]


def form(schema: Schema, *, strict: bool = True) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "f", "strict": strict, "schema": schema}}


def of(value: Schema) -> Schema:
    """The schema of an object with nothing but ``v``."""
    return {"type": "object", "properties": {"v": value}, "required": ["v"], "additionalProperties": False}


def force(text: str) -> dict[str, Any]:
    return form(of({"enum": [text]}))


@pytest.fixture(scope="module")
def server() -> Iterator[Scripted]:
    yield from scripted_server()


@pytest.mark.parametrize("text", ["x", "né 東京 👩‍🚀 щёки", 'a "quoted" \\ line\n', ""])
def test_a_known_text_can_be_forced(server: Scripted, text: str) -> None:
    server.writes("I would rather say something else.")
    choice = server.choice(response_format=force(text))
    assert json.loads(choice["message"]["content"]) == {"v": text}
    assert choice["finish_reason"] == "stop"
    chunks = server.chunks(response_format=force(text))
    streamed = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    assert streamed == choice["message"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_any_object(server: Scripted) -> None:
    server.writes('{"a": [1, {"b": null}]} and more')
    choice = server.choice(response_format={"type": "json_object"})
    assert (choice["message"]["content"], choice["finish_reason"]) == ('{"a": [1, {"b": null}]}', "stop")
    server.writes("[" + "}" * 30)
    assert json.loads(server.choice(response_format={"type": "json_object"})["message"]["content"]) == {}


def test_an_object_that_the_limit_cuts_is_told_as_cut(server: Scripted) -> None:
    server.writes('{"v": "long"}')
    choice = server.choice(response_format=force("long"), max_tokens=9)
    assert (choice["message"]["content"], choice["finish_reason"]) == ('{"v": "lo', "length")


def test_nothing_stands_behind_the_object(server: Scripted) -> None:
    server.writes("{\n  }" + "\n" * 300)
    answer = server.answer(response_format={"type": "json_object"})
    (choice,) = answer["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("{\n  }", "stop")
    assert answer["usage"]["completion_tokens"] == len("{\n  }")


def test_stop_strings_count_inside_json(server: Scripted) -> None:
    server.writes('{"v": "red green blue black"}')
    fields = {"response_format": force("red green blue black"), "stop": ["green blue", "en"]}
    choice = server.choice(**fields)
    assert (choice["message"]["content"], choice["finish_reason"]) == ('{"v": "red gre', "stop")
    server.writes('{"v": "yes?"}')
    fields = {"response_format": force("yes?"), "stop": ['"}and more']}
    assert server.choice(**fields)["message"]["content"] == '{"v": "yes?"}'


def test_the_official_client_parses_models(server: Scripted) -> None:
    class Weather(pydantic.BaseModel):
        city: str
        days: list[int]

    server.writes('{"city": "Oslo", "days": [1, -2]}')
    with server.running.openai() as client:
        answer = client.chat.completions.parse(
            model=MODEL_ID,
            messages=[{"role": "user", "content": "Hi"}],
            response_format=Weather,
            max_completion_tokens=200,
        )
        assert answer.choices[0].message.parsed == Weather(city="Oslo", days=[1, -2])
        with pytest.raises(openai.LengthFinishReasonError):
            client.chat.completions.parse(
                model=MODEL_ID,
                messages=[{"role": "user", "content": "Hi"}],
                response_format=Weather,
                max_completion_tokens=5,
            )


def nested(levels: int) -> Schema:
    schema: Schema = {"type": "array"}
    for _ in range(levels - 1):
        schema = {"type": "array", "items": schema}
    return schema


AT = "response_format.json_schema.schema"


@pytest.mark.parametrize(
    ("schema", "param"),
    [
        (of({"type": "string", "pattern": "^(?=.{3,9}$)[a-z]+$"}), f"{AT}.properties.v.pattern"),
        (of({"type": "array", "items": {"pattern": "(" * 5000}}), f"{AT}.properties.v.items.pattern"),
        (of({"anyOf": [{"type": "null"}, {"contains": {}}]}), f"{AT}.properties.v.anyOf[1].contains"),
        ({"not": {"pattern": "^a"}}, f"{AT}.not"),
        (of({"$ref": "#/$defs/none"}), f"{AT}.properties.v.$ref"),
        (of({"$ref": "https://example.com/x"}), f"{AT}.properties.v.$ref"),
        (of({"type": "strnig"}), f"{AT}.properties.v.type"),
        (of({"format": "no-such-format"}), f"{AT}.properties.v.format"),
        (of({"type": "string", "minLength": 3, "maxLength": 1}), f"{AT}.properties.v.maxLength"),
        (of({"type": "string", "maxLength": "x"}), f"{AT}.properties.v.maxLength"),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_refused_by_keyword_and_place(
    server: Scripted, schema: Schema, param: str
) -> None:
    error = server.refusal(response_format=form(schema))
    assert error["param"] == param
    assert f"`{param.rpartition('.')[2]}`" in error["message"]
    assert server.refusal(response_format=form(schema), stream=True)["param"] == param


@pytest.mark.parametrize("levels", [65, 400, 20_000])
def test_a_schema_beyond_a_limit_is_refused(server: Scripted, levels: int) -> None:
    body = json.dumps(chat_body(response_format=form(0)))  # type: ignore[arg-type]  # replaced below
    schema = '{"type":"array","items":' * levels + "{}" + "}" * levels
    with server.running.client() as http:
        answer = http.post(
            CHAT,
            content=body.replace('"schema": 0', f'"schema": {schema}'),
            headers={"content-type": "application/json"},
        )
    assert answer.status_code == 400
    assert "nested" in answer.json()["error"]["message"]


def test_long_texts_are_within_the_limits(server: Scripted) -> None:
    server.writes('{"v": {"w": "' + "x" * 50 + '"}}')
    schema = of(
        of({"type": "string", "maxLength": 2000})
        | {"properties": {"w": {"type": "string", "maxLength": 2000}}, "required": ["w"]}
    )
    assert json.loads(server.choice(response_format=form(schema))["message"]["content"]) == {
        "v": {"w": "x" * 50}
    }


@pytest.mark.parametrize(
    ("written", "param"),
    [
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"name": "f"}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": {}}}, "response_format.json_schema.name"),
        (
            {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}},
            "response_format.json_schema.name",
        ),
        ({"type": "json_object", "schema": {}}, "response_format.schema"),
        ({"type": "regex"}, "response_format.type"),
        ("json", "response_format"),
    ],
)
def test_a_format_that_is_none_is_refused(server: Scripted, written: Any, param: str) -> None:
    assert server.refusal(response_format=written)["param"] == param


def test_annotations_are_only_refused_where_strict(server: Scripted) -> None:
    schema = of({"type": "string", "format": "no-such-format", "title": "x"})
    server.writes('{"v": "anything"}')
    assert (
        server.choice(response_format=form(schema, strict=False))["message"]["content"] == '{"v": "anything"}'
    )


ORDER = {
    "type": "object",
    "properties": {"lines": {"type": "array", "items": {"$ref": "#/$defs/Line"}, "maxItems": 2}},
    "required": ["lines"],
    "additionalProperties": False,
    "$defs": {
        "Line": {
            "type": "object",
            "properties": {"unit": {"$ref": "#/$defs/Unit"}, "per": {"$ref": "#/$defs/Unit"}},
            "required": ["unit", "per"],
            "additionalProperties": False,
        },
        "Unit": {"enum": ["kg", "m"]},
    },
}
TREE_BY_PATH = {
    "type": "object",
    "properties": {
        "t": {
            "anyOf": [
                {"type": "null"},
                {
                    "type": "object",
                    "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#/properties/t/anyOf/1"}]}},
                    "required": ["next"],
                    "additionalProperties": False,
                },
            ]
        }
    },
    "required": ["t"],
    "additionalProperties": False,
}
NULLABLE = of({"anyOf": [{"enum": ["c", "f"], "type": "string"}, {"type": "null"}]})
CLOSING = '"]}' * 100
PATTERNS = of(
    {"type": "array", "maxItems": 100, "items": {"type": "string", "pattern": "^(\\d+|id:[a-z-]+)$"}}
)
UNANCHORED = of({"type": "string", "pattern": "\\S", "maxLength": 20})
ESCAPED = of({"type": "string", "pattern": "^a\\!b$"})


@pytest.mark.parametrize("schema", [ORDER, TREE_BY_PATH, NULLABLE, PATTERNS, UNANCHORED, ESCAPED])
@pytest.mark.parametrize(
    "text", ["", '{"lines": [{"unit": "kg", "per": "m"}]}', '{"t": {"next": {', '{"v": "id:a']
)
def test_what_common_libraries_write_is_followed(server: Scripted, schema: Schema, text: str) -> None:
    server.writes(text + CLOSING)
    choice = server.choice(response_format=form(schema), max_tokens=2000)
    assert choice["finish_reason"] == "stop"
    jsonschema.validate(json.loads(choice["message"]["content"]), schema)


@pytest.fixture(scope="module")
def eight() -> Iterator[Scripted]:
    yield from scripted_server(**batching(8, 8))


@settings(max_examples=6, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(SCHEMAS, min_size=8, max_size=8), st.randoms(use_true_random=False))
def test_drawn_schemas_are_followed_eight_at_a_time(
    eight: Scripted, schemas: list[Schema], random: Any
) -> None:
    forms = [form(schema) for schema in ({**schema, "$defs": {"Tree": TREE}} for schema in schemas)]
    eight.writes("".join(chr(random.randrange(32, 127)) for _ in range(40)) + CLOSING)
    answers: list[Any] = [None] * len(forms)

    def ask(index: int) -> None:
        stream = index % 2 == 1
        response = eight.post(response_format=forms[index], max_tokens=600, stream=stream)
        if response.status_code != 200:
            answers[index] = response.json()["error"]
        elif stream:
            chunks = [json.loads(event[6:]) for event in response.text.split("\n\n")[:-2]]
            text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
            answers[index] = (text, chunks[-1]["choices"][0]["finish_reason"])
        else:
            (choice,) = response.json()["choices"]
            answers[index] = (choice["message"]["content"], choice["finish_reason"])

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(forms))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    finished = 0
    for asked, answer in zip(forms, answers, strict=True):
        if isinstance(answer, dict):
            assert answer["param"].startswith(AT)
            continue
        text, reason = answer
        if reason == "stop":
            jsonschema.Draft202012Validator(asked["json_schema"]["schema"]).validate(json.loads(text))
            finished += 1
    assume(finished)


class Watched:
    """Grammars of a real compiler, and who asked for them."""

    def __init__(self) -> None:
        self.threads: list[str] = []

    def compile_json_object(self) -> Grammar:
        return self._noted().compile_json_object()

    def compile_json_schema(self, schema: Mapping[str, object], *, strict: bool) -> Grammar:
        return self._noted().compile_json_schema(schema, strict=strict)

    def compile_lark(self, text: str) -> Grammar:
        return self._noted().compile_lark(text)

    def schema_source(self, schema: Mapping[str, object], *, strict: bool) -> str:
        return self._noted().schema_source(schema, strict=strict)

    def _noted(self) -> GrammarCompiler:
        self.threads.append(threading.current_thread().name)
        return compiler()


def test_schemas_are_compiled_by_prompt_workers_and_once(server: Scripted) -> None:
    running = server.running
    model = running.state.model
    assert model is not None
    watched = Watched()
    running.state.model = replace(model, grammar=CachedGrammars(watched))
    try:
        server.writes("{}")
        for _ in range(3):
            server.answer(response_format=form({"type": "object", "maxProperties": 1}))
            server.answer(response_format={"type": "json_object"})
    finally:
        running.state.model = model
    assert len(watched.threads) == 2
    assert all(name.startswith("ferrite-prompt") for name in watched.threads)


def test_equal_schemas_are_one_grammar_and_other_ones_are_not() -> None:
    watched = Watched()
    cached = CachedGrammars(watched)
    ab: Schema = {"type": "object", "properties": {"a": {}, "b": {}}}
    ba: Schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    first = cached.compile_json_schema(ab, strict=True)
    assert cached.compile_json_schema(json.loads(json.dumps(ab)), strict=True) is first
    assert cached.compile_json_schema(ba, strict=True) is not first
    assert cached.compile_json_schema(ab, strict=False) is not first
    assert cached.schema_source(ab, strict=True) == cached.schema_source(ab, strict=True)
    assert cached.compile_lark('start: "x"') is cached.compile_lark('start: "x"')
    assert cached.compile_json_object() is cached.compile_json_object()
    assert len(watched.threads) == 6


@pytest.mark.parametrize(("limits", "kept"), [({"max_entries": 2}, [2, 0]), ({"max_bytes": 1}, [])])
def test_the_cache_keeps_to_its_limits_and_drops_the_least_recently_used(
    limits: dict[str, int], kept: list[int]
) -> None:
    watched = Watched()
    cached = CachedGrammars(watched, **limits)
    schemas: list[Schema] = [{"const": number} for number in range(3)]
    for schema in (schemas[0], schemas[1], schemas[0], schemas[2]):
        cached.compile_json_schema(schema, strict=True)
    made = len(watched.threads)
    for index in kept:
        cached.compile_json_schema(schemas[index], strict=True)
    assert len(watched.threads) == made
    cached.compile_json_schema(schemas[1], strict=True)
    assert len(watched.threads) == made + 1


def test_refused_schemas_are_not_kept() -> None:
    watched = Watched()
    cached = CachedGrammars(watched)
    for _ in range(2):
        with pytest.raises(GrammarError):
            cached.compile_json_schema({"not": {}}, strict=True)
    deep: Schema = {}
    for _ in range(100_000):
        deep = {"items": deep}
    with pytest.raises(GrammarError, match="nested"):
        cached.compile_json_schema(deep, strict=True)
    assert len(watched.threads) == 3


@pytest.mark.parametrize(
    ("path", "schema", "param"),
    [
        ("#", {}, "at.x"),
        (
            "#/properties/a~1b/items/0",
            {"properties": {"a/b": {"items": [{}]}}},
            "at.properties.a/b.items[0].x",
        ),
        ("#/properties/0", {"properties": {"0": {}}}, "at.properties.0.x"),
        ("#/gone/3", {}, "at.gone.3.x"),
    ],
)
def test_a_refusal_names_the_place_as_clients_write_it(path: str, schema: Schema, param: str) -> None:
    refusal = schema_refusal(GrammarError("no", keyword="x", path=path), schema, "at")
    assert isinstance(refusal, ApiError)
    assert refusal.body.param == param
    assert schema_refusal(GrammarError("no", path=path), schema, "at").body.param == param.removesuffix(".x")


def test_the_source_of_a_form_is_refused_like_its_grammar() -> None:
    refused = JsonForm({"not": {}}, strict=True, param="at")
    for make in (refused.grammar, refused.source):
        with pytest.raises(ApiError) as caught:
            make(compiler())
        assert caught.value.body.param == "at.not"
    assert "object" in JsonForm(None, strict=False, param="at").source(compiler())


def test_a_running_stream_goes_on_while_schemas_are_refused() -> None:
    with gated_server(**batching(2, 2)) as (running, gate), running.client() as http:
        body = chat_body(max_tokens=20, stream=True)
        with send_raw(running, CHAT, body) as connection:
            gate.wait_until_reached()
            error = http.post(CHAT, json=chat_body(response_format=form(nested(70)))).json()["error"]
            assert error["param"].startswith(AT)
            gate.open()
            receive_until(connection, b"[DONE]")
