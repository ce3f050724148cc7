"""Keywords that the compiler lacks, written exactly with those that it has.

``not``, ``if``, ``dependentRequired``, ``dependentSchemas``, ``propertyNames``, ``unevaluatedProperties``,
``unevaluatedItems``, and ``oneOf`` whose alternatives overlap. What cannot be said exactly is refused.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from ferrite.grammar.errors import GrammarError
from ferrite.grammar.evaluated import evaluated_items, evaluated_properties
from ferrite.grammar.limits import MAX_EXCLUSIVE_ALTERNATIVES, MAX_SCHEMA_NODES
from ferrite.grammar.negation import (
    Negation,
    NotNegatableError,
    both,
    either,
    is_nothing,
    nothing,
    text_pattern,
)
from ferrite.grammar.reader import Node
from ferrite.grammar.schema import CheckedSchema, subschemas

T = TypeVar("T")

LOWERED = ("not", "if", "then", "else", "dependentRequired", "dependentSchemas", "propertyNames")
NAME_KEYWORDS = frozenset({"type", "pattern", "enum", "const", "minLength", "maxLength"})
"""Of ``propertyNames``"""


def lower_keywords(schema: CheckedSchema) -> None:
    """Leave no keyword that the compiler does not have; raises ``GrammarError``."""
    lowering = _Lowering(schema)
    # What a schema evaluates is seen as it was written.
    for node in list(schema.nodes()):
        lowering.close(node)
    # What others refer to comes first: it is read later.
    for node in [*reversed(schema.definitions.values()), schema.root]:
        lowering.lower(node)


class _Lowering:
    def __init__(self, schema: CheckedSchema) -> None:
        self._schema = schema
        self._lowered: set[int] = set()
        self._negation = Negation(schema)
        self._removed: list[object] = []
        """Kept, so that no other node gets its id."""
        self._n_nodes = 0

    def close(self, node: Node) -> None:
        """Replace ``unevaluatedProperties`` and ``unevaluatedItems``, where what they cover is fixed."""
        for keyword, covers in (
            ("unevaluatedProperties", evaluated_properties),
            ("unevaluatedItems", evaluated_items),
        ):
            rest = node.get(keyword)
            if isinstance(rest, dict):
                closing = self._exact(node, keyword, partial(covers, self._schema, node))
                self._removed.append(node.pop(keyword))
                if closing is not None:
                    self._add(node, keyword, closing(rest))

    def lower(self, node: Node) -> None:
        """Replace the other keywords of the node and of all within it."""
        if id(node) in self._lowered:
            return
        self._lowered.add(id(node))
        for part in list(subschemas(node)):
            self.lower(part)
        for keyword in ("not", "if", "dependentRequired", "dependentSchemas", "propertyNames"):
            if keyword in node:
                self._add(node, keyword, self._exact(node, keyword, partial(self._said, node, keyword)))
        for keyword in LOWERED:
            self._removed.append(node.pop(keyword, None))
        self._separate(node)

    def _said(self, node: Node, keyword: str) -> Node:
        value = node[keyword]
        match keyword, value:
            case "not", dict():
                return self._negation.of(value)
            case "if", dict():
                then, otherwise = node.get("then", {}), node.get("else", {})
                assert isinstance(then, dict)
                assert isinstance(otherwise, dict)
                if not then and not otherwise:
                    return {}
                return either([both([value, then]), both([self._negation.of(value), otherwise])])
            case "dependentRequired", dict():
                return both(either([_absent(name), _together(name, names)]) for name, names in value.items())
            case "dependentSchemas", dict():
                return both(either([_absent(name), part]) for name, part in value.items())
            case "propertyNames", dict():
                return both(_names(value))
            case _:
                raise AssertionError(keyword)

    def _separate(self, node: Node) -> None:
        """Write ``oneOf`` as alternatives that exclude each other, where that can be said."""
        options = node.get("oneOf")
        if not isinstance(options, list) or len(options) > MAX_EXCLUSIVE_ALTERNATIVES:
            return
        try:
            others = [self._negation.of(option) for option in options]
        except NotNegatableError:
            return  # refused by the compiler, unless it sees that they differ
        self._removed.append(node.pop("oneOf"))
        alone = (
            both([option, *(other for at, other in enumerate(others) if at != index)])
            for index, option in enumerate(options)
        )
        self._add(node, "oneOf", either(alone))

    def _exact(self, node: Node, keyword: str, make: Callable[[], T]) -> T:
        try:
            return make()
        except NotNegatableError as error:
            raise GrammarError(str(error), keyword=keyword, path=self._schema.path(node)) from error

    def _add(self, node: Node, keyword: str, part: Node) -> None:
        """Let the values of ``node`` be those of ``part`` only, which says what ``keyword`` said."""
        if not part:
            return
        parts = node.setdefault("allOf", [])
        assert isinstance(parts, list)
        parts.append(part)
        path = self._schema.paths[id(node)]
        waiting = [part]
        while waiting:
            made = waiting.pop()
            self._n_nodes += 1
            if self._n_nodes > MAX_SCHEMA_NODES:
                raise GrammarError(
                    f"written out, it has more than {MAX_SCHEMA_NODES} parts",
                    keyword=keyword,
                    path=self._schema.path(node),
                )
            if id(made) not in self._schema.paths:
                self._schema.paths[id(made)] = path
                self._schema.origins[id(made)] = keyword
            waiting += subschemas(made)


def _absent(name: str) -> Node:
    return {"properties": {name: nothing()}}


def _together(name: str, names: list[str]) -> Node:
    """Return the schema of objects that have ``names``, and in this order behind ``name``."""
    return {"properties": {key: {} for key in (name, *names)}, "required": names}


def _names(names: Node) -> list[Node]:
    """Return schemas of the objects whose keys are of ``names``, all together."""
    if is_nothing(names):
        return [{"maxProperties": 0}]
    unknown = names.keys() - NAME_KEYWORDS
    if unknown:
        raise NotNegatableError(f"names are matched by {', '.join(sorted(NAME_KEYWORDS))} only")
    types = names.get("type", "string")
    if "string" not in (types if isinstance(types, list) else [types]):
        return [{"maxProperties": 0}]
    patterns = []
    if "pattern" in names:
        patterns.append(str(names["pattern"]))
    for listed in (names.get("enum"), [names["const"]] if "const" in names else None):
        if isinstance(listed, list):
            texts = [value for value in listed if isinstance(value, str)]
            if not texts:
                return [{"maxProperties": 0}]
            patterns.append(text_pattern(texts))
    if "minLength" in names or "maxLength" in names:
        patterns.append(rf"^[\s\S]{{{names.get('minLength', 0)},{names.get('maxLength', '')}}}$")
    return [{"patternProperties": {text: {}}, "additionalProperties": nothing()} for text in patterns]
