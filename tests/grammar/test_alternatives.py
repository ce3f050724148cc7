"""oneOf is enforced where its alternatives can be told apart, and refused elsewhere."""

from typing import Any

import pytest

from ferrite.grammar import GrammarError
from tests.grammar.support import allows, of_schema

CIRCLE = {
    "type": "object",
    "properties": {"kind": {"const": "circle"}, "r": {"type": "number"}},
    "required": ["kind", "r"],
}
GROUP = {
    "type": "object",
    "properties": {
        "kind": {"type": "string", "enum": ["group", "set"]},
        "parts": {
            "type": "array",
            "items": {"oneOf": [{"$ref": "#/$defs/Circle"}, {"$ref": "#/$defs/Group"}]},
        },
    },
    "required": ["kind"],
}
DISTINCT: list[list[Any]] = [
    [{"type": "integer"}, {"type": "string"}],
    [{"const": 1}, {"const": 2}, {"enum": [3, "a"]}],
    [{"type": "null"}, {"$ref": "#/$defs/Circle"}],
    [{"$ref": "#/$defs/Circle"}, {"$ref": "#/$defs/Group"}],
    [{"allOf": [{"$ref": "#/$defs/Circle"}]}, {"anyOf": [{"$ref": "#/$defs/Group"}, {"type": "array"}]}],
]
OVERLAPPING: list[list[Any]] = [
    [{"type": "integer"}, {"type": "number"}],
    [{"type": "string", "pattern": "a"}, {"type": "string", "pattern": "b"}],
    [{"$ref": "#/$defs/Circle"}, {"type": "object", "additionalProperties": False}],
    [{"items": {"type": "string"}}, {"items": {"type": "null"}}],
    [{"$ref": "#/$defs/Loop"}, {"type": "string"}],
]
DEFINITIONS = {
    "Circle": CIRCLE,
    "Group": GROUP,
    "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, {"type": "string"}]},
}


@pytest.mark.parametrize("options", DISTINCT)
def test_alternatives_that_differ_are_enforced(options: list[Any]) -> None:
    of_schema({"oneOf": options, "$defs": DEFINITIONS})


@pytest.mark.parametrize("options", OVERLAPPING)
def test_alternatives_that_may_overlap_are_refused(options: list[Any]) -> None:
    with pytest.raises(GrammarError) as caught:
        of_schema({"type": "object", "properties": {"v": {"oneOf": options}}, "$defs": DEFINITIONS})
    assert (caught.value.keyword, caught.value.path) == ("oneOf", "#/properties/v")


def test_a_recursive_union_of_tagged_objects() -> None:
    grammar = of_schema(
        {"oneOf": [{"$ref": "#/$defs/Circle"}, {"$ref": "#/$defs/Group"}], "$defs": DEFINITIONS}
    )
    assert allows(grammar, '{"kind":"group","parts":[{"kind":"circle","r":2},{"kind":"set"}]}')
    assert not allows(grammar, '{"kind":"group","parts":[{"kind":"circle"}]}')
