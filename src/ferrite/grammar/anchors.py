"""The names that a schema document gives its parts: ``$anchor``, and ``$id`` with a fragment alone."""

from collections.abc import Iterator, Mapping

from ferrite.grammar.keywords import DEFINITIONS, SCHEMA_LISTS, SCHEMA_MAPS, SINGLE_SCHEMAS

Place = tuple[str | int, ...]


def find_anchors(document: object) -> dict[str, tuple[object, Place] | None]:
    """Return name → schema and its place; None for a name that is given twice."""
    found: dict[str, tuple[object, Place] | None] = {}
    waiting: list[tuple[object, Place]] = [(document, ())]
    while waiting:
        schema, place = waiting.pop()
        if not isinstance(schema, Mapping):
            continue
        for name in _names(schema):
            found[name] = None if name in found else (schema, place)
        for part, steps in _parts(schema):
            waiting.append((part, (*place, *steps)))
    return found


def _names(schema: Mapping[str, object]) -> set[str]:
    anchors = [schema.get("$anchor"), schema.get("$dynamicAnchor")]
    identities = [schema.get("$id"), schema.get("id")]
    names = {name for name in anchors if isinstance(name, str)}
    return names | {name[1:] for name in identities if isinstance(name, str) and name.startswith("#")}


def _parts(schema: Mapping[str, object]) -> Iterator[tuple[object, Place]]:
    for keyword, value in schema.items():
        if keyword in SINGLE_SCHEMAS or keyword in ("additionalItems", "contains"):
            yield value, (keyword,)
        if isinstance(value, list) and (keyword in SCHEMA_LISTS or keyword == "items"):
            yield from ((part, (keyword, index)) for index, part in enumerate(value))
        elif isinstance(value, Mapping) and (keyword in SCHEMA_MAPS or keyword in DEFINITIONS):
            yield from ((part, (keyword, name)) for name, part in value.items())
