"""Requests that differ from valid ones in exactly one field.

A mutation knows the field that it touched. ``expected`` names the few whose effect belongs to another field.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from tests.robustness.valid_requests import TOKENIZE, VALID, Valid

Path = tuple[str | int, ...]
LONG = 70_000
"""Characters: more than any single text may have, and than the context takes."""


@dataclass(frozen=True, slots=True)
class Literal:
    """JSON as it is written, also what no encoder writes."""

    text: bytes


@dataclass(frozen=True, slots=True)
class Twice:
    """A value whose key is written twice, with another value before."""

    first: Any
    second: Any


@dataclass(frozen=True, slots=True)
class Mutant:
    """A request with one mutated field."""

    valid: Valid
    kind: str
    """Name of the mutation."""
    place: Path
    """The field that was touched."""
    content: Callable[[], bytes]
    """Makes the body."""
    must_fail: bool
    """No server may take it; else it may also be fine."""

    def __str__(self) -> str:
        return f"{self.valid.name}: {written_path(self.place)} {self.kind}"


def written_path(place: Sequence[str | int]) -> str:
    """Return a path as an error names it."""
    path = ""
    for part in place:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def encoded(value: Any) -> bytes:
    """Return the JSON of ``value``, which may hold ``Literal`` and ``Twice``."""
    match value:
        case Literal(text):
            return text
        case dict():
            fields = []
            for key, held in value.items():
                name = msgspec.json.encode(key)
                each = (held.first, held.second) if isinstance(held, Twice) else (held,)
                fields += [name + b":" + encoded(one) for one in each]
            return b"{" + b",".join(fields) + b"}"
        case list() | tuple():
            return b"[" + b",".join(map(encoded, value)) + b"]"
        case _:
            return msgspec.json.encode(value)


def places(value: Any, at: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Return every field and item of ``value``, at any depth."""
    children: Iterator[tuple[str | int, Any]] = iter(())
    if isinstance(value, Mapping):
        children = iter(value.items())
    elif isinstance(value, list):
        children = iter(enumerate(value))
    for key, child in children:
        yield (*at, key), child
        yield from places(child, (*at, key))


def replaced(value: Any, place: Path, new: Any) -> Any:
    """Return ``value`` with something else at ``place``."""
    if not place:
        return new
    key, *rest = place
    copy: Any = dict(value) if isinstance(value, Mapping) else list(value)
    old = copy[key] if not isinstance(copy, dict) or key in copy else None
    copy[key] = replaced(old, tuple(rest), new)
    return copy


def without(value: Any, place: Path) -> Any:
    """Return ``value`` without the field or item at ``place``."""
    parent: Any = value
    for key in place[:-1]:
        parent = parent[key]
    copy: Any = dict(parent) if isinstance(parent, Mapping) else list(parent)
    del copy[place[-1]]
    return replaced(value, place[:-1], copy)


def _kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    names = {str: "text", int: "number", float: "number", list: "list", dict: "object"}
    return names.get(type(value), "null")


TYPES: Mapping[str, Any] = {
    "null": None,
    "boolean": True,
    "number": 5,
    "text": "purple",
    "list": ["purple"],
    "object": {"purple": 1},
}
NOT_JSON: Mapping[str, bytes] = {
    "is NaN": b"NaN",
    "is -Infinity": b"-Infinity",
    "has a byte that is no UTF-8": b'"caf\xe9"',
    "has half a surrogate pair": b'"\\ud800"',
    "has a broken escape": b'"\\x41"',
    "has a raw line break": b'"a\nb"',
    "is a word": b"undefined",
    "is missing behind its colon": b"",
    "is a number with a leading zero": b"007",
    "is nested without end": b"[" * 5_000,
}
"""Values that make the whole body something else than JSON."""


ONLY_FIELDS = ("comes twice, first wrong", "comes twice, first null", "is missing behind its colon")
TEXT_OR_LIST = ("content", "input", "output", "prompt", "stop")
"""Fields that may be a text or a list, one of them also a list of lists."""


def _in_schema(place: Path) -> bool:
    """Any JSON is a schema to somebody."""
    return "parameters" in place or "schema" in place


def _has_other_forms(place: Path, kind: str) -> bool:
    return place[-1:] in [(name,) for name in TEXT_OR_LIST] and ("list" in kind)


def _mutations(value: Any) -> Iterator[tuple[str, Path, Any, bool]]:
    """Return what may stand in place of ``value``: name, the place below that is touched, new, must fail."""
    kind = _kind_of(value)
    for name, other in TYPES.items():
        if name != kind:
            yield f"is {name} for {kind}", (), other, name != "null" and kind != "null"
    for name, text in NOT_JSON.items():
        yield name, (), Literal(text), True
    yield "is 1e400", (), Literal(b"1e400"), kind != "null"
    yield "is nested 50 levels", (), Literal(b"[" * 50 + b"]" * 50), True
    yield "comes twice, first wrong", (), Twice(TYPES["list" if kind == "object" else "object"], value), False
    yield "comes twice, first null", (), Twice(None, value), False
    match kind:
        case "number":
            for number in (-1, 0, 2**31, 2**63, -(2**63) - 1, 2**80, 0.5, 1e-320, 1e308, -1e308, 123_456):
                yield f"is {number}", (), number, False
            yield "is the number as text", (), str(value), True
            if isinstance(value, int):
                yield "is written with a fraction of zero", (), Literal(f"{value}.0".encode()), False
        case "text":
            yield "is empty", (), "", False
            yield "is long", (), "x" * LONG, False
            yield "is long and not ASCII", (), "é" * LONG, False
            yield "is a case of its own", (), value.swapcase() + "Ŝ", False
            yield "has control characters", (), "a\x00\x1b\x7fb", False
            yield "is in a list", (), [value], False
        case "list":
            yield "is empty", (), [], False
            yield "is 200 times as long", (), value * 200, False
            yield "is in a list", (), [value], True
            for index in sorted({0, len(value)}):
                for wrong in ("null", "boolean", "object", "list"):
                    if not value or wrong != _kind_of(value[0]):
                        items = [*value[:index], TYPES[wrong], *value[index:]]
                        yield f"has an item that is {wrong}", (index,), items, True
        case "object":
            yield "is empty", (), {}, False
            yield "has an unknown field", ("purple",), {**value, "purple": 1}, True
            yield "has an unknown field with a strange name", ("a.b[0]`c",), {**value, "a.b[0]`c": None}, True
            yield (
                "has a thousand unknown fields",
                ("u0",),
                {**value, **{f"u{i}": i for i in range(1000)}},
                True,
            )


def _changed(body: Any, place: Path, new: Any) -> bytes:
    return encoded(replaced(body, place, new))


def _left_out(body: Any, place: Path) -> bytes:
    return encoded(without(body, place))


def of(valid: Valid) -> Iterator[Mutant]:
    """Return every mutant of ``valid``, always in the same order."""
    for place, value in ((), valid.body), *places(valid.body):
        for kind, below, new, must_fail in _mutations(value):
            if kind in ONLY_FIELDS and not (place and isinstance(place[-1], str)):
                continue
            if kind not in NOT_JSON and (_in_schema(place) or _has_other_forms(place, kind)):
                must_fail = False
            make = partial(_changed, valid.body, place, new)
            yield Mutant(valid, kind, (*place, *below), make, must_fail)
        if place:
            kind = "is missing" if isinstance(place[-1], str) else "is an item that is left out"
            yield Mutant(valid, kind, place, partial(_left_out, valid.body, place), False)
    whole = encoded(valid.body)
    for kind, content in {
        "has a second value behind it": whole + b"{}",
        "has a NUL behind it": whole + b"\0",
        "has a comma behind it": whole + b",",
        "has a mark of its byte order": b"\xef\xbb\xbf" + whole,
        "is UTF-16": whole.decode().encode("utf-16"),
        "is empty": b"",
        "is cut short": whole[:-1],
        "has a comma too many": whole[:-1] + b",}",
    }.items():
        yield Mutant(valid, f"body {kind}", (), partial(bytes, content), True)


def _is_in(param: str, place: str) -> bool:
    return param.startswith((f"{place}.", f"{place}["))


def _parent(mutant: Mutant) -> str:
    return written_path(mutant.place[:-1])


def _is_schema(mutant: Mutant, param: str) -> bool:
    roots = ("parameters", "schema")
    parts = [index for index, part in enumerate(mutant.place) if part in roots]
    root = written_path(mutant.place[: parts[0] + 1]) if parts else ""
    return bool(root) and (param == root or _is_in(param, root))


def _touches(mutant: Mutant, *fields: str) -> bool:
    return any(field in mutant.place for field in fields)


ELSEWHERE: Mapping[str, Callable[[Mutant, str], bool]] = {
    "a part of the new value is wrong": lambda mutant, param: (
        mutant.place == () or _is_in(param, written_path(mutant.place))
    ),
    "a schema is judged as a whole": _is_schema,
    "the prompt as a whole is too long": lambda mutant, param: (
        "long" in mutant.kind
        and param in ("messages", "input", "prompt")
        and _touches(mutant, "messages", "input", "instructions")
    ),
    "a result has lost its call": lambda mutant, param: (
        _touches(mutant, "messages", "input") and param.endswith(("].tool_call_id", "].call_id"))
    ),
    "a choice has lost its function": lambda mutant, param: (
        _touches(mutant, "tools", "tool_choice")
        and param in ("tool_choice", "tool_choice.allowed_tools.tools[0]")
    ),
    "a type decides over the fields beside it": lambda mutant, param: (
        mutant.place[-1:] in (("type",), ("role",)) and _is_in(param, _parent(mutant))
    ),
    "a list has too few items or too many": lambda mutant, param: (
        isinstance(mutant.place[-1], int) and "item" in mutant.kind and param == _parent(mutant)
    ),
    "a map has too many entries, or a wrong one": lambda mutant, param: (
        mutant.place[:1] in (("metadata",), ("logit_bias",)) and param.startswith(str(mutant.place[0]))
    ),
    "an answer without calls needs content": lambda mutant, param: (
        _touches(mutant, "tool_calls") and param == written_path(mutant.place[:2]) + ".content"
    ),
    "the first prompt says what the others are": lambda mutant, param: (
        mutant.place == ("prompt", 0) and param == "prompt[1]"
    ),
    "a count without messages is one of a prompt": lambda mutant, param: (
        mutant.valid.path == TOKENIZE and mutant.place == ("messages",) and param == "prompt"
    ),
    "options of a stream need a stream": lambda mutant, param: (
        mutant.place == ("stream",) and param == "stream_options"
    ),
    "likeliest tokens need log-probabilities": lambda mutant, param: (
        mutant.place[:1] in (("logprobs",), ("include",)) and param == "top_logprobs"
    ),
}
"""Effects that belong to another field than the one that was touched, by their reasons."""


def explained(mutant: Mutant, param: str | None, code: str | None) -> bool:
    """Return whether a refusal of ``mutant`` names the right field."""
    if code == "invalid_json":
        return param is None and (mutant.kind in NOT_JSON or mutant.kind.startswith("body "))
    if param == (written_path(mutant.place) or None):
        return True
    return param is not None and any(rule(mutant, param) for rule in ELSEWHERE.values())


def drawn(count: int, seed: int) -> list[Mutant]:
    """Return ``count`` mutants, in turns from each mutation of each valid request."""
    mutants = [mutant for valid in VALID for mutant in of(valid)]
    random.Random(seed).shuffle(mutants)
    turns: Counter[tuple[str, str]] = Counter()
    ordered = []
    for order, mutant in enumerate(mutants):
        key = (mutant.valid.name, mutant.kind)
        turns[key] += 1
        ordered.append((turns[key], order))
    return [mutants[order] for _, order in sorted(ordered)[:count]]
