"""The modes of the call machine inside a call: objects, their arguments, and calls by name."""

import re

from ferrite.toolcalls.call_state import BLANKS, MAX_NAME, Run
from ferrite.toolcalls.families import ARGUMENTS_MARK, CALL_ID_MARK, Syntax
from ferrite.toolcalls.json_text import JsonReader
from ferrite.toolcalls.python_text import PythonReader

NAME = re.compile(r"[A-Za-z0-9_.-]+")
_NAME_KEYS = ("name", "function")
_ARGUMENT_KEYS = ("arguments", "parameters")
_KEYS = (*_NAME_KEYS, *_ARGUMENT_KEYS, "type", "id")
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "/": "/"}
_NOTHING_READ = JsonReader()


class CallModes(Run):
    """Modes from the opening of a call to its end."""

    MODES = {  # noqa: RUF012  never changed
        "key": "_at_key",
        "in_key": "_in_key",
        "colon": "_at_colon",
        "value": "_at_value",
        "in_name": "_in_name",
        "skip": "_skip",
        "next": "_at_next",
        "arguments": "_argument",
        "in_quoted": "_in_quoted",
        "called": "_called",
        "mark": "_in_mark",
        "in_id": "_in_id",
        "after_mark": "_after_mark",
    }

    def _at_key(self, character: str) -> None:
        if character == '"':
            self._partial, self._mode = "", "in_key"
        elif character == "}":
            self._object_ends()
        elif character not in BLANKS:
            self._fail(character)

    def _in_key(self, character: str) -> None:
        if character == '"':
            self._key, self._partial, self._mode = self._partial, "", "colon"
            first = self._name is None and not self._arguments
            if not self._over and (self._key not in _KEYS or (first and self._key == "id")):
                self._fail(character)
        elif self._over:
            # Whatever follows the arguments is skipped.
            self._partial = "other"
        else:
            self._partial += character
            if not any(key.startswith(self._partial) for key in _KEYS):
                self._fail(character)

    def _at_colon(self, character: str) -> None:
        if character == ":":
            self._mode = "value"
        elif character not in BLANKS:
            self._fail(character)

    def _at_value(self, character: str) -> None:
        if character in BLANKS:
            return
        if not self._over and (self._key == "type" or (self._key in _NAME_KEYS and self._name is None)):
            if character == '"':
                self._partial, self._mode = "", "in_name"
            else:
                self._fail(character)
        elif self._key in _ARGUMENT_KEYS and not (self._over or self._arguments) and character != "n":
            if character == '"':
                self._reader, self._partial, self._mode = _NOTHING_READ, "", "in_quoted"
            else:
                self._begin_arguments(character)
        else:
            self._reader, self._mode = _NOTHING_READ, "skip"
            self._skip(character)

    def _in_name(self, character: str) -> None:
        if character == '"':
            self._named()
        elif len(self._partial) == MAX_NAME or not NAME.fullmatch(character):
            self._fail(character)
        else:
            self._partial += character

    def _named(self) -> None:
        name, self._partial, self._mode = self._partial, "", "next"
        if self._key == "type":
            if name != "function":
                self._fail("")
            return
        if name not in self._syntax.names:
            self._fail("")
            return
        self._name = name
        if self._arguments:
            written, self._arguments, self._size = self._arguments, "", 0
            self._report(name)
            self._write(written)
            self._end_call()

    def _skip(self, character: str) -> None:
        assert isinstance(self._reader, JsonReader)
        step = self._reader.read(character)
        if step is None:
            self._fail(character)
            return
        self._reader, written = step
        if self._reader.done:
            self._mode = "next"
            if not written:
                # A number, which ended with this character.
                self._at_next(character)

    def _at_next(self, character: str) -> None:
        if character == ",":
            self._mode = "key"
        elif character == "}":
            self._object_ends()
        elif character not in BLANKS:
            self._fail(character)

    def _object_ends(self) -> None:
        if self._over:
            self._leave("")
        elif self._name is None:
            self._fail("")
        else:
            self._report(self._name)
            self._write("{}")
            self._end_call()
            if self._mode != "ended":
                self._leave("")

    def _begin_arguments(self, character: str) -> None:
        if character != "{":
            self._fail(character)
            return
        self._reader, self._mode = _NOTHING_READ, "arguments"
        if self._name is not None:
            self._report(self._name)
        self._argument(character)

    def _argument(self, character: str) -> None:
        assert self._reader is not None
        step = self._reader.read(character)
        if step is None:
            self._fail(character)
            return
        self._reader, written = step
        if written and not self._reported and isinstance(self._reader, PythonReader):
            # Positions have no names, so a call is one only from its first keyword on.
            assert self._name is not None
            self._report(self._name)
            self._write("{")
        self._write(written)
        if self._reader.done and self._mode == "arguments":
            self._mode = "next"
            if self._reported:
                self._end_call()
            if self._family.syntax in (Syntax.PYTHON, Syntax.NAMED) and self._mode != "ended":
                self._leave("")

    def _in_quoted(self, character: str) -> None:
        """Arguments that the model wrote as a string of JSON."""
        if self._partial:
            escape = self._partial + character
            self._partial = escape if escape[1] == "u" and len(escape) < 6 else ""
            if not self._partial:
                self._quoted(_unescaped(escape), character)
        elif character == "\\":
            self._partial = character
        elif character != '"':
            self._quoted(character, character)
        elif self._reader != _NOTHING_READ and not (self._reader and self._reader.done):
            self._fail(character)
        else:
            self._mode = "next"
            if self._reported:
                self._end_call()

    def _quoted(self, decoded: str | None, character: str) -> None:
        assert self._reader is not None
        untouched = self._reader == _NOTHING_READ
        if decoded is not None and decoded in BLANKS and (untouched or self._reader.done):
            return
        if decoded is None or (untouched and decoded != "{"):
            self._fail(character)
            return
        if untouched and self._name is not None:
            self._report(self._name)
        self._argument(decoded)

    def _called(self, character: str) -> None:
        """Inside the name of a call that is no object."""
        if NAME.fullmatch(character) and len(self._partial) < MAX_NAME:
            self._partial += character
            return
        python = self._family.syntax is Syntax.PYTHON
        if self._partial not in self._syntax.names or character not in ("(" if python else "[{"):
            self._fail(character)
            return
        self._name, self._partial = self._partial, ""
        if python:
            self._reader, self._mode = PythonReader(), "arguments"
        elif character == "{":
            self._begin_arguments(character)
        else:
            self._partial, self._mode = character, "mark"

    def _in_mark(self, character: str) -> None:
        self._partial += character
        if self._partial == ARGUMENTS_MARK:
            self._partial, self._mode = "", "after_mark"
        elif self._partial == CALL_ID_MARK:
            self._partial, self._mode = "", "in_id"
        elif not (ARGUMENTS_MARK.startswith(self._partial) or CALL_ID_MARK.startswith(self._partial)):
            self._fail(character)

    def _in_id(self, character: str) -> None:
        if character == "[":
            self._partial, self._mode = character, "mark"

    def _after_mark(self, character: str) -> None:
        if character not in BLANKS:
            self._begin_arguments(character)


def _unescaped(escape: str) -> str | None:
    if escape[1] == "u":
        return chr(int(escape[2:], 16)) if re.fullmatch("[0-9a-fA-F]{4}", escape[2:]) else None
    return _ESCAPES.get(escape[1])
