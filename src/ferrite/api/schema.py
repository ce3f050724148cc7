"""Bytes to typed request: one decode, and errors that carry the path the client wrote."""

import math
import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

from ferrite.api.errors import ApiError, invalid
from ferrite.api.unknown import drop_unknown_fields

BodyT = TypeVar("BodyT", bound=msgspec.Struct)

_AT_PATH = re.compile(r"(?s)(.*) - at `(.*)`\Z")
_OF_FIELD = re.compile(r"(?s)Object (contains unknown|missing required) field `(.*)`\Z")

_OUT_OF_RANGE = "Number out of range"
_ENTRY = "[...]"
"""How msgspec writes the key of a map."""
_MAX_SEARCHED = 4096
"""Entries of a map; the search checks it a dozen times."""
_EXACT = 2.0**53
"""From here on a float is every whole number near it."""


class BodyDecoder(Generic[BodyT]):
    """Decodes the body of one route."""

    def __init__(self, body_type: type[BodyT], *, ignore_unknown: bool) -> None:
        """``ignore_unknown`` drops unknown fields instead of refusing the request."""
        self._type = body_type
        self._decoder = msgspec.json.Decoder(body_type)
        self._ignore_unknown = ignore_unknown

    def decode(self, data: bytes) -> tuple[BodyT, list[str]]:
        """Return the request and the paths of the fields that were dropped.

        Whole numbers may be written with a fraction of zero, as JSON Schema has it. Raises ``ApiError`` 400
        with the path of the first field that is wrong.
        """
        try:
            return self._decoder.decode(data), []
        except msgspec.ValidationError as error:
            # A field is wrong, or only written in a way that the decoder does not know.
            first = str(error)
        except (msgspec.DecodeError, RecursionError) as error:
            raise _malformed(error) from None
        value: Any = None
        try:
            # The decoder stops at the first wrong field; what is behind it must be JSON all the same.
            value = _VALUES.decode(data)
            dropped = drop_unknown_fields(value, self._type) if self._ignore_unknown else []
            infinite = _infinite(value, "") if first.startswith(_OUT_OF_RANGE) else None
            if infinite is not None:
                raise invalid(f"`{infinite}`: {_OUT_OF_RANGE}.", infinite)
            return msgspec.convert(value, self._type), dropped
        except msgspec.ValidationError as error:
            raise _refusal(error, value, self._type) from None
        except (msgspec.DecodeError, RecursionError) as error:
            raise _malformed(error) from None


def _number(text: str) -> float | int:
    number = float(text)
    return int(number) if abs(number) < _EXACT and number.is_integer() else number


def _infinite(value: Any, path: str) -> str | None:
    """Return the path of a number that Python cannot hold, which the first decoder has refused."""
    if isinstance(value, float):
        return path if math.isinf(value) else None
    found: Iterator[str | None] = iter(())
    if isinstance(value, dict):
        found = (_infinite(each, f"{path}.{key}" if path else key) for key, each in value.items())
    elif isinstance(value, list):
        found = (_infinite(each, f"{path}[{index}]") for index, each in enumerate(value))
    return next(filter(None, found), None)


_VALUES = msgspec.json.Decoder(float_hook=_number)


def _malformed(error: Exception) -> ApiError:
    reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
    return invalid(f"The request body is not valid JSON: {reason}.", None, "invalid_json")


def _refusal(error: msgspec.ValidationError, value: Any, body_type: type[msgspec.Struct]) -> ApiError:
    """Turn msgspec's message and path (``… - at `$.messages[0]```) into ours."""
    at_path = _AT_PATH.match(str(error))
    message = at_path[1] if at_path else str(error)
    path = at_path[2].rpartition("`")[2] if at_path else ""
    if path.endswith(_ENTRY):
        path = path.removesuffix(_ENTRY) + _wrong_entry(str(error), path, value, body_type)
    path = path.removeprefix("$").removeprefix(".")
    of_field = _OF_FIELD.match(message)
    if of_field is None:
        return invalid(f"`{path}`: {message}." if path else f"{message}.", path or None)
    field = f"{path}.{of_field[2]}" if path else of_field[2]
    if of_field[1] == "missing required":
        return invalid(f"`{field}` is required.", field, "missing_field")
    hint = "--unknown-fields ignore drops such fields"
    return invalid(f"Unknown field `{field}` ({hint}).", field, "unknown_field")


def _wrong_entry(error: str, path: str, value: Any, body_type: type[msgspec.Struct]) -> str:
    """Return the key of the map at ``path`` that ``error`` is about, as a part of a path; "" if unknown.

    msgspec does not tell it. It is the last one of the fewest entries with which the error stays.
    """
    name = path.removeprefix("$.").removesuffix(_ENTRY)
    entries = list(value[name].items()) if isinstance(value.get(name), dict) else []

    def fails(count: int) -> bool:
        try:
            msgspec.convert({**value, name: dict(entries[:count])}, body_type)
        except msgspec.ValidationError as found:
            return str(found) == error
        return False

    if len(entries) > _MAX_SEARCHED:
        return ""
    index = bisect_left(range(len(entries)), 1, key=lambda index: int(fails(index + 1)))
    return f".{entries[index][0]}" if index < len(entries) else ""
