"""Calls out of an answer's text: a machine that takes text in pieces and gives events.

The definition is immutable, the state a value that goes in and comes out; however a text is cut into
pieces, the joined events are the same. What the machine promises:

- Text that merely looks like a call (malformed or cut before its arguments began, or of a function that
  was not declared) comes out as text, unchanged.
- A call is reported when its name is known and its arguments begin. From then on it never becomes text:
  where its arguments break off or go wrong, it ends incomplete and the answer with it.
- Blanks between calls and around them are dropped, and one newline, which the template writes, between
  text and a call.
- The closing mark of a call may be missing.
- Arguments come out as the model wrote them (control characters inside strings are escaped), those
  of Python syntax as JSON, while they are being written.
"""

from ferrite.toolcalls.call_modes import NAME, CallModes
from ferrite.toolcalls.call_state import BLANKS, CallState, CallSyntax
from ferrite.toolcalls.events import AnswerEvent
from ferrite.toolcalls.families import FENCE, FENCE_LANGUAGES, Syntax


def feed(syntax: CallSyntax, state: CallState, piece: str) -> tuple[CallState, list[AnswerEvent]]:
    """Take the next piece of text."""
    machine = _Machine(syntax, state)
    machine.take(piece)
    return machine.state(), machine.events()


def finish(syntax: CallSyntax, state: CallState) -> list[AnswerEvent]:
    """End the text."""
    machine = _Machine(syntax, state)
    machine.end()
    return machine.events()


class _Machine(CallModes):
    """Modes before, between and behind calls."""

    MODES = {  # noqa: RUF012  never changed
        **CallModes.MODES,
        "text": "_in_text",
        "fence": "_in_fence",
        "open": "_at_open",
        "item": "_at_item",
        "after": "_after",
        "close": "_close",
        "ended": "_ignore",
    }

    def _in_text(self, character: str) -> None:
        seen, trigger = self._partial + character, self._family.trigger
        python = self._family.syntax is Syntax.PYTHON
        bare = self._family.bare and self._blank and not self._n_calls
        if trigger.startswith(seen) or (bare and not python and FENCE.startswith(seen)):
            self._partial = seen
            if seen == trigger:
                self._open(seen, "open", self._family.closing)
            elif seen == FENCE:
                self._open(seen, "fence", FENCE)
        elif bare and seen == ("[" if python else "{"):
            self._open(seen, "item" if python else "key", "")
        elif self._partial:
            self._say(self._held + self._partial[0])
            self._held, self._partial, self._blank = "", "", False
            for again in seen[1:]:
                self._in_text(again)
        elif character in BLANKS and (self._blank or (character == "\n" and not self._held)):
            self._held += character
        else:
            self._say(self._held)
            self._held, self._blank = "", False
            if character == "\n":
                self._held = character
            else:
                self._say(character)

    def _open(self, mark: str, mode: str, closing: str) -> None:
        held = self._held + mark
        self._reset()
        self._held, self._mode, self._closing = held, mode, closing

    def _in_fence(self, character: str) -> None:
        """Behind the mark of a fence: the name of a language, up to the end of the line."""
        self._partial += character
        if self._partial in (f"{language}\n" for language in FENCE_LANGUAGES):
            self._partial, self._mode = "", "open"
        elif not any(f"{language}\n".startswith(self._partial) for language in FENCE_LANGUAGES):
            self._fail(character)

    def _at_open(self, character: str) -> None:
        syntax = self._family.syntax
        if character in BLANKS:
            return
        if syntax is Syntax.NAMED and NAME.fullmatch(character):
            self._partial, self._mode = character, "called"
        elif character == "[" and syntax in (Syntax.ARRAY, Syntax.PYTHON):
            self._mode = "item"
        elif character == "{" and syntax in (Syntax.OBJECT, Syntax.ARRAY):
            self._mode = "key"
        else:
            self._fail(character)

    def _at_item(self, character: str) -> None:
        if character in BLANKS:
            return
        python = self._family.syntax is Syntax.PYTHON
        if python and NAME.fullmatch(character):
            self._partial, self._mode = character, "called"
        elif character == "{" and not python:
            self._mode = "key"
        else:
            self._fail(character)

    def _after(self, character: str) -> None:
        """Behind a call of a family that writes several in a row."""
        objects = self._family.syntax is Syntax.OBJECT
        if character in BLANKS:
            self._partial += character
            return
        if objects and character == "}":
            return
        blanks, self._partial = self._partial, ""
        if objects and character == "{":
            self._held, self._mode = blanks + character, "key"
        elif character == "," or (objects and character == ";"):
            self._held, self._mode = blanks + character, "open" if objects else "item"
        elif character == "]" and not objects:
            self._mode = "close" if self._closing else "text"
        else:
            self._to_text(blanks + character)

    def _close(self, character: str) -> None:
        closing, seen = self._closing, self._partial + character
        if closing.startswith(seen):
            self._partial = "" if seen == closing else seen
            self._mode = "text" if seen == closing else "close"
        elif closing == FENCE and seen == "{":
            self._held, self._mode = character, "key"
        elif self._partial or character not in (*BLANKS, "}"):
            self._partial = ""
            self._to_text(seen)

    def _to_text(self, text: str) -> None:
        self._mode = "text"
        for character in text:
            self._read(character)

    def _ignore(self, character: str) -> None:
        """The answer has ended."""
