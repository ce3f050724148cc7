"""Recursion that can end is followed; what cannot is never begun."""

from typing import Any

import pytest

from ferrite.grammar import GrammarError
from tests.grammar.support import allows, follows, generate, of_schema, spelt

Schema = dict[str, Any]
ENDLESS: list[tuple[Schema, str]] = [
    ({"$ref": "#"}, "#"),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "#/properties/a"),
    ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "#/items"),
    ({"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 1}, "#/prefixItems/0"),
    ({"type": "object", "additionalProperties": {"$ref": "#"}, "required": ["a"]}, "#/additionalProperties"),
    ({"anyOf": [{"$ref": "#"}, {"$ref": "#/anyOf/0"}]}, "#/anyOf/0"),
    (
        {"type": "object", "allOf": [{"properties": {"a": {"$ref": "#"}}, "required": ["a"]}]},
        "#/allOf/0/properties/a",
    ),
]


@pytest.mark.parametrize(("schema", "path"), ENDLESS)
def test_recursion_without_end_is_refused(schema: Schema, path: str) -> None:
    with pytest.raises(GrammarError, match="never ends") as caught:
        of_schema(schema)
    assert (caught.value.keyword, caught.value.path) == ("$ref", path)


def test_an_optional_part_without_end_is_not_begun() -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"$ref": "#/$defs/N"}, "k": {"type": "integer"}},
        "required": ["k"],
        "additionalProperties": False,
        "$defs": {"N": {"type": "array", "items": {"$ref": "#/$defs/N"}, "minItems": 1}},
    }
    assert allows(of_schema(schema), '{"k":1}')
    assert not follows(of_schema(schema), spelt('{"n'))


def test_recursion_that_can_end_is_followed() -> None:
    schema = {
        "type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["next"],
    }
    grammar = of_schema(schema)
    assert allows(grammar, '{"next":{"next":{"next":null}}}')
    assert not allows(grammar, '{"next":{}}')
    for seed in range(20):
        generate(grammar, seed)
