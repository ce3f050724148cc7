"""Strings that remember which characters the template wrote, and the operations templates do on them.

A control token counts only where the template wrote every character of it, so text that came from a
request can never become one, however a template joins, cuts or changes its case. Every string a
template writes is a ``Written``; everything else is a plain ``str``. An operation that cannot say
where its characters came from returns a plain ``str``: text, never control.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_FROM_TEMPLATE = b"\x01"
_PERCENT = re.compile(
    r"%(?:\((?P<key>[^)]*)\))?(?P<spec>[#0\- +]*\d*(?:\.\d*)?(?P<kind>[diouxXeEfFgGcrsa%]))"
)
_BRACES = re.compile(r"\{\{|\}\}|\{(?P<field>\w*)(?:!(?P<convert>[rsa]))?(?::(?P<spec>[^{}]*))?\}")
_MAX_FIELD_WIDTH = 1000
_NOTHING = object()


class Written(str):
    """Text with one byte of origin per character: 1 where the template wrote it, 0 where it was given."""

    __slots__ = ("origin",)
    origin: bytes

    def __new__(cls, text: str, origin: bytes | None = None) -> "Written":
        """``origin`` None means that the template wrote all of it."""
        self = super().__new__(cls, text)
        self.origin = _FROM_TEMPLATE * len(text) if origin is None else origin
        return self

    def __str__(self) -> "Written":
        return self

    def __getitem__(self, index: Any) -> "Written":
        return Written(super().__getitem__(index), _at(self.origin, index))


def _at(origin: bytes, index: Any) -> bytes:
    return origin[index] if isinstance(index, slice) else bytes((origin[index],))


def origin_of(text: str) -> bytes:
    """One byte per character of any string."""
    return text.origin if isinstance(text, Written) else bytes(len(text))


def concat(parts: Sequence[str]) -> str:
    """Join without separator, keeping origins."""
    text = "".join(parts)
    if any(isinstance(part, Written) for part in parts):
        return Written(text, b"".join(map(origin_of, parts)))
    return text


def join(separator: str, parts: Sequence[str]) -> str:
    """``separator.join(parts)``, keeping origins."""
    return concat([piece for part in parts for piece in (separator, part)][1:])


def repeat(text: str, times: int) -> str:
    """``text * times``, keeping origins."""
    return (
        Written(str.__mul__(text, times), text.origin * times) if isinstance(text, Written) else text * times
    )


def written_runs(text: str) -> Iterator[tuple[str, bool]]:
    """Maximal runs of equal origin: (text, whether the template wrote it)."""
    plain, origin, start = str.__str__(text), origin_of(text), 0
    while start < len(origin):
        end = origin.find(1 - origin[start], start)
        end = len(origin) if end < 0 else end
        yield plain[start:end], bool(origin[start])
        start = end


def strip(text: str, name: str, *args: Any) -> str:
    """``strip``, ``lstrip`` or ``rstrip``."""
    start = len(text) - len(str.lstrip(text, *args)) if name != "rstrip" else 0
    end = len(str.rstrip(text, *args)) if name != "lstrip" else len(text)
    return text[start : max(start, end)]


def split(text: str, name: str, *args: Any, **kwargs: Any) -> list[str]:
    """``split``, ``rsplit``, ``splitlines``, ``partition`` or ``rpartition``, as a list."""
    plain: list[str] = list(getattr(str, name)(text, *args, **kwargs))
    if not isinstance(text, Written):
        return plain
    separator = args[0] if args else kwargs.get("sep")
    gap = len(separator) if name in ("split", "rsplit") and isinstance(separator, str) else 0
    pieces: list[str] = []
    at = 0
    for piece in plain:
        at = at if gap else text.find(piece, at)
        pieces.append(text[at : at + len(piece)])
        at += len(piece) + gap
    return pieces


def replace(text: str, old: str, new: str, count: int = -1) -> str:
    """``text.replace``; what replaces keeps its own origin."""
    if not old or not (isinstance(text, Written) or isinstance(new, Written)):
        return str.replace(text, old, new, count)
    return join(new, split(text, "split", old, count))


def recase(text: str, name: str) -> str:
    """``upper``, ``lower`` and their kin; a change of length loses the origin."""
    changed: str = getattr(str, name)(text)
    return (
        Written(changed, text.origin) if isinstance(text, Written) and len(changed) == len(text) else changed
    )


def percent_format(form: str, values: object) -> str:
    """``form % values`` with bounded widths; plain ``%s`` keeps the value's origin.

    ``values`` hold text and numbers only. Raises ``TypeError`` or ``ValueError`` as Python does.
    """
    queue = iter(values if isinstance(values, tuple) else (values,))
    pieces: list[str] = []
    at = 0
    for match in _PERCENT.finditer(form):
        pieces.append(_no_stray(form[at : match.start()], "%"))
        at = match.end()
        if match["kind"] == "%":
            pieces.append("%")
            continue
        if match["key"] is not None:
            if not isinstance(values, Mapping):
                raise TypeError("format requires a mapping")
            value = values[match["key"]]
        else:
            value = next(queue, _NOTHING)
            if value is _NOTHING:
                raise TypeError("not enough arguments for format string")
        if match["spec"] == "s" and isinstance(value, str):
            pieces.append(value)
        else:
            _check_width(match["spec"])
            pieces.append(f"%{match['spec']}" % (value,))
    pieces.append(_no_stray(form[at:], "%"))
    if not isinstance(values, Mapping) and next(queue, _NOTHING) is not _NOTHING:
        raise TypeError("not all arguments converted during string formatting")
    return concat(pieces)


def brace_format(form: str, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
    """``form.format(*args, **kwargs)`` for plain fields: no attributes, no subscripts, bounded widths."""
    pieces: list[str] = []
    at = automatic = 0
    for match in _BRACES.finditer(form):
        pieces.append(_no_stray(form[at : match.start()], "{}"))
        at = match.end()
        if match["field"] is None:
            pieces.append(form[match.start() : match.start() + 1])
            continue
        if not match["field"]:
            value: object = args[automatic]
            automatic += 1
        else:
            value = args[int(match["field"])] if match["field"].isdecimal() else kwargs[match["field"]]
        if match["convert"] in ("r", "a"):
            value = repr(value) if match["convert"] == "r" else ascii(value)
        if not match["spec"] and isinstance(value, str):
            pieces.append(value)
        else:
            _check_width(match["spec"] or "")
            pieces.append(format(value, match["spec"] or ""))
    pieces.append(_no_stray(form[at:], "{}"))
    return concat(pieces)


def _no_stray(text: str, marks: str) -> str:
    if any(mark in text for mark in marks):
        raise ValueError("format string that cannot be read")
    return text


def _check_width(spec: str) -> None:
    if any(len(digits) > 4 or int(digits) > _MAX_FIELD_WIDTH for digits in re.findall(r"\d+", spec)):
        raise ValueError(f"format width above {_MAX_FIELD_WIDTH}")
