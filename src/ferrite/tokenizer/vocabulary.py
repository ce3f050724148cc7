"""Tokens and their kinds, read from a model file's metadata and checked against each other."""

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ferrite._native import TextIds
from ferrite.gguf import PackedBytes
from ferrite.gguf.errors import quoted
from ferrite.tokenizer.errors import TokenizerError

TOKENS = "tokenizer.ggml.tokens"
KINDS = "tokenizer.ggml.token_type"

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")

TURN_TERMINATORS = frozenset(
    {
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|eot|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<EOT>",
        "[EOT]",
        "[EOS]",
        "<|END_OF_TURN_TOKEN|>",
        "<｜end▁of▁sentence｜>",
    }
)
"""Texts by which template families end a turn. ``</s>`` is missing on purpose: where it ends a turn the file
names it as its EOS id, and elsewhere (Gemma) it is the HTML tag."""


class TokenKind(IntEnum):
    """The values of ``tokenizer.ggml.token_type``."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


CONTROL_KINDS = frozenset({TokenKind.CONTROL, TokenKind.UNKNOWN})
MARKER_KINDS = frozenset({TokenKind.CONTROL, TokenKind.UNKNOWN, TokenKind.USER_DEFINED})
"""Kinds whose text is cut out whole, before any merging, where it is looked for"""


class TokenizerMetadata(Protocol):
    """What is read of a GGUF file's metadata: ``ferrite.gguf.Metadata`` and anything like it.

    A missing key and a value of another type raise an error that names the key.
    """

    def __contains__(self, key: str, /) -> bool:
        """Whether the file has the key."""

    def string(self, key: str, /) -> str:
        """Return a text value."""

    def integer(self, key: str, /) -> int:
        """Return an integer value."""

    def boolean(self, key: str, /) -> bool:
        """Return a truth value."""

    def packed_strings(self, key: str, /) -> PackedBytes:
        """Return an array of texts, which are UTF-8."""

    def integers(self, key: str, /) -> npt.NDArray[np.integer]:
        """Return an array of integers."""

    def numbers(self, key: str, /) -> npt.NDArray[np.floating]:
        """Return an array of floats."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Every token of a model. Token ``i`` has ``texts[i]`` and ``kinds[i]``."""

    texts: PackedBytes
    """UTF-8, distinct, not empty, as in the file: byte-level characters, U+2581 for a space, ``<0x0A>``"""
    kinds: bytes
    """one byte each, values of ``TokenKind``"""
    ids: TextIds
    """text → id"""

    def of_kind(self, kinds: frozenset[TokenKind]) -> dict[str, int]:
        """Return text → id of the tokens of these kinds, in id order."""
        return {self.texts[token].decode(): token for token in self.ids_of_kind(kinds).tolist()}

    def ids_of_kind(self, kinds: frozenset[TokenKind]) -> npt.NDArray[np.uint32]:
        """Return the tokens of these kinds, in order."""
        wanted = self.kinds.translate(bytes(kind in kinds for kind in range(256)))
        return np.nonzero(np.frombuffer(wanted, np.bool_))[0].astype(np.uint32)


def load_vocabulary(metadata: TokenizerMetadata) -> Vocabulary:
    """Read tokens and kinds; raise ``TokenizerError`` naming the key when they do not fit each other.

    A turn terminator marked as user-defined becomes a control token (llama.cpp does the same): otherwise a
    message could end its own turn.
    """
    texts = metadata.packed_strings(TOKENS)
    if not texts:
        raise TokenizerError(f"{TOKENS} is empty")
    empty = np.nonzero(texts.lengths() == 0)[0].tolist()
    texts = texts.replaced({token: f"[EMPTY_{token}]".encode() for token in empty})
    ids = TextIds(texts.data, texts.offsets)
    if len(ids) != len(texts):
        every = texts.texts()
        token = next(token for token, text in enumerate(every) if ids[text] != token)
        raise TokenizerError(f"{TOKENS}[{token}] and [{ids[every[token]]}] are both {quoted(every[token])}")
    return Vocabulary(texts, _load_kinds(metadata, texts, ids), ids)


def _load_kinds(metadata: TokenizerMetadata, texts: PackedBytes, ids: TextIds) -> bytes:
    if KINDS not in metadata:
        return bytes([TokenKind.NORMAL]) * len(texts)
    kinds = metadata.integers(KINDS)
    check_length(KINDS, len(kinds), len(texts))
    unknown = np.nonzero(~np.isin(kinds, list(TokenKind)))[0]
    if len(unknown):
        token = int(unknown[0])
        raise TokenizerError(f"{KINDS}[{token}] is {kinds[token]}, expected 0 to {max(TokenKind)}")
    for token in np.nonzero(kinds == TokenKind.BYTE)[0].tolist():
        text = texts[token].decode()
        if not BYTE_TOKEN.fullmatch(text):
            raise TokenizerError(f"{TOKENS}[{token}] is a byte token but reads {quoted(text)}")
    for text in filter(ids.__contains__, TURN_TERMINATORS):
        if kinds[ids[text]] == TokenKind.USER_DEFINED:
            kinds[ids[text]] = TokenKind.CONTROL
    return kinds.astype(np.uint8).tobytes()


def check_length(key: str, length: int, n_tokens: int) -> None:
    """Raise ``TokenizerError`` unless the array under ``key`` has one element per token."""
    if length != n_tokens:
        raise TokenizerError(f"{key} has {length} elements for {n_tokens} tokens")
