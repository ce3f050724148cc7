"""A reader of JSON text, one character at a time: it says where a value ends and what is no JSON."""

import re
from dataclasses import dataclass

MAX_DEPTH = 64
"""Objects and arrays inside each other."""

_BLANKS = " \t\r\n"
_HEX = "0123456789abcdefABCDEF"
_LITERALS = {"t": "true", "f": "false", "n": "null"}
_ESCAPES = '"\\/bfnrtu'
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NUMBER_BEGUN = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:(?<=[0-9])[eE][+-]?[0-9]*)?)?")
_MAX_NUMBER = 512


@dataclass(frozen=True, slots=True)
class JsonReader:
    """Where a reader stands in one JSON value.

    Raw control characters inside strings, which JSON forbids and small models write, are escaped.
    """

    mode: str = "value"
    """``value``, ``first`` (value or ``]``), ``key``, ``first_key`` (key or ``}``), ``colon``, ``next``
    (comma or closing), ``string``, ``key_string``, ``word``, ``done``"""
    stack: str = ""
    """Open brackets, outermost first."""
    token: str = ""
    """Escape, number or literal that has begun."""

    @property
    def done(self) -> bool:
        """The value is whole."""
        return self.mode == "done"

    def read(self, character: str) -> "tuple[JsonReader, str] | None":
        """Take a character; returns the next state and what to write for it, or None where it is no JSON.

        A number at the top level ends only with the character behind it, which is then not read.
        """
        if self.mode in ("string", "key_string"):
            return self._in_string(character)
        if self.mode == "word":
            return self._in_word(character)
        if self.mode == "done":
            return None
        if character in _BLANKS:
            return self, character
        return self._between(character)

    def _between(self, character: str) -> "tuple[JsonReader, str] | None":
        mode = self.mode
        if mode == "colon":
            return (JsonReader("value", self.stack), ":") if character == ":" else None
        if mode in ("key", "first_key"):
            if character == '"':
                return JsonReader("key_string", self.stack), character
            return (self._closed(), character) if (mode, character) == ("first_key", "}") else None
        if mode == "next":
            if character == ",":
                return JsonReader("key" if self.stack[-1] == "{" else "value", self.stack), character
            return (self._closed(), character) if self.stack[-1] + character in ("{}", "[]") else None
        if (mode, character) == ("first", "]"):
            return self._closed(), character
        return self._opened(character)

    def _opened(self, character: str) -> "tuple[JsonReader, str] | None":
        if character in "{[":
            if len(self.stack) == MAX_DEPTH:
                return None
            return JsonReader("first_key" if character == "{" else "first", self.stack + character), character
        if character == '"':
            return JsonReader("string", self.stack), character
        if character in "-0123456789tfn":
            return JsonReader("word", self.stack, character), character
        return None

    def _in_string(self, character: str) -> "tuple[JsonReader, str] | None":
        token = self.token
        if token:
            token += character
            if len(token) == 2 and character not in _ESCAPES:
                return None
            if len(token) > 2 and character not in _HEX:
                return None
            whole = len(token) == 6 or (len(token) == 2 and character != "u")
            return JsonReader(self.mode, self.stack, "" if whole else token), character
        if character == "\\":
            return JsonReader(self.mode, self.stack, character), character
        if character == '"':
            return (
                JsonReader("colon", self.stack) if self.mode == "key_string" else self._ended()
            ), character
        return self, escaped(character) if character < " " else character

    def _in_word(self, character: str) -> "tuple[JsonReader, str] | None":
        token = self.token
        literal = _LITERALS.get(token[0])
        if literal is not None:
            token += character
            if not literal.startswith(token):
                return None
            return (self._ended() if token == literal else JsonReader("word", self.stack, token)), character
        if character in "0123456789.eE+-":
            token += character
            begun = len(token) <= _MAX_NUMBER and _NUMBER_BEGUN.fullmatch(token)
            return (JsonReader("word", self.stack, token), character) if begun else None
        if not _NUMBER.fullmatch(token):
            return None
        ended = self._ended()
        return (ended, "") if ended.done else ended.read(character)

    def _closed(self) -> "JsonReader":
        return JsonReader("next", self.stack[:-1]) if len(self.stack) > 1 else JsonReader("done", "")

    def _ended(self) -> "JsonReader":
        return JsonReader("next" if self.stack else "done", self.stack)


def escaped(character: str) -> str:
    """The character as a JSON string holds it."""
    short = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}.get(character)
    if short is not None:
        return short
    lone = character < " " or "\ud800" <= character <= "\udfff"
    return f"\\u{ord(character):04x}" if lone else character
