"""What a schema always evaluates, for ``unevaluatedProperties`` and ``unevaluatedItems``."""

from collections.abc import Callable

from ferrite.grammar.negation import NotNegatableError
from ferrite.grammar.reader import Node
from ferrite.grammar.schema import CheckedSchema

Closing = Callable[[Node], Node]
"""From what the rest must be to a schema that says so"""

OPTIONAL = ("anyOf", "oneOf", "if", "then", "else", "dependentSchemas", "contains")
"""Keywords that evaluate something for some values only"""


def evaluated_properties(schema: CheckedSchema, node: Node) -> Closing | None:
    """Return how to say what other properties must be; None when there are no others.

    Raises ``NotNegatableError`` where that depends on the value.
    """
    names: dict[str, Node] = {}
    patterns: dict[str, Node] = {}
    for part in _always(schema, node, ("properties", "patternProperties", "additionalProperties")):
        if "additionalProperties" in part or (part is not node and "unevaluatedProperties" in part):
            return None
        for keyword, found in (("properties", names), ("patternProperties", patterns)):
            value = part.get(keyword, {})
            assert isinstance(value, dict)
            found.update({name: {} for name in value})
    return lambda rest: {"properties": names, "patternProperties": patterns, "additionalProperties": rest}


def evaluated_items(schema: CheckedSchema, node: Node) -> Closing | None:
    """Return how to say what other items must be; as ``evaluated_properties``."""
    count = 0
    for part in _always(schema, node, ("prefixItems", "items")):
        if "items" in part or (part is not node and "unevaluatedItems" in part):
            return None
        prefix = part.get("prefixItems", [])
        assert isinstance(prefix, list)
        count = max(count, len(prefix))
    return lambda rest: {**({"prefixItems": [{} for _ in range(count)]} if count else {}), "items": rest}


def _always(schema: CheckedSchema, node: Node, keywords: tuple[str, ...]) -> list[Node]:
    """Return the schemas that every value of ``node`` is held against at its own place.

    Raises ``NotNegatableError`` where one that only some are held against has such keywords.
    """
    found: list[Node] = []
    seen: set[tuple[int, bool]] = set()
    waiting = [(node, True)]
    unevaluated = {"unevaluatedProperties", "unevaluatedItems"}
    while waiting:
        part, always = waiting.pop()
        if (id(part), always) in seen:
            continue
        seen.add((id(part), always))
        if not always and (part.keys() & {*keywords, *unevaluated}):
            raise NotNegatableError("what is evaluated depends on the value")
        if always:
            found.append(part)
        target = schema.target(part)
        waiting += [] if target is None else [(target, always)]
        for keyword in ("allOf", *OPTIONAL):
            value = part.get(keyword)
            if keyword == "dependentSchemas" and isinstance(value, dict):
                value = list(value.values())
            inner = value if isinstance(value, list) else [value]
            waiting += [(one, always and keyword == "allOf") for one in inner if isinstance(one, dict)]
    return found
