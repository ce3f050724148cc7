"""One schema object in the compiler's form: each keyword enforced, dropped or refused."""

import math
from collections.abc import Mapping, Sequence, ValuesView
from typing import Protocol, TypeAlias

from ferrite.grammar.errors import GrammarError, pointer, quoted
from ferrite.grammar.keywords import (
    ANNOTATIONS,
    DEFINITIONS,
    FORMATS,
    NEUTRAL,
    SINGLE_SCHEMAS,
    SUPPORTED,
    TYPES,
    expectation,
    is_number,
)
from ferrite.grammar.limits import MAX_OUTPUT_BYTES, MAX_OUTPUT_LEVELS, MAX_PROPERTIES
from ferrite.grammar.patterns import translate

Node: TypeAlias = dict[str, object]
Path: TypeAlias = tuple[str | int, ...]

EXACT_INTEGERS = 1 << 53
"""The compiler keeps numbers as float64."""
LARGEST_BOUND = (1 << 63) - (1 << 10)
"""The greatest float64 below 2^63"""


class Context(Protocol):
    """What the keywords of one schema ask of the whole."""

    @property
    def strict(self) -> bool:
        """A ``format`` that is not enforced is refused."""

    @property
    def reference_alone(self) -> bool:
        """Nothing beside a ``$ref`` counts."""

    def visit(self, schema: object, path: Path, level: int) -> Node:
        """Return a schema within this one in the compiler's form."""

    def reference(self, reference: str, path: Path) -> str:
        """Return what the compiler is given for a ``$ref``."""

    def count_pattern(self, keyword: str, path: Path) -> None:
        """Hold the number of patterns against its limit."""

    def count_divisor(self, value: float, path: Path) -> None:
        """Hold the divisors against their limit."""


class NodeReader:
    """Reads one schema object, keyword by keyword."""

    def __init__(self, context: Context, schema: Node, path: Path, level: int) -> None:
        self._context = context
        self._path = path
        self._level = level
        alone = context.reference_alone and "$ref" in schema
        self._schema: Node = {"$ref": schema["$ref"]} if alone else schema
        self._out: Node = {}

    def read(self) -> Node:
        """Return the node in the compiler's form; raises ``GrammarError``."""
        for keyword, value in self._schema.items():
            if self._says_nothing(keyword, value):
                continue
            if keyword not in SUPPORTED:
                raise self._error(keyword, "the keyword is not supported")
            expected = expectation(keyword, value)
            if expected is not None:
                raise self._error(keyword, f"it must be {expected}")
            self._take(keyword, value)
        return self._out

    def _says_nothing(self, keyword: str, value: object) -> bool:
        match keyword:
            case "$id" | "id":
                if self._path and not str(value).startswith("#"):
                    raise self._error(
                        keyword, "a schema with an identity of its own inside another is not supported"
                    )
                return True
            case "then" | "else":
                return "if" not in self._schema
            case "minContains" | "maxContains":
                return "contains" not in self._schema
            case "x-guidance":
                return False
            case _:
                known = keyword in ANNOTATIONS or keyword in DEFINITIONS or keyword.startswith("x-")
                return known or value in NEUTRAL.get(keyword, ())

    def _take(self, keyword: str, value: object) -> None:
        match keyword, value:
            case "$ref", str():
                self._out[keyword] = self._context.reference(value, self._path)
            case (("allOf" | "anyOf" | "oneOf" | "prefixItems"), list()):
                self._out[keyword] = self._visit_list(keyword, value)
            case "properties", dict():
                if len(value) > MAX_PROPERTIES:
                    raise self._error(keyword, f"{len(value)} properties, the limit is {MAX_PROPERTIES}")
                self._out[keyword] = {name: self._visit(part, keyword, name) for name, part in value.items()}
            case "dependentSchemas", dict():
                self._out[keyword] = {name: self._visit(part, keyword, name) for name, part in value.items()}
            case "patternProperties", dict():
                self._out[keyword] = {
                    self._pattern(keyword, pattern): self._visit(part, keyword, pattern)
                    for pattern, part in value.items()
                }
            case "items", list():
                if "prefixItems" in self._schema:
                    raise self._error(keyword, "it must be a schema beside prefixItems")
                if value:
                    self._out["prefixItems"] = self._visit_list(keyword, value)
                rest = self._schema.get("additionalItems")
                if isinstance(rest, dict | bool):
                    self._out["items"] = self._visit(rest, "additionalItems")
            case "additionalItems", _:
                pass  # with a list of items, taken there; otherwise it says nothing
            case "dependencies", dict():
                if "dependentRequired" in self._schema or "dependentSchemas" in self._schema:
                    raise self._error(keyword, "it must not stand beside the keywords that replaced it")
                lists = {name: part for name, part in value.items() if isinstance(part, list)}
                self._out["dependentRequired"] = lists
                self._out["dependentSchemas"] = {
                    name: self._visit(part, keyword, name)
                    for name, part in value.items()
                    if name not in lists
                }
            case "dependentRequired", dict():
                self._out[keyword] = value
            case _, dict() | bool() if keyword in SINGLE_SCHEMAS:
                self._out[keyword] = self._visit(value, keyword)
            case "required", list():
                self._out[keyword] = list(dict.fromkeys(value))
            case "type", _:
                self._out[keyword] = list(dict.fromkeys(value)) if isinstance(value, list) else value
            case "pattern", str():
                self._out[keyword] = self._pattern(keyword, value)
            case "format", str():
                self._format(value)
            case (("const" | "enum"), _):
                self._check_values(keyword, value)
                self._out[keyword] = value
            case _:
                self._number(keyword, value)

    def _visit(self, part: object, *steps: str | int) -> Node:
        return self._context.visit(part, (*self._path, *steps), self._level + 1)

    def _visit_list(self, keyword: str, parts: Sequence[object]) -> list[Node]:
        return [self._visit(part, keyword, index) for index, part in enumerate(parts)]

    def _pattern(self, keyword: str, pattern: str) -> str:
        self._context.count_pattern(keyword, self._path)
        try:
            return translate(pattern)
        except ValueError as error:
            raise self._error(keyword, str(error)) from error

    def _format(self, name: str) -> None:
        types = self._schema.get("type", TYPES)
        if "string" not in (types if isinstance(types, list | tuple) else [types]):
            return
        if name in FORMATS:
            self._context.count_pattern("format", self._path)
            self._out["format"] = name
        elif self._context.strict:
            raise self._error("format", f"{quoted(name)} is not enforced, only {', '.join(sorted(FORMATS))}")

    def _check_values(self, keyword: str, value: object) -> None:
        level = [value]
        for _ in range(MAX_OUTPUT_LEVELS + 1):
            if any(isinstance(part, int) and abs(part) > EXACT_INTEGERS for part in level):
                raise self._error(keyword, f"whole numbers beyond {EXACT_INTEGERS} are not supported")
            level = [
                child
                for part in level
                for child in (
                    part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
                )
            ]
        if level:
            raise self._error(keyword, f"a value nested deeper than {MAX_OUTPUT_LEVELS} levels")

    def _number(self, keyword: str, value: object) -> None:
        assert isinstance(value, int | float)
        match keyword:
            case "minLength" | "minItems":
                if value > MAX_OUTPUT_BYTES:
                    raise self._error(keyword, f"an answer has at most {MAX_OUTPUT_BYTES} bytes")
                self._out[keyword] = int(value)
            case "maxLength" | "maxItems" | "maxProperties":
                if value < MAX_OUTPUT_BYTES:
                    self._out[keyword] = int(value)
            case "minProperties":
                required = self._schema.get("required")
                if value > (len(set(required)) if isinstance(required, list) else 0):
                    if value > 1:
                        raise self._error(
                            keyword,
                            "above 1 and the number of required ones it is not supported: keys may repeat",
                        )
                    self._out[keyword] = int(value)
            case "exclusiveMinimum" | "exclusiveMaximum" if isinstance(value, bool):
                bound = self._schema.get("minimum" if keyword == "exclusiveMinimum" else "maximum")
                if value and is_number(bound):
                    self._out[keyword] = _representable(bound, upper=keyword == "exclusiveMaximum")
            case "minimum" | "exclusiveMinimum":
                self._out[keyword] = _representable(value, upper=False)
            case "maximum" | "exclusiveMaximum":
                self._out[keyword] = _representable(value, upper=True)
            case _:
                self._context.count_divisor(value, self._path)
                self._out[keyword] = value

    def _error(self, keyword: str, reason: str) -> GrammarError:
        return GrammarError(reason, keyword=keyword, path=pointer(self._path))


def children(values: Sequence[object]) -> list[object]:
    """Return the elements of all lists and the values of all objects among ``values``."""
    parts = (value.values() if isinstance(value, Mapping) else value for value in values)
    return [child for part in parts if isinstance(part, ValuesView | list) for child in part]


def _representable(value: object, *, upper: bool) -> object:
    """Return the bound, moved inwards where the compiler cannot hold it: as int64 made of float64."""
    if isinstance(value, int):
        value = min(value, LARGEST_BOUND) if upper else max(value, -LARGEST_BOUND)
    if isinstance(value, int) and int(float(value)) != value:
        nearest = float(value)
        if (nearest > value) == upper:
            nearest = math.nextafter(nearest, -math.inf if upper else math.inf)
        return int(nearest)
    return value
