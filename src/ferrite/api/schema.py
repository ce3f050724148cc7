"""Bytes to typed request: one decode, and errors that carry the path the client wrote."""

import re
from typing import Any, Generic, NoReturn, TypeVar

import msgspec

from ferrite.api.errors import ApiError, invalid
from ferrite.api.unknown import drop_unknown_fields

BodyT = TypeVar("BodyT", bound=msgspec.Struct)

_AT_PATH = re.compile(r"(?s)(.*) - at `(.*)`\Z")
_OF_FIELD = re.compile(r"(?s)Object (contains unknown|missing required) field `(.*)`\Z")


class BodyDecoder(Generic[BodyT]):
    """Decodes the body of one route."""

    def __init__(self, body_type: type[BodyT], *, ignore_unknown: bool) -> None:
        """``ignore_unknown`` drops unknown fields instead of refusing the request."""
        self._type = body_type
        self._decoder = msgspec.json.Decoder(body_type)
        self._ignore_unknown = ignore_unknown

    def decode(self, data: bytes) -> tuple[BodyT, list[str]]:
        """Return the request and the paths of the fields that were dropped.

        Raises ``ApiError`` 400 with the path of the first field that is wrong.
        """
        try:
            return self._decoder.decode(data), []
        except msgspec.ValidationError as error:
            # The decoder stops at the first wrong field; what is behind it must be JSON all the same.
            _check_json(data)
            unknown = _OF_FIELD.match(_AT_PATH.sub(r"\1", str(error)))
            if not (self._ignore_unknown and unknown and unknown[1] == "contains unknown"):
                _raise_invalid(error)
        except (msgspec.DecodeError, RecursionError) as error:
            raise _malformed(error) from None
        return self._decode_leniently(data)

    def _decode_leniently(self, data: bytes) -> tuple[BodyT, list[str]]:
        try:
            value: Any = msgspec.json.decode(data)
            dropped = drop_unknown_fields(value, self._type)
            return msgspec.convert(value, self._type), dropped
        except msgspec.ValidationError as error:
            _raise_invalid(error)
        except (msgspec.DecodeError, RecursionError) as error:
            raise _malformed(error) from None


def _check_json(data: bytes) -> None:
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _malformed(error) from None


def _malformed(error: Exception) -> ApiError:
    reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
    return invalid(f"The request body is not valid JSON: {reason}.", None, "invalid_json")


def _raise_invalid(error: msgspec.ValidationError) -> NoReturn:
    """Turn msgspec's message and path (``… - at `$.messages[0]```) into ours."""
    at_path = _AT_PATH.match(str(error))
    message = at_path[1] if at_path else str(error)
    path = _client_path(at_path[2]) if at_path else ""
    of_field = _OF_FIELD.match(message)
    if of_field is None:
        raise invalid(f"`{path}`: {message}." if path else f"{message}.", path or None) from None
    field = f"{path}.{of_field[2]}" if path else of_field[2]
    if of_field[1] == "missing required":
        raise invalid(f"`{field}` is required.", field, "missing_field") from None
    hint = "--unknown-fields ignore drops such fields"
    raise invalid(f"Unknown field `{field}` ({hint}).", field, "unknown_field") from None


def _client_path(path: str) -> str:
    # A dictionary value has the path `$.logit_bias[...]`; the field is what the client can find.
    return path.rpartition("`")[2].removeprefix("$").removeprefix(".").replace("[...]", "")
