"""What a schema may have; what it may not is named, with its place."""

import json
from typing import Any

import pytest

from ferrite.grammar import GrammarError
from ferrite.grammar.limits import MAX_PATTERN_CHARS, MAX_PATTERNS, MAX_PROPERTIES, MAX_SCHEMA_NODES
from tests.grammar.support import allows, of_schema

Schema = dict[str, Any]


def inside(schema: object) -> Schema:
    return {"type": "object", "properties": {"v": schema}, "required": ["v"], "additionalProperties": False}


def refusal(schema: Schema, *, strict: bool = True) -> GrammarError:
    with pytest.raises(GrammarError) as caught:
        of_schema(schema, strict=strict)
    assert "\n" not in str(caught.value)
    return caught.value


UNSUPPORTED: list[tuple[str, object]] = [
    ("contains", {"type": "string"}),
    ("uniqueItems", True),
    ("$dynamicRef", "#x"),
    ("nullable", True),
    ("x-guidance", {"lenient": True}),
    ("minimun", 3),
]


@pytest.mark.parametrize(("keyword", "value"), UNSUPPORTED)
@pytest.mark.parametrize("strict", [True, False])
def test_a_keyword_that_is_not_enforced_is_refused_at_the_root_and_nested(
    keyword: str, value: object, strict: bool
) -> None:
    schema = {keyword: value}
    error = refusal(schema, strict=strict)
    assert (error.keyword, error.path) == (keyword, "#")
    error = refusal(inside({"type": "array", "items": {"anyOf": [{"type": "null"}, schema]}}), strict=strict)
    assert (error.keyword, error.path) == (keyword, "#/properties/v/items/anyOf/1")
    assert str(error) == f"{keyword} at #/properties/v/items/anyOf/1: the keyword is not supported"


BAD_VALUES: list[tuple[str, object]] = [
    ("type", "text"),
    ("type", []),
    ("type", 3),
    ("enum", []),
    ("enum", "a"),
    ("enum", [2**60]),
    ("anyOf", []),
    ("anyOf", {"type": "string"}),
    ("allOf", ["string"]),
    ("properties", ["a"]),
    ("properties", {"a": 3}),
    ("required", "a"),
    ("required", [1]),
    ("additionalProperties", "no"),
    ("items", 3),
    ("minItems", -1),
    ("maxItems", 1.5),
    ("minLength", True),
    ("maxLength", "3"),
    ("pattern", 3),
    ("format", []),
    ("minimum", "3"),
    ("exclusiveMaximum", None),
    ("multipleOf", 0),
    ("minimum", 10**400),
    ("$ref", {"a": "b"}),
]


@pytest.mark.parametrize(("keyword", "value"), BAD_VALUES)
def test_a_keyword_with_a_wrong_value_is_refused(keyword: str, value: object) -> None:
    error = refusal(inside({keyword: value}))
    assert (error.keyword, error.path) == (keyword, "#/properties/v")


CONTRADICTIONS: list[tuple[Schema, str]] = [
    ({"type": "string", "minLength": 5, "maxLength": 3}, "maxLength"),
    ({"type": "number", "minimum": 5, "maximum": 3}, "maximum"),
    ({"type": "array", "minItems": 4, "maxItems": 3}, "maxItems"),
    ({"type": "string", "enum": [1, 2]}, "enum"),
    ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "allOf"),
    ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "required"),
    ({"type": "object", "properties": {}, "additionalProperties": False, "required": ["a"]}, "required"),
    ({"type": "object", "patternProperties": {"a": True, "b": True}}, "patternProperties"),
    ({"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 2}]}, "oneOf"),
    ({"type": "object", "properties": {"a": True, "b": True}, "maxProperties": 1}, "maxProperties"),
    ({"type": "string", "pattern": "^(a"}, "pattern"),
]


@pytest.mark.parametrize(("schema", "keyword"), CONTRADICTIONS)
def test_a_contradiction_is_found_where_it_stands(schema: Schema, keyword: str) -> None:
    error = refusal(schema)
    assert (error.keyword, error.path) == (keyword, "#")
    deep = inside({"type": "array", "minItems": 1, "items": inside(schema)})
    error = refusal(deep)
    assert (error.keyword, error.path) == (keyword, "#/properties/v/items/properties/v")
    named = {"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": deep}}
    assert refusal(named).path == "#/$defs/a~1b c/properties/v/items/properties/v"


REFERENCES = [
    "#/$defs/missing",
    "#/$defs/A/required/0",
    "#/properties/v/anyOf/9",
    "http://a.example/b",
    "b.json#/c",
    "#A",
]


@pytest.mark.parametrize("reference", REFERENCES)
def test_a_reference_that_leads_nowhere_is_quoted(reference: str) -> None:
    error = refusal({**inside({"anyOf": [{"$ref": reference}]}), "$defs": {"A": {"required": ["a"]}}})
    assert (error.keyword, error.path) == ("$ref", "#/properties/v/anyOf/0")
    assert repr(reference) in str(error)


def test_definitions_nobody_refers_to_are_not_looked_at() -> None:
    assert allows(
        of_schema({"type": "null", "$defs": {"A": {"contains": {}}, "B": {"$ref": "#/nowhere"}}}), "null"
    )


def test_annotations_and_neutral_values_say_nothing() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://a.example/b",
        "title": "T",
        "description": "d",
        "default": {"$ref": "#/nowhere"},
        "examples": [{"contains": {}}],
        "deprecated": True,
        "x-order": 3,
        "uniqueItems": False,
        "nullable": False,
        "discriminator": {"propertyName": "a"},
        "if": {"type": "string"},
        "type": "boolean",
    }
    assert allows(of_schema(schema), "true")
    assert not allows(of_schema(schema), "1")


def test_a_reference_by_the_schemas_own_name_stays_inside() -> None:
    schema = {
        "$id": "https://a.example/b",
        "$ref": "https://a.example/b#/$defs/A",
        "$defs": {"A": {"const": 7}},
    }
    assert allows(of_schema(schema), "7")


def test_beside_a_reference_nothing_counts_in_old_drafts_and_everything_since() -> None:
    schema = {
        "$ref": "#/definitions/A",
        "maximum": 5,
        "definitions": {"A": {"type": "integer", "minimum": 3}},
    }
    assert not allows(of_schema(schema), "6")
    old = {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
    assert allows(of_schema(old), "6")
    assert not allows(of_schema(old), "2")


def test_old_forms_of_items_and_of_exclusive_bounds() -> None:
    pair = {"type": "array", "items": [{"type": "integer"}, {"type": "null"}], "additionalItems": False}
    assert allows(of_schema(pair), "[1,null]")
    assert not allows(of_schema(pair), "[1,null,2]")
    above = {"type": "integer", "minimum": 3, "exclusiveMinimum": True}
    assert allows(of_schema(above), "4")
    assert not allows(of_schema(above), "3")


def test_whole_numbers_up_to_64_bits_bound_exactly() -> None:
    schema = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
    assert allows(of_schema(schema), str(10 - 2**53))
    for beyond in (2**63, 2**63 + 1, -(2**63) - 1):
        assert not allows(of_schema(schema), str(beyond))
    assert not allows(of_schema({"type": "integer", "maximum": 2**53 + 1}), str(2**53 + 2))


def test_strict_refuses_a_format_that_is_only_an_annotation() -> None:
    schema = inside({"type": "string", "format": "binary"})
    assert refusal(schema).keyword == "format"
    assert allows(of_schema(schema, strict=False), '{"v":"x"}')
    number = inside({"type": "integer", "format": "int64"})
    assert allows(of_schema(number), '{"v":1}')
    for strict in (True, False):
        date = of_schema(inside({"type": "string", "format": "date"}), strict=strict)
        assert allows(date, '{"v":"2024-02-29"}')
        assert not allows(date, '{"v":"tomorrow"}')


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "string", "pattern": "a" * (MAX_PATTERN_CHARS + 1)}, "pattern"),
        ({"type": "string", "minLength": 10_000_000}, "minLength"),
        ({"type": "integer", "multipleOf": 999_983}, "multipleOf"),
        (
            {"type": "object", "properties": dict.fromkeys(map(str, range(MAX_PROPERTIES + 1)), True)},
            "properties",
        ),
        ({"anyOf": [{"pattern": f"a{n}"} for n in range(MAX_PATTERNS + 1)]}, "pattern"),
        ({"type": "object", "minProperties": 2}, "minProperties"),
        ({"const": json.loads("[" * 70 + "]" * 70)}, "const"),
    ],
)
def test_limits_are_named(schema: Schema, keyword: str) -> None:
    assert refusal(schema).keyword == keyword


def test_the_whole_schema_has_limits() -> None:
    assert "65536" in str(refusal({"description": "x" * 66_000}))
    assert str(MAX_SCHEMA_NODES) in str(refusal({"prefixItems": [True] * (MAX_SCHEMA_NODES + 1)}))
    assert "JSON cannot have" in str(refusal({"const": float("nan")}))
    assert "JSON cannot have" in str(refusal({"const": "\ud800"}))


def test_large_upper_limits_bound_nothing() -> None:
    assert allows(of_schema({"type": "string", "maxLength": 10_000_000}), '"abc"')
    assert allows(of_schema({"type": "array", "maxItems": 10**12}), "[1,2]")


def test_a_long_chain_of_references_is_followed_up_to_a_limit() -> None:
    def chain(length: int) -> Schema:
        links = {
            f"d{n}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{n + 1}"}}}
            for n in range(length)
        }
        return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{length}": {"type": "integer"}}}

    assert allows(of_schema(chain(150)), "{}")
    error = refusal(chain(600))
    assert error.keyword == "$ref"
    assert "512" in str(error)
