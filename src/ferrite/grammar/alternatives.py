"""``oneOf`` as ``anyOf``, where no value can match two of the alternatives."""

import json
from itertools import combinations

from ferrite.grammar.keywords import TYPES
from ferrite.grammar.reader import Node
from ferrite.grammar.schema import CheckedSchema

MAX_DEPTH = 16
"""Schemas looked into for a difference"""


def join_alternatives(schema: CheckedSchema) -> None:
    """Write ``oneOf`` as ``anyOf`` wherever the alternatives can be told apart.

    The compiler only sees differences that are not behind a reference, as pydantic's alternatives are.
    """
    for node in list(schema.nodes()):
        options = node.get("oneOf")
        if not isinstance(options, list) or "anyOf" in node:
            continue
        if all(_differ(schema, left, right, MAX_DEPTH) for left, right in combinations(options, 2)):
            rewritten = {"anyOf" if keyword == "oneOf" else keyword: value for keyword, value in node.items()}
            node.clear()
            node.update(rewritten)


def _differ(schema: CheckedSchema, left: Node, right: Node, depth: int) -> bool:
    """Whether no value can match both; False when that cannot be seen."""
    if depth == 0:
        return False
    return any(
        _parts_differ(schema, a, b, depth - 1) for a in _parts(schema, left) for b in _parts(schema, right)
    )


def _parts(schema: CheckedSchema, node: Node) -> list[Node]:
    """Return the schemas that a value of ``node`` must match all of."""
    found: dict[int, Node] = {}
    waiting = [node]
    while waiting:
        part = waiting.pop()
        if id(part) in found:
            continue
        found[id(part)] = part
        target = schema.target(part)
        waiting += [] if target is None else [target]
        waiting += _list(part, "allOf")
    return list(found.values())


def _parts_differ(schema: CheckedSchema, left: Node, right: Node, depth: int) -> bool:
    for one, other in ((left, right), (right, left)):
        for keyword in ("anyOf", "oneOf"):
            options = _list(one, keyword)
            if options and all(_differ(schema, option, other, depth) for option in options):
                return True
    left_types, right_types = _types(left), _types(right)
    if not left_types & right_types:
        return True
    left_values, right_values = _values(left), _values(right)
    if left_values is not None and right_values is not None and not left_values & right_values:
        return True
    if left_types & right_types != {"object"}:
        return False
    return any(
        _differ(schema, a, b, depth)
        for name in {*_names(left), *_names(right)}
        if (a := _property(left, name)) is not None and (b := _property(right, name)) is not None
    )


def _types(node: Node) -> frozenset[str]:
    """Return the types a value may have, whole numbers apart from other ones."""
    named = node.get("type", TYPES)
    types = set([named] if isinstance(named, str) else named)  # type: ignore[call-overload]
    if "const" in node or "enum" in node:
        listed = node.get("enum", [node.get("const")])
        assert isinstance(listed, list)
        types &= {name for value in listed for name in _types_of(value)}
    if "number" in types:
        types.add("integer")
    return frozenset(types)


def _types_of(value: object) -> tuple[str, ...]:
    match value:
        case None:
            return ("null",)
        case bool():
            return ("boolean",)
        case int() | float():
            return ("integer", "number")
        case str():
            return ("string",)
        case list():
            return ("array",)
        case _:
            return ("object",)


def _values(node: Node) -> set[str] | None:
    if "const" not in node and "enum" not in node:
        return None
    listed = node.get("enum", [node.get("const")])
    assert isinstance(listed, list)
    return {json.dumps(_unified(value), sort_keys=True) for value in listed}


def _unified(value: object) -> object:
    """Return the value with equal numbers alike: 1 and 1.0."""
    match value:
        case list():
            return [_unified(item) for item in value]
        case dict():
            return {name: _unified(item) for name, item in value.items()}
        case float():
            return int(value) if value.is_integer() else value
        case _:
            return value


def _names(node: Node) -> list[str]:
    required = node.get("required", [])
    assert isinstance(required, list)
    return required


def _property(node: Node, name: str) -> Node | None:
    properties = node.get("properties", {})
    assert isinstance(properties, dict)
    found = properties.get(name)
    return found if isinstance(found, dict) else None


def _list(node: Node, keyword: str) -> list[Node]:
    value = node.get(keyword, [])
    assert isinstance(value, list)
    return value
