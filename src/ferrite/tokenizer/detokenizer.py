"""Token ids → text, one id at a time, never cutting a character."""

import codecs
from collections.abc import Container
from typing import Protocol


class TokenBytes(Protocol):
    """What a detokenizer asks of its tokenizer."""

    def is_control(self, token: int, /) -> bool:
        """Whether the token is no text."""

    def token_bytes(self, token: int, /) -> bytes:
        """Return the token's own bytes."""


class Detokenizer:
    """Text of one generated sequence.

    Bytes wait until they form whole characters. Each maximal ill-formed part of them (as Unicode defines
    it: ``E2 80`` before ``41``) becomes one U+FFFD and the characters beside it stay. Control tokens give
    no text, but for those ``shown``. A leading space is kept, as llama.cpp keeps it in generated text: only
    a tokenizer that itself put the space there could know that it is not the model's.
    """

    def __init__(self, tokens: TokenBytes, *, shown: Container[int] = ()) -> None:
        """``shown``: control tokens by which a model tells calls or reasoning apart from its answer."""
        self._tokens = tokens
        self._shown = shown
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Add a token and return the characters it completes, perhaps none."""
        if self._tokens.is_control(token) and token not in self._shown:
            return ""
        return self._decoder.decode(self._tokens.token_bytes(token))

    def finish(self) -> str:
        """End the text: return U+FFFD for an unfinished character, otherwise nothing."""
        return self._decoder.decode(b"", final=True)
