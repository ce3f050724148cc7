"""Whatever tokens are chosen within the masks, what comes out is JSON that its schema allows."""

import json
from typing import Any

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from ferrite.grammar import Grammar, GrammarError
from tests.grammar.support import generate, of_schema

Schema = dict[str, Any]
NAMES = ["a", "b", "c d", "é", 'q"', "x/y", "$ref", "type"]
SCALARS = (
    st.none() | st.booleans() | st.integers(-99, 99) | st.sampled_from([1.5, -0.25]) | st.sampled_from(NAMES)
)


def bounds(low: str, high: str, most: int) -> st.SearchStrategy[Schema]:
    """Two limits that fit each other, each perhaps missing."""
    pairs = st.tuples(st.integers(0, most), st.integers(0, most)).map(sorted)
    both = pairs.map(lambda pair: {low: pair[0], high: pair[1]})
    kept = st.sampled_from([[], [low], [high], [low, high]])
    return st.tuples(both, kept).map(lambda drawn: {keyword: drawn[0][keyword] for keyword in drawn[1]})


def joined(*parts: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.tuples(*parts).map(lambda found: {key: value for part in found for key, value in part.items()})


def optional(keyword: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    return st.just({}) | values.map(lambda value: {keyword: value})


STRINGS = joined(st.just({"type": "string"}), bounds("minLength", "maxLength", 6))
PATTERNS = st.sampled_from(
    [
        {"type": "string", "pattern": "^[a-z]+$"},
        {"type": "string", "pattern": "^(\\d{2}|id:[a-z-]+)$", "maxLength": 12},
        {"type": "string", "format": "date"},
        {"type": "string", "format": "uuid"},
    ]
)
NUMBERS = joined(
    st.sampled_from([{"type": "integer"}, {"type": "number"}]),
    bounds("minimum", "maximum", 50),
    optional("multipleOf", st.just(1)),
)
LEAVES = (
    STRINGS
    | PATTERNS
    | NUMBERS
    | st.sampled_from(
        [{"type": "null"}, {"type": "boolean"}, {"type": ["string", "null"]}, {"$ref": "#/$defs/Tree"}]
    )
    | st.lists(SCALARS, min_size=1, max_size=4).map(lambda values: {"enum": values})
    | SCALARS.map(lambda value: {"const": value})
)
TREE: Schema = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/Tree"}, {"type": "null"}]}},
    "required": ["next"],
    "additionalProperties": False,
}


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    properties = draw(st.dictionaries(st.sampled_from(NAMES), inner, max_size=4))
    required = draw(st.sets(st.sampled_from(sorted(properties)))) if properties else set()
    rest = draw(st.just({"additionalProperties": False}) | optional("additionalProperties", inner))
    return {"type": "object", "properties": properties, "required": sorted(required), **rest}


def arrays(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    prefix = optional("prefixItems", st.lists(inner, min_size=1, max_size=3))
    return joined(
        st.just({"type": "array"}),
        inner.map(lambda items: {"items": items}),
        prefix,
        bounds("minItems", "maxItems", 4),
    )


def unions(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    options = st.lists(inner, min_size=1, max_size=3)
    return options.map(lambda found: {"anyOf": found}) | inner.map(lambda found: {"allOf": [found, {}]})


SCHEMAS = st.recursive(LEAVES, lambda inner: objects(inner) | arrays(inner) | unions(inner), max_leaves=8)


def compiled(schema: Schema) -> Grammar | None:
    """Compile, or return None for what the library refuses: alternatives or bounds that leave nothing."""
    try:
        return of_schema(schema)
    except GrammarError as error:
        if not error.keyword:
            raise
        return None


@settings(max_examples=100)
@given(SCHEMAS, st.integers(0, 2**32), st.sampled_from([0, 8, 60]))
@example({"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1}, 1, 20)
@example(
    {"type": "object", "patternProperties": {"^a": {"type": "integer"}}, "additionalProperties": False}, 2, 30
)
def test_what_is_generated_validates(schema: Schema, seed: int, wander: int) -> None:
    schema = {**schema, "$defs": {"Tree": TREE}}
    Draft202012Validator.check_schema(schema)
    grammar = compiled(schema)
    assume(grammar is not None)
    assert grammar is not None
    text = generate(grammar, seed, wander=wander)
    Draft202012Validator(schema).validate(json.loads(text))
