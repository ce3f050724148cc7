"""Schemas that broke other servers."""

from typing import Any

import pytest

from ferrite.grammar import GrammarError
from tests.grammar.support import allows, follows, generate, of_schema, spelt

Schema = dict[str, Any]


def nested(levels: int, inner: Schema) -> Schema:
    for _ in range(levels):
        inner = {"type": "array", "items": inner}
    return inner


def test_definitions_refer_to_each_other_and_are_used_twice() -> None:
    schema = {
        "$defs": {
            "Order": {
                "type": "object",
                "properties": {
                    "first": {"$ref": "#/$defs/Line"},
                    "rest": {"type": "array", "items": {"$ref": "#/$defs/Line"}},
                },
                "required": ["first", "rest"],
                "additionalProperties": False,
            },
            "Line": {
                "type": "object",
                "properties": {"unit": {"$ref": "#/$defs/Unit"}},
                "required": ["unit"],
                "additionalProperties": False,
            },
            "Unit": {"enum": ["kg", "m"], "title": "Unit", "type": "string"},
        },
        "$ref": "#/$defs/Order",
    }
    grammar = of_schema(schema)
    assert allows(grammar, '{"first":{"unit":"kg"},"rest":[{"unit":"m"},{"unit":"kg"}]}')
    assert not follows(grammar, spelt('{"first":{"unit":"l'))


def test_this_or_null_needs_no_type_outside() -> None:
    unit = {"anyOf": [{"enum": ["c", "f"], "type": "string"}, {"type": "null"}]}
    grammar = of_schema({"type": "object", "properties": {"u": unit}, "required": ["u"]})
    assert allows(grammar, '{"u":null}')
    assert allows(grammar, '{"u":"f"}')
    assert not allows(grammar, '{"u":"x"}')


def test_a_tree_by_a_reference_into_an_array() -> None:
    node = {
        "type": "object",
        "properties": {
            "v": {"type": "integer"},
            "kids": {"type": "array", "items": {"$ref": "#/properties/t/anyOf/1"}},
        },
        "required": ["v", "kids"],
        "additionalProperties": False,
    }
    schema = {"type": "object", "properties": {"t": {"anyOf": [{"type": "null"}, node]}}, "required": ["t"]}
    grammar = of_schema(schema)
    assert allows(grammar, '{"t":{"v":1,"kids":[{"v":2,"kids":[]},{"v":3,"kids":[{"v":4,"kids":[]}]}]}}')
    assert not allows(grammar, '{"t":{"v":1,"kids":[null]}}')
    for seed in range(10):
        generate(grammar, seed)


def test_a_pattern_deep_in_arrays_is_the_pattern_at_the_top() -> None:
    ids = {"type": "array", "maxItems": 100, "items": {"type": "string", "pattern": "^(\\d+|id:[a-z-]+)$"}}
    for schema, before, behind in (
        ({"type": "object", "properties": {"ids": ids}, "required": ["ids"]}, '{"ids":', "}"),
        (nested(20, ids), "[" * 20, "]" * 20),
    ):
        grammar = of_schema(schema)
        assert allows(grammar, f'{before}["12","id:a-b"]{behind}')
        assert not follows(grammar, spelt(f'{before}["id:A'))


def test_an_escape_without_meaning_is_the_character() -> None:
    grammar = of_schema(
        {"type": "object", "properties": {"v": {"type": "string", "pattern": "^a\\!b$"}}, "required": ["v"]}
    )
    assert allows(grammar, '{"v":"a!b"}')
    assert not allows(grammar, '{"v":"a\\\\!b"}')


def test_a_long_nested_text_keeps_its_limit() -> None:
    inner = {"type": "object", "properties": {"v": {"type": "string", "maxLength": 2000}}, "required": ["v"]}
    grammar = of_schema(nested(3, inner))
    assert allows(grammar, '[[[{"v":"' + "é" * 2000 + '"}]]]')
    assert not follows(grammar, spelt('[[[{"v":"' + "é" * 2001))
    assert allows(of_schema({"type": "string", "maxLength": 10_000_000}), '"' + "a" * 3000 + '"')


@pytest.mark.parametrize("levels", [65, 20_000])
def test_deep_nesting_is_refused_at_once(levels: int) -> None:
    assert follows(of_schema(nested(64, {"type": "integer"})), spelt("[" * 64 + "1"))
    schema = nested(levels, {"type": "integer"})
    with pytest.raises(GrammarError, match="nested deeper than 64 levels"):
        of_schema(schema)
    while "items" in schema:  # what is 20,000 levels deep is not freed by recursion
        schema = schema.pop("items")


HEAVY: list[tuple[Schema, str | None]] = [
    ({"allOf": [{"anyOf": [{"required": [f"a{n}"]}, {"required": [f"b{n}"]}]} for n in range(14)]}, "allOf"),
    ({"allOf": [{"type": "string", "pattern": f"[a-z].{{{n},20}}[0-9]"} for n in range(20)]}, "allOf"),
    ({"type": "string", "pattern": "^((a{1,100}){1,100}){1,100}$"}, None),
    ({"type": "string", "pattern": "(a|b)*a(a|b){20}"}, None),
    ({"type": "array", "minItems": 100_000, "items": {"type": "array", "maxItems": 1000}}, None),
    ({"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(500)}}, None),
    ({"enum": [f"value {n}" for n in range(3000)]}, None),
    (
        {"properties": {f"p{n}": {"pattern": "[a-z].*[0-9].*x", "minLength": n} for n in range(99)}},
        "minLength",
    ),
]


@pytest.mark.parametrize(("schema", "keyword"), HEAVY)
def test_a_schema_made_to_be_slow_is_compiled_or_refused(schema: Schema, keyword: str | None) -> None:
    if keyword is None:
        of_schema(schema)
        return
    with pytest.raises(GrammarError) as caught:
        of_schema(schema)
    assert caught.value.keyword == keyword
