"""The keywords of JSON Schema: which bind, which only describe, and what their values must be."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)
"""Formats that are enforced"""

ANNOTATIONS = frozenset(
    {
        "$anchor",
        "$comment",
        "$dynamicAnchor",
        "$recursiveAnchor",
        "$schema",
        "$vocabulary",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "default",
        "deprecated",
        "description",
        "discriminator",
        "example",
        "examples",
        "externalDocs",
        "readOnly",
        "title",
        "writeOnly",
        "xml",
    }
)
"""Keywords that never decide whether a value is valid, OpenAPI's among them"""

DEFINITIONS = ("$defs", "definitions")

SCHEMA_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas"})
"""Keywords whose value is an object of schemas"""
SCHEMA_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
SINGLE_SCHEMAS = frozenset(
    {
        "additionalProperties",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)

NEUTRAL: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "uniqueItems": (False,),
        "nullable": (False,),
    }
)
"""Keywords that are not supported, and the values with which they say nothing"""


def expectation(keyword: str, value: object) -> str | None:
    """Return what the value of a supported keyword must be when it is something else."""
    check = _CHECKS[keyword]
    return None if check[0](value) else check[1]


def is_number(value: object) -> bool:
    """Whether it is a finite JSON number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def is_count(value: object) -> bool:
    """Whether it is a whole number from 0 on, ``2.0`` too."""
    return is_number(value) and value >= 0 and value == math.floor(value)  # type: ignore[operator, call-overload]


def _is_schema(value: object) -> bool:
    return isinstance(value, dict | bool)


def _is_schemas(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_schema, value))


def _is_schema_map(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_schema, value.values()))


def _is_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_name_lists(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_names, value.values()))


def _is_dependencies(value: object) -> bool:
    return isinstance(value, dict) and all(_is_names(part) or _is_schema(part) for part in value.values())


def _is_types(value: object) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in TYPES for name in names)


def _is_bound(value: object) -> bool:
    return isinstance(value, bool) or is_number(value)


_Check = tuple[Callable[[object], bool], str]
_COUNT: _Check = (is_count, "a whole number from 0 on")
_NUMBER: _Check = (is_number, "a finite number")
_BOUND: _Check = (_is_bound, "a finite number")
_SCHEMA: _Check = (_is_schema, "a schema: an object, true or false")
_SCHEMAS: _Check = (_is_schemas, "a list of one or more schemas")
_SCHEMA_MAP: _Check = (_is_schema_map, "an object of schemas")
_TEXT: _Check = (lambda value: isinstance(value, str), "a string")

_CHECKS: Mapping[str, _Check] = MappingProxyType(
    {
        "$ref": _TEXT,
        "type": (_is_types, f"one or more of {', '.join(TYPES)}"),
        "const": (lambda _: True, ""),
        "enum": (lambda value: isinstance(value, list) and bool(value), "a list of one or more values"),
        "allOf": _SCHEMAS,
        "anyOf": _SCHEMAS,
        "oneOf": _SCHEMAS,
        "not": _SCHEMA,
        "if": _SCHEMA,
        "then": _SCHEMA,
        "else": _SCHEMA,
        "dependentRequired": (_is_name_lists, "an object of lists of strings"),
        "dependentSchemas": _SCHEMA_MAP,
        "dependencies": (_is_dependencies, "an object of schemas and lists of strings"),
        "propertyNames": _SCHEMA,
        "unevaluatedProperties": _SCHEMA,
        "unevaluatedItems": _SCHEMA,
        "properties": _SCHEMA_MAP,
        "patternProperties": _SCHEMA_MAP,
        "additionalProperties": _SCHEMA,
        "required": (_is_names, "a list of strings"),
        "minProperties": _COUNT,
        "maxProperties": _COUNT,
        "items": (
            lambda value: _is_schema(value) or (isinstance(value, list) and all(map(_is_schema, value))),
            "a schema: an object, true or false",
        ),
        "prefixItems": _SCHEMAS,
        "additionalItems": _SCHEMA,
        "minItems": _COUNT,
        "maxItems": _COUNT,
        "minLength": _COUNT,
        "maxLength": _COUNT,
        "pattern": _TEXT,
        "format": _TEXT,
        "minimum": _NUMBER,
        "maximum": _NUMBER,
        "exclusiveMinimum": _BOUND,
        "exclusiveMaximum": _BOUND,
        "multipleOf": (lambda value: is_number(value) and value > 0, "a number above 0"),  # type: ignore[operator]
    }
)

SUPPORTED = frozenset(_CHECKS)
