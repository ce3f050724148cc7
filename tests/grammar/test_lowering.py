"""Keywords that the compiler lacks: what they mean is enforced exactly, and what cannot be is refused."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator, Draft202012Validator

from ferrite.grammar import GrammarError
from tests.grammar.support import allows, generate, of_schema

Schema = dict[str, Any]
VALUES: list[object] = [
    None,
    True,
    0,
    1,
    2.5,
    -3,
    "",
    "a",
    "ab",
    "b",
    "abc",
    [],
    [1],
    ["a", 1],
    [None, None, None],
    {},
    {"a": 1},
    {"b": "x"},
    {"a": 1, "b": "x"},
    {"a": "x", "b": 2},
    {"a": 1, "b": 2, "cc": 3},
    {"cc": 1},
]

CASES: list[Schema] = [
    {"not": {}},
    {"not": False},
    {"type": ["integer", "null"], "not": {"type": "null"}},
    {"not": {"type": ["number", "string"]}},
    {"not": {"const": "ab"}},
    {"not": {"const": ""}},
    {"not": {"enum": ["a", "ab", "b", 1, 2.5, None, True]}},
    {"not": {"enum": [[], {}]}},
    {"type": "string", "not": {"enum": ["a", "abc"]}, "maxLength": 2},
    {"type": "integer", "not": {"minimum": 1}},
    {"type": "number", "not": {"exclusiveMinimum": 0, "maximum": 2}},
    {"not": {"minLength": 2}},
    {"not": {"maxLength": 1}},
    {"not": {"minItems": 1}},
    {"not": {"maxItems": 1}},
    {"not": {"minProperties": 1}},
    {"not": {"maxProperties": 0}},
    {"not": {"required": ["a", "b"]}},
    {"not": {"properties": {"a": {"type": "number"}}}},
    {"not": {"prefixItems": [{"type": "number"}, {"const": 1}]}},
    {"not": {"prefixItems": [{}, {}], "items": False}},
    {"not": {"anyOf": [{"type": "string"}, {"required": ["a"]}]}},
    {"not": {"allOf": [{"type": "string"}, {"minLength": 1}]}},
    {"not": {"not": {"type": "string"}}},
    {"not": {"$ref": "#/$defs/S"}, "$defs": {"S": {"type": "string"}}},
    {"if": {"type": "string"}, "then": {"minLength": 2}},
    {"if": {"type": "string"}, "else": {"const": 1}},
    {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"maxProperties": 1}},
    {"if": {"properties": {"a": {"const": 1}}}, "then": {"not": {"required": ["cc"]}}},
    {"if": {"type": "string"}},
    {"dependentRequired": {"a": ["b"]}},
    {"dependentRequired": {"a": [], "b": ["a"], "cc": ["a", "b"]}},
    {"dependentSchemas": {"a": {"properties": {"b": {"type": "string"}}}, "cc": False}},
    {"propertyNames": {"pattern": "^a"}},
    {"propertyNames": {"enum": ["a", "cc", 1]}},
    {"propertyNames": {"const": "a"}},
    {"propertyNames": {"maxLength": 1}},
    {"propertyNames": {"minLength": 2}},
    {"propertyNames": False},
    {"propertyNames": {"type": "integer"}},
    {"properties": {"cc": {"type": "integer"}}, "propertyNames": {"pattern": "^.$"}},
    {"properties": {"a": {}}, "unevaluatedProperties": False},
    {"properties": {"a": {}}, "unevaluatedProperties": {"type": "string"}},
    {"allOf": [{"properties": {"a": {}}}], "properties": {"b": {}}, "unevaluatedProperties": False},
    {
        "$ref": "#/$defs/A",
        "patternProperties": {"^c": {}},
        "unevaluatedProperties": False,
        "$defs": {"A": {"properties": {"b": {}}}},
    },
    {"properties": {"a": {}}, "unevaluatedProperties": {"not": {"type": "string"}}},
    {"allOf": [{"additionalProperties": True}], "unevaluatedProperties": False},
    {"allOf": [{"unevaluatedProperties": {"type": "integer"}}], "unevaluatedProperties": False},
    {"not": {"required": ["a"]}, "unevaluatedProperties": False},
    {"not": {"properties": {"a": {"type": "string"}}, "required": ["a"]}, "unevaluatedProperties": False},
    {"prefixItems": [{}], "unevaluatedItems": False},
    {"allOf": [{"prefixItems": [{}, {}]}], "prefixItems": [{}], "unevaluatedItems": {"type": "null"}},
    {"allOf": [{"items": True}], "unevaluatedItems": False},
    {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    {"oneOf": [{"type": "string"}, {"maxLength": 1}, {"const": "ab"}]},
    {"oneOf": [{"type": "number", "maximum": 2}, {"type": "number", "minimum": 1}]},
    {"oneOf": [{"const": 1}, {"type": "string"}, {"enum": [1.0, 2.5]}]},
    {"oneOf": [{"minProperties": 1}, {"type": "object", "required": ["a"]}], "anyOf": [{"maxItems": 1}]},
]


def texts(value: object) -> list[str]:
    """Return the value with its properties in every order."""
    if not isinstance(value, dict):
        return [json.dumps(value)]
    orders = itertools.permutations(value.items())
    return [json.dumps(dict(order), separators=(",", ":")) for order in orders]


@pytest.mark.parametrize("schema", CASES, ids=json.dumps)
def test_exactly_the_valid_values_are_allowed(schema: Schema) -> None:
    validator = Draft202012Validator(schema)
    if not any(map(validator.is_valid, VALUES)):
        with pytest.raises(GrammarError):
            of_schema(schema)
        return
    grammar = of_schema(schema)
    for value in VALUES:
        assert any(allows(grammar, text) for text in texts(value)) == validator.is_valid(value), value


def test_dependencies_of_old_drafts() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "dependencies": {"a": ["b"], "cc": {"required": ["a"]}},
    }
    grammar = of_schema(schema)
    for value in VALUES:
        expected = Draft7Validator(schema).is_valid(value)
        assert any(allows(grammar, text) for text in texts(value)) == expected, value


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"not": {"pattern": "a"}}, "not"),
        ({"not": {"type": "integer"}}, "not"),
        ({"not": {"multipleOf": 2}}, "not"),
        ({"not": {"const": [1]}}, "not"),
        ({"not": {"items": {"type": "string"}}}, "not"),
        ({"not": {"additionalProperties": False}}, "not"),
        ({"not": {"minimum": 2**60}}, "not"),
        ({"not": {"const": "x" * 2000}}, "not"),
        ({"not": {"$ref": "#/$defs/Loop"}}, "not"),
        ({"if": {"format": "date"}, "then": {"minLength": 1}}, "if"),
        ({"propertyNames": {"minLength": 1, "pattern": "^.$"}}, "propertyNames"),
        ({"propertyNames": {"anyOf": [{"const": "a"}, {"const": "b"}]}}, "propertyNames"),
        (
            {"anyOf": [{"properties": {"a": True}}, {}], "unevaluatedProperties": False},
            "unevaluatedProperties",
        ),
        ({"if": {"prefixItems": [True]}, "unevaluatedItems": False}, "unevaluatedItems"),
        ({"contains": {"prefixItems": [True]}, "unevaluatedItems": False}, "contains"),
        ({"dependencies": {"a": []}, "dependentRequired": {"a": []}}, "dependencies"),
        ({"dependencies": {"a": 1}}, "dependencies"),
        ({"dependentRequired": {"a": "b"}}, "dependentRequired"),
        ({"type": "null", "not": {"type": "null"}}, "not"),
        ({"oneOf": [{"const": 1}, {"const": 1.0}]}, "oneOf"),
    ],
    ids=json.dumps,
)
def test_what_cannot_be_said_exactly_is_refused_where_it_stands(schema: Schema, keyword: str) -> None:
    loop = {"Loop": {"anyOf": [{"type": "null"}, {"prefixItems": [{"$ref": "#/$defs/Loop"}]}]}}
    with pytest.raises(GrammarError) as caught:
        of_schema({**schema, "$defs": loop})
    assert (caught.value.keyword, caught.value.path) == (keyword, "#")
    nested = {"type": "object", "properties": {"v": schema}, "required": ["v"], "$defs": loop}
    with pytest.raises(GrammarError) as caught:
        of_schema(nested)
    assert (caught.value.keyword, caught.value.path) == (keyword, "#/properties/v")


def test_exclusions_of_exclusions_are_bounded() -> None:
    doubled = {
        f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(20)
    }
    with pytest.raises(GrammarError, match="too much is excluded"):
        of_schema({"not": {"$ref": "#/$defs/d0"}, "$defs": {**doubled, "d20": {"type": "null"}}})
    nested: Schema = {"type": "null"}
    for _ in range(5):
        nested = {"if": {"if": nested, "then": {"const": 1}}, "then": {"if": nested, "else": {"const": 2}}}
    with pytest.raises(GrammarError, match="more than 4096 parts"):
        of_schema(nested)


def test_anchors_name_parts_of_the_document() -> None:
    for named in ({"$anchor": "n"}, {"$dynamicAnchor": "n"}, {"$id": "#n"}):
        schema = {"$ref": "#n", "$defs": {"N": {**named, "type": "null"}, "M": {"const": {"$anchor": "n"}}}}
        assert allows(of_schema(schema), "null")
        assert not allows(of_schema(schema), "1")
    with pytest.raises(GrammarError, match="more than once") as caught:
        of_schema({"$ref": "#n", "$defs": {"A": {"$anchor": "n"}, "B": {"$anchor": "n"}}})
    assert caught.value.keyword == "$ref"


PARTS = st.sampled_from(
    [
        {"type": "string"},
        {"type": ["number", "null"]},
        {"const": "a"},
        {"enum": [1, "b", None]},
        {"minimum": 1},
        {"exclusiveMaximum": 2},
        {"minLength": 2},
        {"maxItems": 1},
        {"required": ["a"]},
        {"properties": {"a": {"type": "integer"}}},
        {"dependentRequired": {"a": ["b"]}},
        {"propertyNames": {"maxLength": 1}},
    ]
)


def combined(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    pairs = st.lists(inner, min_size=1, max_size=3)
    return (
        inner.map(lambda part: {"not": part})
        | pairs.map(lambda parts: {"anyOf": parts})
        | pairs.map(lambda parts: {"allOf": parts})
        | pairs.map(lambda parts: {"oneOf": parts})
        | pairs.map(lambda parts: dict(zip(("if", "then", "else"), parts, strict=False)))
    )


@settings(max_examples=40)
@given(st.recursive(PARTS, combined, max_leaves=5), st.integers(0, 2**32))
def test_combinations_decide_as_a_validator_does(schema: Schema, seed: int) -> None:
    validator = Draft202012Validator(schema)
    try:
        grammar = of_schema(schema)
    except GrammarError as error:
        assume(error.keyword)
        return
    for value in VALUES:
        if any(allows(grammar, text) for text in texts(value)):
            assert validator.is_valid(value), value
    assert validator.is_valid(json.loads(generate(grammar, seed, wander=5)))
