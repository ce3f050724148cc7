"""A reader of Python keyword arguments that writes JSON, one character at a time.

Read is what ``(a=1, b="x")`` may hold in a call that a model writes: names, strings, numbers, ``True``,
``False``, ``None`` (and their JSON spellings), lists, tuples and dicts. The JSON is written as it is
read: strings character by character, numbers and names when they end, commas when a value follows.
"""

import json
import math
import re
from dataclasses import dataclass

from ferrite.toolcalls.json_text import MAX_DEPTH, escaped

_BLANKS = " \t\r\n"
_WORD = re.compile(r"[A-Za-z0-9_.+-]+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NAMED = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_SIMPLE_ESCAPES = dict(zip("ntrbfav0\\'\"/", "\n\t\r\b\f\a\v\0\\'\"/", strict=True)) | {"\n": ""}
_HEX_ESCAPES = {"x": 2, "u": 4, "U": 8}
_MAX_WORD = 512
_CLOSING = {"(": ")", "[": "]", "<": ")", "{": "}"}
_WRITTEN = {"(": "}", "[": "]", "<": "]", "{": "}"}


@dataclass(frozen=True, slots=True)
class PythonReader:
    """Where a reader stands, behind the opening parenthesis of a call, whose ``{`` is already written."""

    mode: str = "name"
    """``name`` (argument or closing), ``in_name``, ``equals``, ``value``, ``item`` (value or closing),
    ``key`` (key or closing), ``colon``, ``next`` (comma or closing), ``string``, ``key_string``,
    ``word``, ``done``"""
    stack: str = "("
    """Open brackets, outermost first; ``<`` is a tuple's."""
    token: str = ""
    """Escape, number or name that has begun."""
    quote: str = ""
    """How the string began."""
    comma: bool = False
    """A comma is due before the next item."""

    @property
    def done(self) -> bool:
        """The arguments are whole."""
        return self.mode == "done"

    def read(self, character: str) -> "tuple[PythonReader, str] | None":
        """Take a character; returns the next state and the JSON to write, or None where it is no call."""
        if self.mode in ("string", "key_string"):
            return self._in_string(character)
        if self.mode == "in_name":
            return self._in_name(character)
        if self.mode == "word":
            return self._in_word(character)
        if self.mode == "done":
            return None
        if character in _BLANKS:
            return self, ""
        return self._between(character)

    def _between(self, character: str) -> "tuple[PythonReader, str] | None":
        mode, stack = self.mode, self.stack
        if mode == "equals":
            return (PythonReader("value", stack), ": ") if character == "=" else None
        if mode == "colon":
            return (PythonReader("value", stack), ": ") if character == ":" else None
        closes = character == _CLOSING[stack[-1]]
        if closes and mode in ("name", "item", "key", "next"):
            left = stack[:-1]
            return PythonReader("next" if left else "done", left), _WRITTEN[stack[-1]]
        if mode == "next":
            following = {"(": "name", "{": "key"}.get(stack[-1], "item")
            return (PythonReader(following, stack, comma=True), "") if character == "," else None
        due = ", " if self.comma else ""
        if mode == "name":
            return (PythonReader("in_name", stack, character), due) if _NAME.fullmatch(character) else None
        if mode == "key":
            return (
                (PythonReader("key_string", stack, "", character), due + '"') if character in "'\"" else None
            )
        opened = self._opened(character)
        return (opened[0], due + opened[1]) if opened else None

    def _opened(self, character: str) -> "tuple[PythonReader, str] | None":
        if character in "'\"":
            return PythonReader("string", self.stack, "", character), '"'
        if character in "[({":
            if len(self.stack) == MAX_DEPTH:
                return None
            bracket = "<" if character == "(" else character
            written = "{" if bracket == "{" else "["
            return PythonReader("key" if bracket == "{" else "item", self.stack + bracket), written
        return (PythonReader("word", self.stack, character), "") if _WORD.fullmatch(character) else None

    def _in_name(self, character: str) -> "tuple[PythonReader, str] | None":
        name = self.token + character
        if _NAME.fullmatch(name):
            return (PythonReader("in_name", self.stack, name), "") if len(name) <= _MAX_WORD else None
        following = PythonReader("equals", self.stack).read(character)
        return (following[0], f'"{self.token}"{following[1]}') if following else None

    def _in_word(self, character: str) -> "tuple[PythonReader, str] | None":
        if _WORD.fullmatch(character):
            word = self.token + character
            return (PythonReader("word", self.stack, word), "") if len(word) <= _MAX_WORD else None
        written = _NAMED.get(self.token) or _number(self.token)
        following = PythonReader("next", self.stack).read(character) if written else None
        return (following[0], f"{written}{following[1]}") if following else None

    def _in_string(self, character: str) -> "tuple[PythonReader, str] | None":
        if self.token:
            return self._in_escape(self.token + character)
        if character == "\\":
            return PythonReader(self.mode, self.stack, character, self.quote), ""
        if character == self.quote:
            return PythonReader("colon" if self.mode == "key_string" else "next", self.stack), '"'
        return self, escaped(character)

    def _in_escape(self, escape: str) -> "tuple[PythonReader, str] | None":
        string = PythonReader(self.mode, self.stack, "", self.quote)
        if escape[1] in _SIMPLE_ESCAPES:
            return string, "".join(map(escaped, _SIMPLE_ESCAPES[escape[1]]))
        digits = _HEX_ESCAPES.get(escape[1])
        if digits is None:
            # Python keeps the backslash of an escape that it does not know.
            return string, "".join(map(escaped, escape))
        if not re.fullmatch(r"[0-9a-fA-F]*", escape[2:]):
            return None
        if len(escape) < 2 + digits:
            return PythonReader(self.mode, self.stack, escape, self.quote), ""
        code = int(escape[2:], 16)
        return (string, escaped(chr(code))) if code <= 0x10FFFF else None


def _number(word: str) -> str | None:
    """A Python number as JSON writes it."""
    if _JSON_NUMBER.fullmatch(word):
        return word
    try:
        value = int(word, 0)
    except ValueError:
        pass
    else:
        return str(value)
    try:
        real = float(word)
    except ValueError:
        return None
    return json.dumps(real) if math.isfinite(real) else None
