"""Regular expressions of JSON Schema (ECMA 262) in the syntax of the grammar compiler (Rust's regex)."""

import re

from ferrite.grammar.errors import quoted
from ferrite.grammar.limits import MAX_PATTERN_CHARS, MAX_PATTERN_GROUPS

ANCHORS = {"A": "^", "Z": "$", "z": "$"}
"""Escapes of Python and Rust, whose users write them; ECMA 262 gives them no meaning"""
CHARACTERS = {"0": r"\x00", "/": "/"}
ANY_CHARACTER = r"[^\n\r\u2028\u2029]"
CLASS_OPERATORS = frozenset("[&~")
"""Characters that are themselves in a class of ECMA 262 and operators in one of Rust"""

QUANTIFIER = re.compile(r"\{[0-9]+(,[0-9]*)?\}")
BRACED_ESCAPE = re.compile(r"\\[pPux]\{[^{}]*\}")
LOOK_AROUND = re.compile(r"\(\?<?[=!]")
OTHER_GROUP = re.compile(r"\(\?(?!:|P?<)..?")


def translate(pattern: str) -> str:
    """Return the pattern in the compiler's syntax; raises ``ValueError`` for what it cannot have.

    What the compiler itself refuses is left to it.
    """
    return _Translation(pattern).run()


class _Translation:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._out: list[str] = []

    def run(self) -> str:
        if len(self._pattern) > MAX_PATTERN_CHARS:
            raise self._error(f"{len(self._pattern)} characters, the limit is {MAX_PATTERN_CHARS}")
        depth = 0
        while self._at < len(self._pattern):
            match self._pattern[self._at]:
                case "\\":
                    self._escape(ANCHORS | CHARACTERS)
                case "[":
                    self._character_class()
                case "(":
                    depth += 1
                    if depth > MAX_PATTERN_GROUPS:
                        raise self._error(f"groups nested deeper than {MAX_PATTERN_GROUPS}")
                    self._group()
                case ")":
                    depth -= 1
                    self._copy(1)
                case ".":
                    self._put(ANY_CHARACTER, 1)
                case "{":
                    quantifier = QUANTIFIER.match(self._pattern, self._at)
                    if quantifier:
                        self._copy(len(quantifier[0]))
                    else:
                        self._put(r"\{", 1)
                case "}":
                    self._put(r"\}", 1)
                case _:
                    self._copy(1)
        return "".join(self._out)

    def _copy(self, count: int) -> None:
        self._put(self._pattern[self._at : self._at + count], count)

    def _put(self, text: str, count: int) -> None:
        self._out.append(text)
        self._at += count

    def _escape(self, replacements: dict[str, str]) -> None:
        escaped = self._pattern[self._at + 1 : self._at + 2]
        braced = BRACED_ESCAPE.match(self._pattern, self._at)
        if not escaped:
            raise self._error(r"it ends with a '\'")
        if escaped in "bB":
            raise self._error(rf"the word boundary \{escaped} is not supported")
        if escaped in "123456789k":
            raise self._error("back-references are not supported")
        if braced:
            self._copy(len(braced[0]))
        elif escaped == "c":
            letter = self._pattern[self._at + 2 : self._at + 3]
            if not (letter.isascii() and letter.isalpha()):
                raise self._error(r"\c needs a letter")
            self._put(rf"\x{ord(letter) % 32:02x}", 3)
        elif escaped in replacements:
            self._put(replacements[escaped], 2)
        else:
            self._copy(2)

    def _group(self) -> None:
        look = LOOK_AROUND.match(self._pattern, self._at)
        if look:
            raise self._error(f"look-around {look[0]} is not supported")
        other = OTHER_GROUP.match(self._pattern, self._at)
        if other:
            raise self._error(f"the group {other[0]} is not supported")
        self._copy(1)

    def _character_class(self) -> None:
        for empty, meaning in (("[]", r"[^\s\S]"), ("[^]", r"[\s\S]")):
            if self._pattern.startswith(empty, self._at):
                self._put(meaning, len(empty))
                return
        self._copy(2 if self._pattern.startswith("[^", self._at) else 1)
        while self._at < len(self._pattern):
            character = self._pattern[self._at]
            if character == "]":
                self._copy(1)
                return
            if self._pattern.startswith(r"\b", self._at):
                self._put(r"\x08", 2)
            elif character == "\\":
                self._escape(CHARACTERS)
            elif character in CLASS_OPERATORS or self._pattern.endswith("--", 0, self._at + 1):
                self._put("\\" + character, 1)
            else:
                self._copy(1)
        raise self._error("a character class has no end")

    def _error(self, reason: str) -> ValueError:
        return ValueError(f"{reason}: {quoted(self._pattern)}")
