"""SentencePiece-style BPE: any two neighbours that form a token may merge, the best score first.

Equal to llama.cpp's tokenizer for ``llama`` vocabularies. Hugging Face ``tokenizers`` cannot stand in: it
ranks pairs, so pairs of equal score would not be taken leftmost first, and building the 513,511 pairs of
Gemma's 262,144 tokens takes 3.5 s.
"""

import re
from array import array
from functools import lru_cache
from heapq import heapify, heappop, heappush
from operator import add

import numpy as np
import numpy.typing as npt

from ferrite.gguf import PackedBytes
from ferrite.tokenizer.errors import TokenizerError
from ferrite.tokenizer.vocabulary import (
    BYTE_TOKEN,
    CONTROL_KINDS,
    TOKENS,
    TokenKind,
    Vocabulary,
    check_length,
)

SCORES = "tokenizer.ggml.scores"

SPACE = "\u2581"
"""Stands for a space in token texts"""

SPACE_BYTES = SPACE.encode()
MAX_UTF8_BYTES = 4

UNMERGEABLE_KINDS = CONTROL_KINDS | {TokenKind.BYTE}
"""Text never merges into a control token, nor into the spelling of a byte token."""

MAX_REMEMBERED_CHARS = 32
"""Longer words hardly come twice."""
MAX_REMEMBERED_WORDS = 1 << 15
"""Some 12 MiB"""


class SentencePieceEncoder:
    """Merges by score; a character that is no token becomes its UTF-8 bytes."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        scores: npt.NDArray[np.floating],
        unknown_id: int | None,
        *,
        space_prefix: bool,
    ) -> None:
        check_length(SCORES, len(scores), len(vocabulary.texts))
        unusable = np.nonzero(~np.isfinite(scores))[0]
        if len(unusable):
            token = int(unusable[0])
            raise TokenizerError(f"{SCORES}[{token}] is {scores[token]}, expected a finite number")
        unmergeable = vocabulary.ids_of_kind(UNMERGEABLE_KINDS)
        self._pieces = vocabulary.ids.without(unmergeable)
        # Not a list: as many float objects would take 6 MB of Gemma's memory.
        self._costs = array("d", (-scores.astype(np.float64)).tobytes())
        self._byte_ids = _byte_ids(vocabulary, unknown_id)
        self._prefix = SPACE if space_prefix else ""
        self._borders = _word_borders(vocabulary.texts.replaced(dict.fromkeys(unmergeable.tolist(), b"")))
        self._remembered_merge = lru_cache(MAX_REMEMBERED_WORDS)(self._merge)

    def encode(self, text: str) -> list[int]:
        """Return the ids of text that holds no markers, with the model's leading space if it has one."""
        ids: list[int] = []
        for word in self._borders.split(self._prefix + text.replace(" ", SPACE)):
            merge = self._remembered_merge if len(word) <= MAX_REMEMBERED_CHARS else self._merge
            ids += merge(word)
        return ids

    def _merge(self, word: str) -> list[int]:
        """Merge the cheapest pair of neighbours, the leftmost among equals, until none forms a token."""
        parts = list(word)
        end = len(parts)
        before = list(range(-1, end - 1))
        after = list(range(1, end + 1))
        token_of = self._pieces.get
        costs = self._costs
        pairs = map(token_of, map(add, parts, parts[1:]))
        queue = [(costs[token], left, 2) for left, token in enumerate(pairs) if token is not None]
        heapify(queue)
        while queue:
            _, left, length = heappop(queue)
            right = after[left]
            # An entry is out of date when its left part is gone (empty) or either part has grown.
            if right == end or not parts[left] or len(parts[left]) + len(parts[right]) != length:
                continue
            merged = parts[left] = parts[left] + parts[right]
            parts[right] = ""
            after[left] = following = after[right]
            if following != end:
                before[following] = left
                token = token_of(merged + parts[following])
                if token is not None:
                    heappush(queue, (costs[token], left, length + len(parts[following])))
            previous = before[left]
            if previous >= 0:
                token = token_of(parts[previous] + merged)
                if token is not None:
                    heappush(queue, (costs[token], previous, len(parts[previous]) + length))
        ids: list[int] = []
        for part in filter(None, parts):
            token = token_of(part)
            if token is not None:
                ids.append(token)
            else:
                ids += [self._byte_ids[byte] for byte in part.encode()]
        return ids


def sentencepiece_pieces(texts: PackedBytes) -> PackedBytes:
    """Return the bytes that each text of a normal token stands for."""
    spaces = _spaces(texts)
    before = np.searchsorted(spaces, texts.offsets).astype(np.uint32)
    offsets = texts.offsets - before * np.uint32(len(SPACE_BYTES) - 1)
    return PackedBytes(texts.data.replace(SPACE_BYTES, b" "), offsets)


def _spaces(texts: PackedBytes) -> npt.NDArray[np.int64]:
    """Return where there is a sign for a space, which cannot reach from one text into the next."""
    data = np.frombuffer(texts.data, np.uint8)
    first, second, third = SPACE_BYTES
    places: npt.NDArray[np.int64] = np.nonzero(
        (data[:-2] == first) & (data[1:-1] == second) & (data[2:] == third)
    )[0]
    return places


def _byte_ids(vocabulary: Vocabulary, unknown_id: int | None) -> list[int]:
    ids: list[int | None] = [unknown_id] * 256
    for text, token in vocabulary.of_kind(frozenset({TokenKind.BYTE})).items():
        match = BYTE_TOKEN.fullmatch(text)
        assert match, "checked when the vocabulary was loaded"
        ids[int(match[1], 16)] = token
    found = [token for token in ids if token is not None]
    if len(found) != len(ids):
        raise TokenizerError(f"{TOKENS} has no token for byte {ids.index(None)} and no unknown token")
    return found


def _word_borders(texts: PackedBytes) -> re.Pattern[str]:
    """Compile the places no merge can cross: before a space, unless a token holds that very pair."""
    spaces = _spaces(texts)
    begins = texts.offsets[np.searchsorted(texts.offsets, spaces, "right") - 1]
    inner = spaces[spaces != begins]
    joined = {SPACE}
    for place in inner.tolist():
        joined.add(texts.data[max(place - MAX_UTF8_BYTES, 0) : place].decode(errors="ignore")[-1])
    inside = "".join(map(re.escape, sorted(joined)))
    return re.compile(f"(?<=[^{inside}])(?={SPACE})")
