"""Dropping the fields that a request type does not have (``--unknown-fields ignore``)."""

from typing import Any

import msgspec
from msgspec import inspect


def drop_unknown_fields(value: Any, body_type: type[msgspec.Struct]) -> list[str]:
    """Remove in place, at any depth, what ``body_type`` does not name; return the removed paths."""
    dropped: list[str] = []
    _drop(value, inspect.type_info(body_type), "", dropped)
    return dropped


def _drop(value: Any, expected: inspect.Type, path: str, dropped: list[str]) -> None:
    alternatives = expected.types if isinstance(expected, inspect.UnionType) else (expected,)
    if isinstance(value, dict):
        struct = _struct_for(value, alternatives)
        if struct is not None:
            _drop_from_object(value, struct, path, dropped)
    elif isinstance(value, list):
        for array in alternatives:
            if isinstance(array, inspect.ListType):
                for index, item in enumerate(value):
                    if isinstance(item, dict | list):
                        _drop(item, array.item_type, f"{path}[{index}]", dropped)


def _struct_for(value: dict[str, Any], alternatives: tuple[inspect.Type, ...]) -> inspect.StructType | None:
    structs = [struct for struct in alternatives if isinstance(struct, inspect.StructType)]
    for struct in structs:
        if struct.tag_field is None or value.get(struct.tag_field) == struct.tag:
            return struct
    return None


def _drop_from_object(
    value: dict[str, Any], struct: inspect.StructType, path: str, dropped: list[str]
) -> None:
    fields = {field.encode_name: field.type for field in struct.fields}
    for name in list(value):
        at = f"{path}.{name}" if path else name
        if name in fields:
            _drop(value[name], fields[name], at, dropped)
        elif name != struct.tag_field:
            del value[name]
            dropped.append(at)
