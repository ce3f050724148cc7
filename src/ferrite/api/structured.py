"""JSON answers: what ``response_format`` asks for, its grammar, and a cache of compiled grammars."""

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ferrite.api.errors import ApiError, invalid
from ferrite.api.wire import JsonObjectFormat, JsonSchemaFormat, ResponseFormat
from ferrite.grammar import Grammar, GrammarError

MAX_CACHED_GRAMMARS = 256
MAX_CACHED_BYTES = 16 << 20
"""Of schemas and of the grammars made of them."""
MAX_PLACE_CHARACTERS = 200
"""In a message; the names in a schema are as long as the client likes."""

T = TypeVar("T", Grammar, str)


class Grammars(Protocol):
    """Makes grammars for one model (``ferrite.grammar.GrammarCompiler``); for the prompt workers."""

    def compile_json_object(self) -> Grammar:
        """Return the grammar of any JSON object."""

    def compile_json_schema(self, schema: Mapping[str, object], *, strict: bool) -> Grammar:
        """Return the grammar of what ``schema`` allows; raises ``GrammarError``."""

    def compile_lark(self, text: str) -> Grammar:
        """Return the grammar of a Lark text; raises ``GrammarError``."""

    def schema_source(self, schema: Mapping[str, object], *, strict: bool) -> str:
        """Return ``schema`` as what follows ``%json`` in a Lark text; raises ``GrammarError``."""


class CachedGrammars:
    """Grammars that are made once for as long as they are used; the least recently used ones are dropped.

    The key is the content: an equal schema in another request is the same grammar.
    """

    def __init__(
        self, grammars: Grammars, *, max_entries: int = MAX_CACHED_GRAMMARS, max_bytes: int = MAX_CACHED_BYTES
    ) -> None:
        """Both limits hold together."""
        self._grammars = grammars
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._made: OrderedDict[tuple[object, ...], tuple[Grammar | str, int]] = OrderedDict()
        self._bytes = 0

    def compile_json_object(self) -> Grammar:
        """Return the grammar of any JSON object."""
        return self._kept(("object",), self._grammars.compile_json_object)

    def compile_json_schema(self, schema: Mapping[str, object], *, strict: bool) -> Grammar:
        """Return the grammar of what ``schema`` allows; raises ``GrammarError``."""
        make = lambda: self._grammars.compile_json_schema(schema, strict=strict)  # noqa: E731
        return self._kept(("schema", strict, _written(schema)), make)

    def compile_lark(self, text: str) -> Grammar:
        """Return the grammar of a Lark text; raises ``GrammarError``."""
        return self._kept(("lark", text), lambda: self._grammars.compile_lark(text))

    def schema_source(self, schema: Mapping[str, object], *, strict: bool) -> str:
        """Return ``schema`` as what follows ``%json`` in a Lark text; raises ``GrammarError``."""
        make = lambda: self._grammars.schema_source(schema, strict=strict)  # noqa: E731
        return self._kept(("source", strict, _written(schema)), make)

    def _kept(self, key: tuple[object, ...], make: Callable[[], T]) -> T:
        if None in key:
            return make()
        with self._lock:
            found = self._made.get(key)
            if found is not None:
                self._made.move_to_end(key)
                return found[0]  # type: ignore[return-value]  # of the key's kind
        made = make()
        text = made if isinstance(made, str) else made.source
        size = len(text) + sum(len(part) for part in key if isinstance(part, str))
        with self._lock:
            if size <= self._max_bytes and key not in self._made:
                self._made[key] = (made, size)
                self._bytes += size
            while len(self._made) > self._max_entries or self._bytes > self._max_bytes:
                self._bytes -= self._made.popitem(last=False)[1][1]
        return made


@dataclass(frozen=True, slots=True)
class JsonForm:
    """The content of the answer is JSON."""

    schema: Mapping[str, object] | None
    """None: any object."""
    strict: bool
    """Refuse also what JSON Schema takes for an annotation and we cannot enforce."""
    param: str
    """Where the client wrote the schema."""

    def grammar(self, grammars: Grammars) -> Grammar:
        """Return the grammar of an answer that is nothing else; raises 400."""
        if self.schema is None:
            return grammars.compile_json_object()
        try:
            return grammars.compile_json_schema(self.schema, strict=self.strict)
        except GrammarError as error:
            raise schema_refusal(error, self.schema, self.param) from error

    def source(self, grammars: Grammars) -> str:
        """Return what follows ``%json`` in a larger grammar; raises 400."""
        schema: Mapping[str, object] = {"type": "object"} if self.schema is None else self.schema
        try:
            return grammars.schema_source(schema, strict=self.strict)
        except GrammarError as error:
            raise schema_refusal(error, schema, self.param) from error


def json_form(written: ResponseFormat | None) -> JsonForm | None:
    """Return what ``response_format`` asks for; None for plain text."""
    match written:
        case JsonObjectFormat():
            return JsonForm(None, strict=False, param="response_format")
        case JsonSchemaFormat(json_schema=asked):
            param = "response_format.json_schema.schema"
            return JsonForm(asked.schema, strict=bool(asked.strict), param=param)
        case _:
            return None


def schema_refusal(error: GrammarError, schema: object, param: str) -> ApiError:
    """400 that names the keyword of ``schema``, which the client wrote at ``param``, and its place."""
    place = param + _place(error.path, schema)
    where = f"{place}.{error.keyword}" if error.keyword else place
    shown = place if len(place) <= MAX_PLACE_CHARACTERS else f"{place[:MAX_PLACE_CHARACTERS]}…"
    named = f"`{error.keyword}` of `{shown}`" if error.keyword else f"`{shown}`"
    return invalid(f"{named} cannot be enforced: {error.reason}.", where, "unsupported_schema")


def _place(pointer: str, schema: object) -> str:
    """Return a JSON pointer into ``schema`` (``#/items/0``) as clients write paths (``.items[0]``)."""
    path = ""
    for raw in pointer.split("/")[1:]:
        part = raw.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, list) and part.isdecimal() and int(part) < len(schema):
            path += f"[{part}]"
            schema = schema[int(part)]
        else:
            path += f".{part}"
            schema = schema.get(part) if isinstance(schema, Mapping) else None
    return path


def _written(schema: Mapping[str, object]) -> str | None:
    """Return the schema as text, the order of its keys included: it is that of the answer.

    None where it is nested too deeply for that, and for a grammar.
    """
    try:
        return json.dumps(schema, separators=(",", ":"))
    except RecursionError:
        return None
