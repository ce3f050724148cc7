"""The state of the call machine, and the part of the machine that decides what becomes of what was read."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from ferrite.toolcalls.events import AnswerEvent, CallArguments, CallEnd, CallStart, Text
from ferrite.toolcalls.families import Syntax, ToolFamily
from ferrite.toolcalls.json_text import JsonReader
from ferrite.toolcalls.python_text import PythonReader

MAX_CALLS = 16
MAX_ARGUMENT_BYTES = 64 << 10
MAX_NAME = 64
MAX_UNREPORTED = 8192
"""Characters of a call before its name and arguments are known; a longer one is text."""

BLANKS = " \t\r\n"


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """What a machine needs to know, fixed for one answer."""

    family: ToolFamily
    names: frozenset[str]
    """The functions that may be called."""
    call_id: Callable[[int], str]
    """The id of the call with an index."""
    max_calls: int = MAX_CALLS
    """1 where parallel calls are not wanted."""
    text_allowed: bool = True
    """False where a grammar forces calls: what is no call is then a cut one, and is dropped."""
    guided: bool = False
    """A grammar lets nothing but a call begin with the trigger: one cut before its arguments is dropped."""
    stops: re.Pattern[str] = field(init=False)
    """Characters at which plain text has to be looked at."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "stops", re.compile(f"[\n{re.escape(self.family.trigger[:1])}]"))


@dataclass(frozen=True, slots=True)
class CallState:
    """Where a machine stands between two pieces."""

    mode: str = "text"
    held: str = ""
    """Text that may still become text or a part of a call."""
    partial: str = ""
    """The beginning of a mark, name, key or escape."""
    blank: bool = True
    """Only blanks since the beginning, or since the last call."""
    n_calls: int = 0
    closing: str = ""
    """The mark that ends the section in which the last call stands."""
    key: str = ""
    name: str | None = None
    arguments: str = ""
    """Arguments that came before the name."""
    reader: JsonReader | PythonReader | None = None
    reported: bool = False
    """The current call's beginning has been reported."""
    over: bool = False
    """The current call's end has been reported."""
    size: int = 0
    """Bytes of the current call's arguments."""

    @property
    def ended(self) -> bool:
        """Nothing that follows can change the answer: the generation may be stopped."""
        return self.mode == "ended"


class Run:
    """One piece's way through the machine: the state unpacked, and what it produces.

    Each mode is a method that takes the next character; ``MODES`` names them.
    """

    MODES: dict[str, str]

    def __init__(self, syntax: CallSyntax, state: CallState) -> None:
        self._syntax = syntax
        self._family = syntax.family
        self._mode = state.mode
        self._held = state.held
        self._partial = state.partial
        self._blank = state.blank
        self._n_calls = state.n_calls
        self._closing = state.closing
        self._key = state.key
        self._name = state.name
        self._arguments = state.arguments
        self._reader = state.reader
        self._reported = state.reported
        self._over = state.over
        self._size = state.size
        self._text: list[str] = []
        self._pieces: list[str] = []
        self._events: list[AnswerEvent] = []

    def state(self) -> CallState:
        """The state behind the piece."""
        return CallState(
            mode=self._mode,
            held=self._held,
            partial=self._partial,
            blank=self._blank,
            n_calls=self._n_calls,
            closing=self._closing,
            key=self._key,
            name=self._name,
            arguments=self._arguments,
            reader=self._reader,
            reported=self._reported,
            over=self._over,
            size=self._size,
        )

    def events(self) -> list[AnswerEvent]:
        """What the piece made, neighbouring pieces joined."""
        self._flush()
        return self._events

    def take(self, piece: str) -> None:
        """Read all characters."""
        at = 0
        while at < len(piece):
            if self._mode == "text" and not (self._blank or self._held or self._partial):
                stop = self._syntax.stops.search(piece, at)
                end = stop.start() if stop else len(piece)
                self._say(piece[at:end])
                at = end
                if stop is None:
                    break
            self._read(piece[at])
            at += 1

    def end(self) -> None:
        """Decide all that is open."""
        if self._mode == "text":
            if self._partial or not (self._blank and self._n_calls):
                self._say(self._held + self._partial)
        elif self._reported and not self._over:
            self._flush()
            self._events.append(CallEnd(self._n_calls, complete=False))
        elif not (self._reported or self._is_cut_call() or self._held.strip() in (",", ";")):
            self._say(self._held)

    def _is_cut_call(self) -> bool:
        begun = bool(self._family.trigger) and self._family.trigger in self._held
        return self._syntax.guided and (begun or self._n_calls > 0)

    def _read(self, character: str) -> None:
        if self._mode not in ("text", "close", "after", "ended") and not self._reported:
            self._held += character
            if len(self._held) > MAX_UNREPORTED:
                self._fail("")
                return
        getattr(self, self.MODES[self._mode])(character)

    def _say(self, text: str) -> None:
        if text and self._syntax.text_allowed:
            self._text.append(text)

    def _flush(self) -> None:
        if self._text:
            self._events.append(Text("".join(self._text)))
            self._text = []
        if self._pieces:
            self._events.append(CallArguments(self._n_calls, "".join(self._pieces)))
            self._pieces = []

    def _report(self, name: str) -> None:
        self._flush()
        self._held = ""
        self._reported = True
        self._events.append(CallStart(self._n_calls, self._syntax.call_id(self._n_calls), name))

    def _write(self, text: str) -> None:
        """Take a piece of the arguments."""
        self._size += len(text.encode("utf-8", "surrogatepass"))
        if self._size > MAX_ARGUMENT_BYTES:
            self._break()
        elif self._reported:
            self._pieces.append(text)
        else:
            self._arguments += text

    def _end_call(self) -> None:
        self._flush()
        self._events.append(CallEnd(self._n_calls, complete=True))
        self._over = True
        if self._n_calls + 1 == self._syntax.max_calls:
            self._mode = "ended"

    def _break(self) -> None:
        """The arguments go wrong, and what was reported cannot be taken back."""
        self._flush()
        self._events.append(CallEnd(self._n_calls, complete=False))
        self._over = True
        self._mode = "ended"

    def _fail(self, character: str) -> None:
        """What was read is no call, or not as it goes on; ``character`` is then read again."""
        if self._over:
            self._leave(character)
        elif self._reported:
            self._break()
        else:
            held = self._held[: len(self._held) - len(character)]
            self._reset()
            self._mode, self._blank = "text", False
            self._say(held)
            if character:
                self._read(character)

    def _leave(self, character: str) -> None:
        """A reported call lies behind; ``character`` belongs to what follows."""
        self._n_calls += 1
        self._reset()
        self._blank = True
        if self._family.syntax in (Syntax.ARRAY, Syntax.PYTHON):
            self._mode = "after"
        elif self._closing:
            self._mode = "close"
        else:
            self._mode = "after" if self._family.bare else "text"
        if character:
            self._read(character)

    def _reset(self) -> None:
        self._held = self._partial = self._key = self._arguments = ""
        self._name = self._reader = None
        self._reported = self._over = False
        self._size = 0
