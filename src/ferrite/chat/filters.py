"""The filters and tests a template may use: Jinja's own where they are bounded, ours where they were not."""

import html
import json
from collections.abc import Callable, Mapping
from typing import Any

from jinja2.filters import FILTERS
from jinja2.runtime import Context
from jinja2.tests import TESTS
from jinja2.utils import pass_context

from ferrite.chat.meter import Meter, small
from ferrite.chat.operations import (
    MAX_WIDTH,
    STRING_METHODS,
    Metered,
    binary,
    compare,
    cut,
    joined,
    plain_key,
)
from ferrite.chat.text import concat

METER = "ferrite:meter"
"""The render variable that holds the meter. No template can spell a colon in a variable's name."""

_JINJA_TESTS: Mapping[str, Any] = TESTS
_MAX_GROUPS = 10_000
_MAX_DIGITS = 20
_MAX_JSON_INDENT = 16


def meter_of(context: Context) -> Meter:
    """The meter of the rendering that ``context`` belongs to."""
    meter: Meter = context.parent[METER]
    return meter


def _metered(function: Metered) -> Callable[..., Any]:
    @pass_context
    def call(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        meter = meter_of(context)
        meter.spend(1)
        return meter.settle(function(meter, value, *args, **kwargs))

    return call


def _library(name: str, pay: Callable[[Meter, Any], Any], leading: str = "") -> Callable[..., Any]:
    """One of Jinja's own filters. ``pay`` settles and pays for the value, ``leading`` precedes it."""
    function = FILTERS[name]

    @pass_context
    def call(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        meter = meter_of(context)
        meter.spend(1)
        first = {"": (), "context": (context,), "environment": (context.environment,)}[leading]
        return meter.settle(function(*first, pay(meter, value), *args, **kwargs))

    return call


def _as_it_is(meter: Meter, value: Any) -> Any:
    return value


def _shallow(meter: Meter, value: Any) -> Any:
    return meter.shallow(value)


def _deep(meter: Meter, value: Any) -> Any:
    """Sorting and its kin compare each value about log(n) times."""
    value = meter.settle(value)
    for _ in range(len(value).bit_length() if isinstance(value, (list, tuple, Mapping)) else 1):
        meter.weigh(value)
    return value


def _trim(meter: Meter, value: Any, chars: str | None = None) -> Any:
    return STRING_METHODS["strip"](meter, meter.text(value), chars)


def _string(meter: Meter, value: Any) -> str:
    return meter.text(value)


def _escape(meter: Meter, value: Any) -> str:
    value = meter.text(value)
    meter.make(6 * len(value))
    return html.escape(value).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")


def _format(meter: Meter, value: Any, *args: Any, **kwargs: Any) -> Any:
    if args and kwargs:
        raise TypeError("format takes positions or names, not both")
    return binary(meter, "%", meter.text(value), kwargs or args)


@pass_context
def _join(context: Context, value: Any, d: str = "", attribute: str | int | None = None) -> str:
    meter = meter_of(context)
    if attribute is not None:
        value = context.environment.call_filter("map", value, None, {"attribute": attribute}, context)
    parts = [meter.text(part) for part in meter.shallow(value)]
    return joined(meter, meter.text(d), parts)


def _tojson(
    meter: Meter,
    value: Any,
    *,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it: no HTML escapes, and non-ASCII characters as they are."""
    value = meter.settle(value)
    before = meter.left
    depth = meter.weigh(value)
    # Every value may start an indented line and end in a separator.
    padding = small(indent or 0, _MAX_JSON_INDENT) * depth + sum(map(len, separators or ()))
    meter.spend((before - meter.left) * (padding // 8))
    made = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    meter.make(len(made))
    return made


def _indent(meter: Meter, value: Any, width: int | str = 4, *options: Any, **named: Any) -> str:
    """``|indent(width, first, blank)``."""
    text = meter.text(value)
    given = dict(zip(("first", "blank"), options, strict=False)) | named
    first, blank = given.get("first", False), given.get("blank", False)
    step = width if isinstance(width, str) else " " * small(width, MAX_WIDTH)
    meter.make(len(text) + len(step) * (text.count("\n") + 1))
    lines = STRING_METHODS["splitlines"](meter, concat((text, "\n")))
    return joined(
        meter,
        "\n",
        [
            concat((step, line)) if (first if at == 0 else blank or line) else line
            for at, line in enumerate(lines)
        ],
    )


def _batch(meter: Meter, value: Any, count: int, fill_with: Any = None) -> Any:
    meter.spend(2 * small(count, _MAX_GROUPS))
    return FILTERS["batch"](meter.shallow(value), count, fill_with)


def _round(meter: Meter, value: Any, precision: int = 0, method: str = "common") -> Any:
    if not isinstance(value, (int, float)):
        raise TypeError("round takes a number")
    return FILTERS["round"](value, small(precision, _MAX_DIGITS), method)


@pass_context
def _sum(context: Context, iterable: Any, attribute: str | int | None = None, start: int | float = 0) -> Any:
    meter = meter_of(context)
    if attribute is not None:
        iterable = context.environment.call_filter("map", iterable, None, {"attribute": attribute}, context)
    total: Any = start
    for value in meter.shallow(iterable):
        if not isinstance(value, (int, float)) or not isinstance(total, (int, float)):
            raise TypeError("sum takes numbers")
        total = binary(meter, "+", total, value)
    return total


def _reverse(meter: Meter, value: Any) -> Any:
    value = meter.shallow(value)
    return value[::-1] if isinstance(value, (str, list, tuple)) else FILTERS["reverse"](value)


def _list(meter: Meter, value: Any) -> list[Any]:
    return list(meter.shallow(value))


def _iterate(meter: Meter, value: Any, weight: int) -> Any:
    """The values of a ``for``; ``weight`` is what its filter costs for each."""
    value = meter.settle(value)
    if isinstance(value, (str, list, tuple, Mapping)):
        meter.spend(len(value) * weight)
    return value


def _run(meter: Meter, weight: int) -> str:
    """Pay for one run of a loop's or a macro's body."""
    meter.spend(weight)
    return ""


def _concat(meter: Meter, parts: list[Any]) -> str:
    """``a ~ b ~ c``."""
    return joined(meter, "", [meter.text(part) for part in parts])


RUN, ITERATE, CONCAT, COMPARE, CUT, KEY = (
    f"ferrite:{name}" for name in ("run", "iterate", "concat", "compare", "cut", "key")
)

FILTERS_FOR_PROMPTS: Mapping[str, Callable[..., Any]] = {
    **{
        name: _library(name, _as_it_is) for name in ("abs", "count", "d", "default", "float", "int", "length")
    },
    **{name: _library(name, _as_it_is, "environment") for name in ("first", "last")},
    **{
        name: _library(name, _shallow, "context")
        for name in ("map", "reject", "rejectattr", "select", "selectattr")
    },
    **{name: _library(name, _deep) for name in ("dictsort", "urlencode")},
    **{name: _library(name, _deep, "environment") for name in ("groupby", "max", "min", "sort", "unique")},
    **{name: _metered(STRING_METHODS[name]) for name in ("capitalize", "center", "lower", "title", "upper")},
    **{name: _metered(_escape) for name in ("e", "escape")},
    "batch": _metered(_batch),
    "format": _metered(_format),
    "indent": _metered(_indent),
    "items": _library("items", _shallow),
    "join": _join,
    "list": _metered(_list),
    "replace": _metered(STRING_METHODS["replace"]),
    "reverse": _metered(_reverse),
    "round": _metered(_round),
    # Nothing here is HTML, so nothing needs to be marked as safe.
    "safe": _metered(_string),
    "string": _metered(_string),
    "sum": _sum,
    "tojson": _metered(_tojson),
    "trim": _metered(_trim),
    "truncate": _library("truncate", _string, "environment"),
    RUN: _metered(_run),
    ITERATE: _metered(_iterate),
    CONCAT: _metered(_concat),
    COMPARE: _metered(compare),
    CUT: _metered(cut),
    KEY: _metered(plain_key),
}


def _comparing(sign: str) -> Callable[..., bool]:
    @pass_context
    def test(context: Context, left: Any, right: Any) -> bool:
        return compare(meter_of(context), (left, right), sign)

    return test


def _of_number(name: str) -> Callable[..., bool]:
    # "%9999999999d" is odd formats the text.
    def test(value: Any, *args: Any) -> bool:
        if not isinstance(value, (int, float)):
            raise TypeError(f"{name} takes a number")
        return bool(_JINJA_TESTS[name](value, *args))

    return test


def _of_text(name: str) -> Callable[..., bool]:
    def test(value: Any) -> bool:
        return isinstance(value, str) and bool(_JINJA_TESTS[name](value))

    return test


TESTS_FOR_PROMPTS: Mapping[str, Callable[..., Any]] = {
    **{
        name: _JINJA_TESTS[name]
        for name in (
            *("boolean", "float", "integer", "iterable", "mapping", "number", "sequence", "string"),
            *("defined", "undefined", "none", "true", "false", "sameas"),
        )
    },
    **{name: _of_number(name) for name in ("divisibleby", "even", "odd")},
    **{name: _of_text(name) for name in ("lower", "upper")},
    **{name: _comparing("eq") for name in ("eq", "==", "equalto")},
    **{name: _comparing("ne") for name in ("ne", "!=")},
    **{name: _comparing("lt") for name in ("lt", "<", "lessthan")},
    **{name: _comparing("lteq") for name in ("le", "<=")},
    **{name: _comparing("gt") for name in ("gt", ">", "greaterthan")},
    **{name: _comparing("gteq") for name in ("ge", ">=")},
    "in": _comparing("in"),
}
