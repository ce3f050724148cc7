"""Byte-level BPE: every byte is a printable character, merges join them by rank."""

import re
from collections.abc import Iterator
from functools import cache

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer as MergeTokenizer
from tokenizers.models import BPE

from ferrite._native import TextIds
from ferrite.gguf import PackedBytes
from ferrite.gguf.errors import quoted
from ferrite.tokenizer.errors import TokenizerError
from ferrite.tokenizer.pretokenizers import Rule
from ferrite.tokenizer.vocabulary import CONTROL_KINDS, Vocabulary

MERGES = "tokenizer.ggml.merges"


def _byte_alphabet() -> Iterator[tuple[int, str]]:
    """Give each byte its character: itself where Latin-1 prints it, else the next one from U+0100 on."""
    stand_in = 0x100
    for byte in range(256):
        if chr(byte).isprintable() and not chr(byte).isspace():
            yield byte, chr(byte)
        else:
            yield byte, chr(stand_in)
            stand_in += 1


BYTE_ALPHABET = dict(_byte_alphabet())
"""Byte → the character that stands for it in token texts (GPT-2's table)"""

BLOCK_CHARS = 1 << 16
"""Encoding takes some 200 bytes of memory per character, so longer text goes block by block."""


@cache
def _word_border() -> re.Pattern[str]:
    """Return a letter before a character that is none: every rule ends a word here, whatever is around it.

    Compiled with the first text of several blocks, for 6 ms that a start can do without.
    """
    return re.compile(r"[A-Za-zぁ-ゖァ-ヺ一-鿿가-힣](?=[\s!-@\[-`{-~、。，])")


def _character_bytes() -> npt.NDArray[np.int16]:
    table = np.full(max(map(ord, BYTE_ALPHABET.values())) + 2, -1, np.int16)
    table[list(map(ord, BYTE_ALPHABET.values()))] = list(BYTE_ALPHABET)
    return table


_CHARACTER_BYTES = _character_bytes()
"""Character → byte, -1 for those that stand for none, as do all behind the last one"""


class ByteLevelEncoder:
    """Words by the file's rule, then merges by rank, on Hugging Face ``tokenizers``."""

    def __init__(
        self, vocabulary: Vocabulary, merges: PackedBytes, rule: Rule, *, block_chars: int = BLOCK_CHARS
    ) -> None:
        self._block_chars = block_chars
        pieces = dict(zip(vocabulary.texts.texts(), range(len(vocabulary.texts)), strict=True))
        for text in vocabulary.of_kind(CONTROL_KINDS):
            del pieces[text]
        self._n_tokens = len(vocabulary.texts)
        # A byte without a token is left out of the ids, as llama.cpp does, but must still keep its
        # neighbours from merging: it gets an id past the vocabulary that encode() drops.
        missing = [character for character in BYTE_ALPHABET.values() if character not in pieces]
        self._drops = bool(missing)
        pieces.update(zip(missing, range(self._n_tokens, self._n_tokens + len(missing)), strict=True))
        self._tokenizer = MergeTokenizer(_merge_model(pieces, merges, vocabulary, rule))
        self._tokenizer.pre_tokenizer = rule.pre_tokenizer()

    def encode(self, text: str) -> list[int]:
        """Return the ids of text that holds no markers; it never gives a control token."""
        ids: list[int] = []
        for block in self._blocks(text):
            # The batch form of one text gives up the GIL while it works; the plain form holds it.
            (encoding,) = self._tokenizer.encode_batch_fast([block], add_special_tokens=False)
            ids += encoding.ids
        return [token for token in ids if token < self._n_tokens] if self._drops else ids

    def _blocks(self, text: str) -> Iterator[str]:
        start = 0
        while len(text) - start > self._block_chars:
            border = _word_border().search(text, start + self._block_chars)
            if border is None:
                break
            yield text[start : border.end()]
            start = border.end()
        yield text[start:]


def byte_level_pieces(texts: PackedBytes) -> PackedBytes:
    """Return the bytes that each text of a normal token stands for.

    A text with a character that stands for no byte is taken as it is.
    """
    codes = np.frombuffer(texts.data.decode().encode("utf-32-le"), np.uint32)
    found = _CHARACTER_BYTES[np.minimum(codes, len(_CHARACTER_BYTES) - 1)]
    offsets = texts.character_offsets()
    pieces = PackedBytes(found.astype(np.uint8).tobytes(), offsets)
    foreign = np.searchsorted(offsets, np.nonzero(found < 0)[0], "right") - 1
    return pieces.replaced({token: texts[token] for token in foreign.tolist()})


def _merge_model(pieces: dict[str, int], merges: PackedBytes, vocabulary: Vocabulary, rule: Rule) -> BPE:
    try:
        pairs = merges.pairs()
    except ValueError:
        index = next(index for index, merge in enumerate(merges) if merge.count(b" ") != 1)
        raise TokenizerError(
            f"{MERGES}[{index}] is {quoted(merges[index].decode())}, expected two pieces"
        ) from None
    if len(TextIds(merges.data, merges.offsets)) < len(merges):
        # Of two equal merges the first counts; BPE would take the last.
        pairs = list(dict.fromkeys(pairs))
    try:
        return BPE(pieces, pairs, ignore_merges=rule.whole_words)
    except Exception:
        # It checks every merge, far faster than we could, but raises nothing more special than this.
        return BPE(pieces, _usable(pairs, pieces, vocabulary), ignore_merges=rule.whole_words)


def _usable(
    pairs: list[tuple[str, str]], pieces: dict[str, int], vocabulary: Vocabulary
) -> list[tuple[str, str]]:
    """Drop merges that would make a control token of text; raise ``TokenizerError`` for an unknown piece."""
    usable: list[tuple[str, str]] = []
    for left, right in pairs:
        parts = (left, right, left + right)
        if all(part in pieces for part in parts):
            usable.append((left, right))
            continue
        for part in parts:
            if part not in vocabulary.ids:
                raise TokenizerError(
                    f"{MERGES} joins {quoted(left)} and {quoted(right)}, but {quoted(part)} is not a token"
                )
    return usable
