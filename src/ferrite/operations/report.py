"""Reports as JSON or as ``key=value`` lines: the same names in both."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def as_json(report: Mapping[str, Any]) -> str:
    """Return the report as JSON."""
    return json.dumps(rounded(report), indent=1) + "\n"


def as_lines(report: Mapping[str, Any]) -> str:
    """Return one ``key=value`` line for each value; names of inner objects are joined by dots."""
    return "".join(f"{name}={_written(value)}\n" for name, value in flat(rounded(report)))


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value that is not an object or a list with its full name."""
    items: Iterator[tuple[Any, Any]]
    if isinstance(value, Mapping):
        items = iter(value.items())
    elif isinstance(value, Sequence) and not isinstance(value, str):
        items = iter(enumerate(value))
    else:
        yield name, value
        return
    for key, item in items:
        yield from flat(item, f"{name}.{key}" if name else str(key))


def rounded(value: Any) -> Any:
    """Return ``value`` with its floats cut to microseconds and their like."""
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, Mapping):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [rounded(item) for item in value]
    return value


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
