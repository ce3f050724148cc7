"""Checks a JSON Schema and brings it into the form the grammar compiler takes.

Every keyword that decides is enforced or refused, and those that only describe are dropped: nothing of a
request reaches the compiler that was not understood here. References become names of one table.
"""

import json
import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from urllib.parse import unquote

from ferrite.grammar.anchors import find_anchors
from ferrite.grammar.errors import GrammarError, pointer, quoted
from ferrite.grammar.keywords import SCHEMA_LISTS, SCHEMA_MAPS, SINGLE_SCHEMAS, SUPPORTED
from ferrite.grammar.limits import (
    MAX_DIVISOR,
    MAX_PATTERNS,
    MAX_SCHEMA_BYTES,
    MAX_SCHEMA_LEVELS,
    MAX_SCHEMA_NODES,
)
from ferrite.grammar.reader import Node, NodeReader, Path, children

OLD_DRAFTS = ("draft-04", "draft-06", "draft-07")
"""Drafts in which nothing beside ``$ref`` counts"""
HOIST_LEVELS = 16
"""A schema that many levels down moves to the table: the compiler reads 128 levels of JSON."""


@dataclass(frozen=True, slots=True)
class CheckedSchema:
    """A schema the compiler can be given, with the places its parts had in the original."""

    root: Node
    definitions: dict[str, Node]
    """name → schema; ``$ref`` is ``#/$defs/`` and a name"""
    paths: dict[int, Path]
    """id of a node here → its place in the original"""
    origins: dict[int, str] = field(default_factory=dict)
    """id of a node that was made for a keyword → the keyword, which stands at the node's place"""

    def target(self, node: Node) -> Node | None:
        """Return what the ``$ref`` of ``node`` names, if it has one."""
        reference = node.get("$ref")
        return self.definitions[reference.rpartition("/")[2]] if isinstance(reference, str) else None

    def path(self, node: Node) -> str:
        """Return the node's place in the original as a JSON pointer."""
        return pointer(self.paths[id(node)])

    def nodes(self) -> Iterator[Node]:
        """Yield every node once, the root first."""
        waiting = [*reversed(self.definitions.values()), self.root]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += reversed(list(subschemas(node)))


def check_schema(schema: Mapping[str, object], *, strict: bool) -> CheckedSchema:
    """Return the schema in the compiler's form; raises ``GrammarError`` naming the keyword and its place.

    ``strict`` refuses a ``format`` that is not enforced; otherwise it is an annotation, as in JSON Schema.
    """
    _check_size(schema)
    return _Checker(dict(schema), strict).run()


def subschemas(node: Node) -> Iterator[Node]:
    """Yield the schemas within a node of a ``CheckedSchema``; references are not followed."""
    for keyword, value in node.items():
        if keyword in SCHEMA_MAPS and isinstance(value, dict):
            yield from value.values()
        elif keyword in SCHEMA_LISTS and isinstance(value, list):
            yield from value
        elif keyword in SINGLE_SCHEMAS and isinstance(value, dict):
            yield value


def _check_size(schema: Mapping[str, object]) -> None:
    level: list[object] = [schema]
    for _ in range(4 * MAX_SCHEMA_LEVELS):
        level = children(level)
    if level:
        raise GrammarError(f"the schema is nested deeper than {MAX_SCHEMA_LEVELS} levels")
    try:
        size = len(json.dumps(schema, ensure_ascii=False, allow_nan=False).encode())
    except ValueError as error:
        raise GrammarError("the schema holds a number or a text that JSON cannot have") from error
    if size > MAX_SCHEMA_BYTES:
        raise GrammarError(f"the schema has {size} bytes, the limit is {MAX_SCHEMA_BYTES}")


@dataclass(slots=True)
class _Checker:
    document: Node
    strict: bool
    definitions: dict[str, Node] = field(default_factory=dict)
    paths: dict[int, Path] = field(default_factory=dict)
    names: dict[Path, str] = field(default_factory=dict)
    waiting: deque[tuple[str, object, Path]] = field(default_factory=deque)
    n_names: int = 0
    n_nodes: int = 0
    n_patterns: int = 0
    divisor: int = 1
    anchors: Mapping[str, tuple[object, Path] | None] | None = None

    def run(self) -> CheckedSchema:
        root = self.visit(self.document, (), 0)
        while self.waiting:
            name, schema, path = self.waiting.popleft()
            self.definitions[name] = self.visit(schema, path, 0)
        return CheckedSchema(root, self.definitions, self.paths)

    @property
    def reference_alone(self) -> bool:
        return any(draft in str(self.document.get("$schema")) for draft in OLD_DRAFTS)

    def visit(self, schema: object, path: Path, level: int) -> Node:
        self.n_nodes += 1
        if self.n_nodes > MAX_SCHEMA_NODES:
            raise GrammarError(f"the schema has more than {MAX_SCHEMA_NODES} parts", path=pointer(path))
        if level > MAX_SCHEMA_LEVELS:
            raise GrammarError(
                f"the schema is nested deeper than {MAX_SCHEMA_LEVELS} levels",
                keyword=next((str(part) for part in reversed(path) if part in SUPPORTED), ""),
                path=pointer(path),
            )
        if isinstance(schema, bool):
            node: Node = {} if schema else {"enum": []}
        else:
            assert isinstance(schema, dict), "checked with the keyword that holds it"
            node = NodeReader(self, schema, path, level).read()
        self.paths[id(node)] = path
        return self._hoisted(node, path) if level and level % HOIST_LEVELS == 0 else node

    def reference(self, reference: str, path: Path) -> str:
        target, place = self._resolve(reference, path)
        if place not in self.names:
            self.names[place] = self._new_name()
            self.waiting.append((self.names[place], target, place))
        return f"#/$defs/{self.names[place]}"

    def count_pattern(self, keyword: str, path: Path) -> None:
        self.n_patterns += 1
        if self.n_patterns > MAX_PATTERNS:
            raise GrammarError(
                f"the schema has more than {MAX_PATTERNS} patterns", keyword=keyword, path=pointer(path)
            )

    def count_divisor(self, value: float, path: Path) -> None:
        divisor = Fraction(str(value)).numerator
        for prime in (2, 5):
            while divisor % prime == 0:
                divisor //= prime
        self.divisor = math.lcm(self.divisor, divisor)
        if self.divisor > MAX_DIVISOR:
            raise GrammarError(
                f"a schema's divisors, factors 2 and 5 apart, may have a common multiple of {MAX_DIVISOR}",
                keyword="multipleOf",
                path=pointer(path),
            )

    def _hoisted(self, node: Node, path: Path) -> Node:
        name = self._new_name()
        self.definitions[name] = node
        stand_in: Node = {"$ref": f"#/$defs/{name}"}
        self.paths[id(stand_in)] = path
        return stand_in

    def _new_name(self) -> str:
        self.n_names += 1
        return str(self.n_names)

    def _resolve(self, reference: str, path: Path) -> tuple[object, Path]:
        def error(reason: str) -> GrammarError:
            return GrammarError(f"{quoted(reference)} {reason}", keyword="$ref", path=pointer(path))

        base = self.document.get("$id")
        fragment = reference
        if isinstance(base, str) and base:
            fragment = reference.removeprefix(base.removesuffix("#"))
        if not fragment.startswith("#"):
            raise error("is outside the document")
        fragment = unquote(fragment[1:])
        if fragment and not fragment.startswith("/"):
            if self.anchors is None:
                self.anchors = find_anchors(self.document)
            found = self.anchors.get(fragment)
            if found is None:
                raise error("is an anchor that the document has not, or more than once")
            return found
        target: object = self.document
        place: list[str | int] = []
        for raw in fragment.split("/")[1:]:
            part = raw.replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict) and part in target:
                target = target[part]
                place.append(part)
            elif isinstance(target, list) and part.isdecimal() and int(part) < len(target):
                target = target[int(part)]
                place.append(int(part))
            else:
                raise error("points nowhere")
        if not isinstance(target, dict | bool):
            raise error("points to something that is no schema")
        return target, tuple(place)
