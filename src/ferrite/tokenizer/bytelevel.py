"""Byte-level BPE: every byte is a printable character, merges join them by rank."""

import re
from collections.abc import Iterator, Sequence
from operator import methodcaller

from tokenizers import Tokenizer as MergeTokenizer
from tokenizers.models import BPE

from ferrite.gguf.errors import quoted
from ferrite.tokenizer.errors import TokenizerError
from ferrite.tokenizer.pretokenizers import Rule
from ferrite.tokenizer.vocabulary import CONTROL_KINDS, SEPARATOR, Vocabulary

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

WORD_BORDER = re.compile(r"[A-Za-zぁ-ゖァ-ヺ一-鿿가-힣](?=[\s!-@\[-`{-~、。，])")
"""A letter before a character that is none: every rule ends a word here, whatever stands around it"""

_CHARACTER_BYTES = {ord(character): byte for byte, character in BYTE_ALPHABET.items()}


class ByteLevelEncoder:
    """Words by the file's rule, then merges by rank, on Hugging Face ``tokenizers``."""

    def __init__(
        self, vocabulary: Vocabulary, merges: list[str], rule: Rule, *, block_chars: int = BLOCK_CHARS
    ) -> None:
        self._block_chars = block_chars
        pieces = dict(vocabulary.ids)
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
            border = WORD_BORDER.search(text, start + self._block_chars)
            if border is None:
                break
            yield text[start : border.end()]
            start = border.end()
        yield text[start:]


def byte_level_pieces(texts: Sequence[str]) -> list[bytes]:
    """Return the bytes that each text of a normal token stands for."""
    parts = SEPARATOR.join(texts).translate(_CHARACTER_BYTES).split(SEPARATOR)
    try:
        found = [part.encode("latin-1") for part in parts]
    except UnicodeEncodeError:
        found = []
    # One by one where a text has characters that stand for no byte.
    return found if len(found) == len(texts) else list(map(_text_bytes, texts))


def _text_bytes(text: str) -> bytes:
    try:
        return text.translate(_CHARACTER_BYTES).encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()


def _merge_model(pieces: dict[str, int], merges: list[str], vocabulary: Vocabulary, rule: Rule) -> BPE:
    if not set(map(methodcaller("count", " "), merges)) <= {1}:
        index = next(index for index, merge in enumerate(merges) if merge.count(" ") != 1)
        raise TokenizerError(f"{MERGES}[{index}] is {quoted(merges[index])}, expected two pieces")
    # Of two equal merges the first counts; BPE would take the last.
    parts = iter(" ".join(dict.fromkeys(merges)).split(" ") if merges else ())
    pairs = list(zip(parts, parts, strict=True))
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
