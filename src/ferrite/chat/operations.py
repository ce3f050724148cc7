"""What a template may do with values: operators and string methods, each paid for before it runs."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, TypeAlias

from ferrite.chat.messages import ChatTemplateError
from ferrite.chat.meter import Meter, bounded, small
from ferrite.chat.text import (
    brace_format,
    concat,
    join,
    percent_format,
    recase,
    repeat,
    replace,
    split,
    strip,
)

Metered: TypeAlias = Callable[Concatenate[Meter, Any, ...], Any]
"""``function(meter, value, ...)``"""

MAX_WIDTH = 1000
_MAX_STRIP_SET = 256

_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "lteq": operator.le,
    "gt": operator.gt,
    "gteq": operator.ge,
    "in": lambda item, holder: item in holder,
    "notin": lambda item, holder: item not in holder,
}


def binary(meter: Meter, sign: str, left: Any, right: Any) -> Any:
    """``left sign right``. Text keeps its origin, sizes are paid for, integers stay bounded."""
    meter.spend(1)
    if sign == "+" and isinstance(left, str) and isinstance(right, str):
        meter.make(len(left) + len(right))
        return concat((left, right))
    if sign == "%" and isinstance(left, str):
        return _percent(meter, left, right)
    if sign == "*" and isinstance(right, (str, list, tuple)):
        left, right = right, left
    if sign == "*" and isinstance(left, (str, list, tuple)) and isinstance(right, int):
        times = max(right, 0)
        if isinstance(left, str):
            meter.make(len(left) * times)
            return repeat(left, times)
        meter.spend(2 * len(left) * times)
        return left * times
    if sign == "+" and isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        meter.spend(2 * (len(left) + len(right)))
    bounded(left)
    bounded(right)
    if sign == "**" and isinstance(left, int) and isinstance(right, int):
        # The longest number `bounded` lets through, reckoned before it is made.
        small(left.bit_length() * abs(right), 1024)
    return bounded(_ARITHMETIC[sign](left, right))


def _percent(meter: Meter, form: str, values: Any) -> str:
    if isinstance(values, Mapping):
        given: object = {key: _field(meter, value) for key, value in values.items()}
    elif isinstance(values, tuple):
        given = tuple(_field(meter, value) for value in values)
    else:
        given = _field(meter, values)
    meter.make(len(form))
    made = percent_format(form, given)
    meter.make(len(made))
    return made


def _format(meter: Meter, form: str, *args: Any, **kwargs: Any) -> str:
    meter.make(len(form))
    made = brace_format(
        form,
        tuple(_field(meter, value) for value in args),
        {name: _field(meter, value) for name, value in kwargs.items()},
    )
    meter.make(len(made))
    return made


def _field(meter: Meter, value: Any) -> Any:
    """A value as a format field takes it: a number, or text."""
    return value if isinstance(value, (int, float)) else meter.text(value)


def compare(meter: Meter, operands: Sequence[Any], signs: str) -> bool:
    """``a < b < c``; ``signs`` are Jinja's operator names, joined by spaces."""
    for left, sign, right in zip(operands, signs.split(), operands[1:], strict=False):
        _pay_comparison(meter, sign, left, right)
        if not _COMPARISONS[sign](left, right):
            return False
    return True


def _pay_comparison(meter: Meter, sign: str, left: Any, right: Any) -> None:
    meter.spend(1)
    containers = (list, tuple, dict)
    if sign in ("in", "notin"):
        if isinstance(right, str) and isinstance(left, str):
            meter.search(right, left)
        elif isinstance(left, containers) or not isinstance(right, (*containers, str)):
            meter.weigh(left)
            meter.weigh(right)
        elif isinstance(right, (list, tuple)):
            meter.spend(len(right) * (1 + (len(left) // 64 if isinstance(left, str) else 0)))
    elif isinstance(left, str) and isinstance(right, str):
        meter.spend(min(len(left), len(right)) // 64)
    elif isinstance(left, containers) and isinstance(right, containers):
        meter.weigh(left)


def plain_key(meter: Meter, key: Any) -> Any:
    """A key of a dict literal: hashing a tuple walks all it holds."""
    if isinstance(key, tuple):
        raise ChatTemplateError("the chat template uses a tuple as a key")
    meter.spend(1)
    return key


def cut(meter: Meter, value: Any, start: Any, stop: Any, step: Any) -> Any:
    """``value[start:stop:step]``."""
    if isinstance(value, (str, list, tuple)):
        meter.make(len(value))
    return value[start:stop:step]


def _inspect(name: str) -> Metered:
    def method(meter: Meter, text: str, *args: Any) -> Any:
        backwards = name.startswith("r")
        for part in args[:1]:
            for option in part if isinstance(part, tuple) else (part,):
                meter.search(text, option if isinstance(option, str) else "", backwards=backwards)
        meter.make(len(text))
        return getattr(str, name)(text, *args)

    return method


def _strip(name: str) -> Metered:
    def method(meter: Meter, text: str, chars: str | None = None) -> str:
        if chars is not None and len(chars) > _MAX_STRIP_SET:
            raise ChatTemplateError(f"the chat template strips more than {_MAX_STRIP_SET} characters")
        meter.make(len(text))
        return strip(text, name, chars)

    return method


def _split(name: str) -> Metered:
    def method(meter: Meter, text: str, *args: Any, **kwargs: Any) -> list[str]:
        separator = args[0] if args else kwargs.get("sep")
        if isinstance(separator, str) and separator:
            meter.search(text, separator, backwards=name.startswith("r"))
            meter.spend(4 * text.count(separator))
        meter.make(len(text))
        pieces = split(text, name, *args, **kwargs)
        meter.spend(2 * len(pieces))
        return pieces

    return method


def _recase(name: str) -> Metered:
    def method(meter: Meter, text: Any) -> str:
        text = meter.text(text)
        meter.make(3 * len(text))
        return recase(text, name)

    return method


def _pad(name: str) -> Metered:
    def method(meter: Meter, text: Any, width: int = 80, *args: Any) -> str:
        text = meter.text(text)
        small(width, MAX_WIDTH)
        padded: str = getattr(str, name)(text, width, *args)
        return concat((padded[: len(padded) - len(text)], text)) if name in ("rjust", "zfill") else padded

    return method


def _replace(meter: Meter, text: Any, old: Any, new: Any, count: int | None = None) -> str:
    text, old, new = meter.text(text), meter.text(old), meter.text(new)
    meter.search(text, old)
    times = len(text) + 1 if not old else text.count(old)
    meter.make(len(text) + times * len(new))
    meter.spend(4 * times)
    return replace(text, old, new, -1 if count is None else count)


def _join_method(meter: Meter, separator: str, parts: Any) -> str:
    parts = meter.shallow(parts)
    if not all(isinstance(part, str) for part in parts):
        raise TypeError("join takes texts only")
    return joined(meter, separator, list(parts))


def joined(meter: Meter, separator: str, parts: Sequence[str]) -> str:
    """``separator.join(parts)``, paid for."""
    meter.make(sum(map(len, parts)) + len(separator) * len(parts))
    return join(separator, parts)


def _remove(name: str) -> Metered:
    def method(meter: Meter, text: str, affix: str) -> str:
        meter.make(len(text))
        if name == "removeprefix":
            return text[len(affix) :] if affix and text.startswith(affix) else text
        return text[: -len(affix)] if affix and text.endswith(affix) else text

    return method


_INSPECTING = (
    *("count", "endswith", "find", "index", "rfind", "rindex", "startswith"),
    *("isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric"),
    *("isprintable", "isspace", "istitle", "isupper"),
)
_CASES = ("capitalize", "casefold", "lower", "swapcase", "title", "upper")

STRING_METHODS: Mapping[str, Metered] = {
    **{name: _inspect(name) for name in _INSPECTING},
    **{name: _strip(name) for name in ("strip", "lstrip", "rstrip")},
    **{name: _split(name) for name in ("split", "rsplit", "splitlines", "partition", "rpartition")},
    **{name: _recase(name) for name in _CASES},
    **{name: _pad(name) for name in ("center", "ljust", "rjust", "zfill")},
    **{name: _remove(name) for name in ("removeprefix", "removesuffix")},
    "format": _format,
    "join": _join_method,
    "replace": _replace,
}


@dataclass(frozen=True, slots=True)
class StringMethod:
    """A method of a text, as a template gets hold of it."""

    text: str
    name: str
