"""The values that a schema does not have, as a schema of the keywords that the compiler takes."""

from collections.abc import Iterable
from itertools import pairwise

from ferrite.grammar.keywords import TYPES
from ferrite.grammar.limits import MAX_EXCLUDED_CHARS, MAX_SCHEMA_LEVELS, MAX_SCHEMA_NODES
from ferrite.grammar.reader import EXACT_INTEGERS, Node
from ferrite.grammar.schema import CheckedSchema

NEGATABLE_TYPES = tuple(name for name in TYPES if name != "integer")


class NotNegatableError(ValueError):
    """A schema whose complement the compiler's keywords cannot say exactly; one line."""


def nothing() -> Node:
    """Return a new schema that no value has."""
    return {"enum": []}


def is_nothing(node: Node) -> bool:
    """Whether the node is plainly without values."""
    return node.get("enum") == []


class Negation:
    """Makes complements for one schema, and not more than a limit of nodes."""

    def __init__(self, schema: CheckedSchema) -> None:
        self._schema = schema
        self._open: set[int] = set()
        self._left = MAX_SCHEMA_NODES

    def of(self, node: Node) -> Node:
        """Return a schema of exactly the values that ``node`` does not have; raises ``NotNegatableError``."""
        self._open.clear()
        return self._of(node)

    def _of(self, node: Node) -> Node:
        self._left -= 1
        if self._left < 0:
            raise NotNegatableError("too much is excluded")
        if id(node) in self._open or len(self._open) > MAX_SCHEMA_LEVELS:
            raise NotNegatableError("a recursive schema cannot be excluded")
        self._open.add(id(node))
        options: list[Node] = []
        for keyword, value in node.items():
            if keyword in ("const", "enum"):
                options.append(_without(value if isinstance(value, list) and keyword == "enum" else [value]))
            else:
                options += self._violations(node, keyword, value)
        self._open.discard(id(node))
        return either(options)

    def _violations(self, node: Node, keyword: str, value: object) -> Iterable[Node]:
        """Return schemas of the values that fail this keyword, all together."""
        match keyword, value:
            case "$ref", _:
                target = self._schema.target(node)
                assert target is not None
                return [self._of(target)]
            case "allOf", list():
                return [self._of(part) for part in value]
            case "anyOf", list():
                return [both(self._of(part) for part in value)]
            case "type", _:
                return [_other_types(value)]
            case "required", list():
                return [{"type": "object", "properties": {name: nothing()}} for name in value]
            case "properties", dict():
                return [
                    {"type": "object", "properties": {name: self._of(part)}, "required": [name]}
                    for name, part in value.items()
                    if part
                ]
            case "prefixItems", list():
                return [
                    {
                        "type": "array",
                        "minItems": index + 1,
                        "prefixItems": [*({} for _ in range(index)), self._of(part)],
                    }
                    for index, part in enumerate(value)
                    if part
                ]
            case "items", dict() if is_nothing(value):
                prefix = node.get("prefixItems", [])
                assert isinstance(prefix, list)
                return [{"type": "array", "minItems": len(prefix) + 1}]
            case (("items" | "additionalProperties"), {}):
                if value:
                    raise _error(keyword)
                return []
            case _, int() | float():
                return _beyond(keyword, value)
            case _:
                raise _error(keyword)


def both(parts: Iterable[Node]) -> Node:
    """Return a schema of the values that all of the parts have."""
    kept = [part for part in parts if part]
    if any(map(is_nothing, kept)):
        return nothing()
    return kept[0] if len(kept) == 1 else {"allOf": kept} if kept else {}


def either(options: Iterable[Node]) -> Node:
    """Return a schema of the values that any of the options has."""
    kept = [option for option in options if not is_nothing(option)]
    if not all(kept):
        return {}
    return kept[0] if len(kept) == 1 else {"anyOf": kept} if kept else nothing()


def text_pattern(texts: Iterable[str]) -> str:
    """Return a pattern, in the compiler's syntax, of exactly these texts."""
    return f"^(?:{'|'.join(map(_literal, texts))})$"


def _error(keyword: str) -> NotNegatableError:
    return NotNegatableError(f"what {keyword} has cannot be excluded exactly")


def _other_types(value: object) -> Node:
    named = {value} if isinstance(value, str) else set(value)  # type: ignore[call-overload]
    if "integer" in named and "number" not in named:
        raise NotNegatableError("whole numbers cannot be told from others in exclusion")
    rest = [name for name in NEGATABLE_TYPES if name not in named]
    return {"type": rest} if rest else nothing()


def _beyond(keyword: str, value: int | float) -> list[Node]:
    """Return what fails a keyword that is a number."""
    whole = int(value)
    match keyword:
        case "minLength" | "minItems" | "minProperties" if whole == 0:
            return []
        case "minLength":
            return [{"type": "string", "maxLength": whole - 1}]
        case "maxLength":
            return [{"type": "string", "minLength": whole + 1}]
        case "minItems":
            return [{"type": "array", "maxItems": whole - 1}]
        case "maxItems":
            return [{"type": "array", "minItems": whole + 1}]
        case "minProperties" if whole == 1:
            return [{"type": "object", "maxProperties": 0}]
        case "maxProperties" if whole == 0:
            return [{"type": "object", "minProperties": 1}]
    opposite = {
        "minimum": "exclusiveMaximum",
        "exclusiveMinimum": "maximum",
        "maximum": "exclusiveMinimum",
        "exclusiveMaximum": "minimum",
    }
    # Larger bounds were moved to where the compiler can hold them.
    if keyword not in opposite or abs(value) > EXACT_INTEGERS:
        raise _error(keyword)
    return [{"type": "number", opposite[keyword]: value}]


def _without(values: list[object]) -> Node:
    """Return a schema of all values but these."""
    numbers = sorted({value for value in values if isinstance(value, int | float) and not _is_bool(value)})
    texts = [value for value in values if isinstance(value, str)]
    options: list[Node] = [{"type": name} for name in ("array", "object")]
    for value in values:
        if value == [] or value == {}:
            name, least = ("array", "minItems") if value == [] else ("object", "minProperties")
            options = [option for option in options if option.get("type") != name]
            options.append({"type": name, least: 1})
        elif isinstance(value, list | dict):
            raise NotNegatableError("single lists and objects cannot be excluded")
    options += [{"const": value} for value in (None, True, False) if not any(value is v for v in values)]
    options += _between(numbers)
    options.append({"type": "string", "pattern": _other_texts(texts)} if texts else {"type": "string"})
    return {"anyOf": options}


def _between(numbers: list[int | float]) -> list[Node]:
    """Return schemas of the numbers before, between and after these."""
    if not numbers:
        return [{"type": "number"}]
    spans: list[Node] = [{"type": "number", "exclusiveMaximum": numbers[0]}]
    for low, high in pairwise(numbers):
        spans.append({"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high})
    return [*spans, {"type": "number", "exclusiveMinimum": numbers[-1]}]


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _other_texts(texts: list[str]) -> str:
    """Return a pattern of all texts but these: each leaves them at some character, or ends on its way."""
    if sum(map(len, texts)) > MAX_EXCLUDED_CHARS:
        raise NotNegatableError(f"at most {MAX_EXCLUDED_CHARS} characters of text can be excluded")
    excluded = set(texts)
    prefixes = {text[:end] for text in texts for end in range(len(text) + 1)}
    options = []
    for prefix in sorted(prefixes):
        literal = _literal(prefix)
        if prefix not in excluded:
            options.append(literal)
        following = sorted({text[len(prefix)] for text in prefixes if _continues(text, prefix)})
        other = f"[^{''.join(map(_literal, following))}]" if following else r"[\s\S]"
        options.append(rf"{literal}{other}[\s\S]*")
    return f"^(?:{'|'.join(options)})$"


def _continues(text: str, prefix: str) -> bool:
    return len(text) == len(prefix) + 1 and text.startswith(prefix)


def _literal(text: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else rf"\x{{{ord(c):x}}}" for c in text)
