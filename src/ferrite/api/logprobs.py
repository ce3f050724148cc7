"""Log-probabilities in answers: which tokens an answer shows, and the forms that the routes give them.

They are natural logarithms of the model's own probabilities, before grammar, bias, penalties, temperature
and truncation, so equal text has equal numbers whatever the sampling (``ferrite.engine.events``).
"""

import codecs
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from ferrite.engine.events import Delta, Event, TokenLogprob
from ferrite.engine.text import Detokenizer

TokenBytes = Callable[[int], bytes]


class TopLogprob(msgspec.Struct):
    """One of the likeliest tokens at a place of an answer."""

    token: str
    """Its text; bytes that are only a part of a character are written as ``\\xf0``."""
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(msgspec.Struct):
    """One token of a chat's answer."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """The tokens of a chat's answer."""

    content: list[ChatTokenLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct):
    """The tokens of a text completion: four arrays with one entry for each token."""

    tokens: list[str]
    """Their texts; of a part of a character ``bytes:`` and its bytes as ``\\xf0``."""
    token_logprobs: list[float | None]
    """None for a prompt's first token, which follows nothing."""
    top_logprobs: list[dict[str, float] | None]
    """The likeliest tokens, and the token itself where it is none of them."""
    text_offset: list[int]
    """Characters of the choice's text before the token."""


@dataclass(frozen=True, slots=True)
class ShownToken:
    """A token of an answer's text."""

    logprob: TokenLogprob
    start: int
    """Characters of the generated text before it, or before the character that it is a part of."""


class ShownTokens:
    """Finds the tokens that the text of one generation shows.

    Stop strings hold text back and take some away, so tokens come before their text, or without. A token is
    shown when the first character that it has a part in is; one without text is, when the text behind it is,
    or when no stop string ended the generation.
    """

    def __init__(self, detokenizer: Detokenizer) -> None:
        """``detokenizer`` makes of tokens the same text that the engine's does."""
        self._detokenizer = detokenizer
        self._pending: deque[ShownToken] = deque()
        self._end = 0
        """Characters of the tokens so far."""
        self._n_shown = 0
        """Characters that went out."""

    def add(self, event: Event) -> list[ShownToken]:
        """Take the next event; return the tokens that are shown with it, in their order."""
        if not isinstance(event, Delta):
            rest = [] if event.stop_string is not None else list(self._pending)
            self._pending.clear()
            return rest
        for logprob in event.logprobs or ():
            self._pending.append(ShownToken(logprob, self._end))
            self._end += len(self._detokenizer.push(logprob.token))
        self._n_shown += len(event.text)
        shown = []
        while self._pending and self._pending[0].start < self._n_shown:
            shown.append(self._pending.popleft())
        return shown


def chat_logprobs(tokens: Iterable[ShownToken], token_bytes: TokenBytes) -> ChatLogprobs:
    """Return ``tokens`` as a chat shows them."""
    return ChatLogprobs([_chat_token(shown.logprob, token_bytes) for shown in tokens])


def completion_logprobs(
    tokens: Iterable[ShownToken], token_bytes: TokenBytes, *, offset: int = 0
) -> CompletionLogprobs:
    """Return ``tokens`` as a text completion shows them; ``offset``: characters before the generated text."""
    found = CompletionLogprobs([], [], [], [])
    for shown in tokens:
        _append(found, shown.logprob.token, shown.logprob, offset + shown.start, token_bytes)
    return found


def prompt_logprobs(
    prompt: Sequence[int],
    scores: Sequence[TokenLogprob | None],
    offsets: Sequence[int],
    token_bytes: TokenBytes,
) -> CompletionLogprobs:
    """Return the tokens of a scored prompt as an echo shows them."""
    found = CompletionLogprobs([], [], [], [])
    for token, score, offset in zip(prompt, scores, offsets, strict=True):
        _append(found, token, score, offset, token_bytes)
    return found


def joined(parts: Iterable[CompletionLogprobs]) -> CompletionLogprobs:
    """Return the arrays of ``parts`` one behind the other."""
    whole = CompletionLogprobs([], [], [], [])
    for part in parts:
        whole.tokens += part.tokens
        whole.token_logprobs += part.token_logprobs
        whole.top_logprobs += part.top_logprobs
        whole.text_offset += part.text_offset
    return whole


def spelled(tokens: Sequence[int], token_bytes: TokenBytes) -> tuple[str, list[int]]:
    """Return the text of ``tokens``, control tokens as theirs, and the characters before each of them."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pieces, offsets, length = [], [], 0
    for token in tokens:
        offsets.append(length)
        pieces.append(decoder.decode(token_bytes(token)))
        length += len(pieces[-1])
    pieces.append(decoder.decode(b"", final=True))
    return "".join(pieces), offsets


def offsets_in(text: str, tokens: Sequence[int], token_bytes: TokenBytes) -> list[int]:
    """Return the characters of ``text`` before each of the tokens that it was made into.

    What the tokenizer puts in front, a control token or a space, counts as nothing.
    """
    whole, offsets = spelled(tokens, token_bytes)
    in_front = len(whole) - len(text) if whole.endswith(text) else 0
    return [min(max(offset - in_front, 0), len(text)) for offset in offsets]


def _chat_token(entry: TokenLogprob, token_bytes: TokenBytes) -> ChatTokenLogprob:
    data = token_bytes(entry.token)
    top = [
        TopLogprob(_text(other), logprob, list(other))
        for other, logprob in ((token_bytes(token), logprob) for token, logprob in entry.top)
    ]
    return ChatTokenLogprob(_text(data), entry.logprob, list(data), top)


def _append(
    found: CompletionLogprobs, token: int, entry: TokenLogprob | None, offset: int, token_bytes: TokenBytes
) -> None:
    found.tokens.append(_key(token_bytes(token)))
    found.text_offset.append(offset)
    if entry is None:
        found.token_logprobs.append(None)
        found.top_logprobs.append(None)
        return
    top: dict[str, float] = {}
    for other, logprob in (*entry.top, (token, entry.logprob)):
        # Several tokens may have one text; the likeliest of them comes first.
        top.setdefault(_key(token_bytes(other)), logprob)
    found.token_logprobs.append(entry.logprob)
    found.top_logprobs.append(top)


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")


def _key(data: bytes) -> str:
    """Return the text of a token where nothing else tells its bytes."""
    text = _text(data)
    return text if text.encode() == data else f"bytes:{text}"
