"""Recursive schemas: how deep they lead, and which of them have a finite value."""

from collections.abc import Iterator

from ferrite.grammar.errors import GrammarError
from ferrite.grammar.keywords import TYPES
from ferrite.grammar.limits import MAX_COMPILER_LEVELS
from ferrite.grammar.reader import Node
from ferrite.grammar.schema import CheckedSchema, subschemas

Types = frozenset[str]
ALL_TYPES: Types = frozenset(TYPES)


def check_depth(schema: CheckedSchema) -> None:
    """Raise ``GrammarError`` when the compiler, which follows references as it meets them, gets too deep."""
    seen: set[int] = set()
    stack = [iter([schema.root])]
    while stack:
        node = next(stack[-1], None)
        if node is None:
            stack.pop()
            continue
        stack.append(_met(schema, node, seen))
        if len(stack) > MAX_COMPILER_LEVELS:
            raise GrammarError(
                f"the references lead deeper than {MAX_COMPILER_LEVELS} levels",
                keyword="$ref",
                path=schema.path(node),
            )


def _met(schema: CheckedSchema, node: Node, seen: set[int]) -> Iterator[Node]:
    yield from subschemas(node)
    target = schema.target(node)
    if target is not None and id(target) not in seen:
        seen.add(id(target))
        yield target


def cut_endless(schema: CheckedSchema) -> None:
    """Turn every reference to a schema without a finite value into a schema without values.

    Otherwise a model could begin what it can never end. Raises ``GrammarError`` when nothing else is left.
    """
    finite = _finite_definitions(schema)
    dead: list[Node] = []
    for node in schema.nodes():
        reference = node.get("$ref")
        if isinstance(reference, str) and reference not in finite:
            dead.append(node)
    if not dead:
        return
    if not _is_finite(schema.root, finite, ALL_TYPES):
        raise GrammarError("the recursion never ends", keyword="$ref", path=schema.path(dead[0]))
    for node in dead:
        node.clear()
        node["enum"] = []


def _finite_definitions(schema: CheckedSchema) -> set[str]:
    """Return the references that have a finite value: the least fixed point, inner definitions first."""
    finite: set[str] = set()
    waiting = dict(reversed(schema.definitions.items()))
    grew = True
    while grew:
        grew = False
        for name, node in list(waiting.items()):
            if _is_finite(node, finite, ALL_TYPES):
                finite.add(f"#/$defs/{name}")
                del waiting[name]
                grew = True
    return finite


def _is_finite(node: Node, finite: set[str], types: Types) -> bool:
    """Whether a value of one of ``types`` needs no endless one; contradictions are not looked for."""
    if "const" in node or "enum" in node:
        return True
    if "$ref" in node and node["$ref"] not in finite:
        return False
    named = node.get("type", types)
    types = types & frozenset([named] if isinstance(named, str) else named)  # type: ignore[call-overload]
    if not all(_is_finite(part, finite, types) for part in _list(node, "allOf")):
        return False
    for keyword in ("anyOf", "oneOf"):
        options = _list(node, keyword)
        if options and not any(_is_finite(option, finite, types) for option in options):
            return False
    if types - {"array", "object"}:
        return True
    return ("array" in types and _array_is_finite(node, finite)) or (
        "object" in types and _object_is_finite(node, finite)
    )


def _array_is_finite(node: Node, finite: set[str]) -> bool:
    count = node.get("minItems", 0)
    assert isinstance(count, int)
    prefix = _list(node, "prefixItems")
    needed = prefix[:count]
    items = node.get("items")
    if count > len(prefix) and isinstance(items, dict):
        needed = [*needed, items]
    return all(_is_finite(item, finite, ALL_TYPES) for item in needed)


def _object_is_finite(node: Node, finite: set[str]) -> bool:
    properties = node.get("properties", {})
    rest = node.get("additionalProperties", {})
    required = node.get("required", [])
    assert isinstance(properties, dict)
    assert isinstance(required, list)
    return all(_is_finite(properties.get(name, rest), finite, ALL_TYPES) for name in required)


def _list(node: Node, keyword: str) -> list[Node]:
    value = node.get(keyword, [])
    assert isinstance(value, list)
    return value
