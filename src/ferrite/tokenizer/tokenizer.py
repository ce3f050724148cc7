"""Text ↔ token ids of one model."""

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from ferrite.gguf import PackedBytes
from ferrite.tokenizer.detokenizer import Detokenizer
from ferrite.tokenizer.errors import TokenizerError
from ferrite.tokenizer.markers import MarkerSplitter
from ferrite.tokenizer.vocabulary import BYTE_TOKEN, CONTROL_KINDS, MARKER_KINDS, TokenKind, Vocabulary


class TextEncoder(Protocol):
    """One algorithm: text without markers → ids."""

    def encode(self, text: str, /) -> list[int]:
        """Return the ids of ``text``, none of them a control token."""


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """The tokenizer of a model file, made by ``load_tokenizer``. Safe to share between threads."""

    vocabulary: Vocabulary
    encoder: TextEncoder
    pieces: PackedBytes
    """the bytes of each token"""
    rule: str
    """the pre-tokenizer rule in use, or ``sentencepiece``"""
    bos_id: int | None
    add_bos: bool
    """the model wants BOS before every text"""
    add_eos: bool
    """the file asks for EOS after every text; a prompt to be continued never gets it"""
    end_ids: frozenset[int]
    """tokens that end a generation: EOS, EOT and EOM of the file, and turn terminators by their text"""
    all_markers: MarkerSplitter
    literal_markers: MarkerSplitter

    @property
    def vocab_size(self) -> int:
        """Number of tokens; ids are 0 to this less one."""
        return len(self.vocabulary.texts)

    @property
    def control_ids(self) -> list[int]:
        """The control and unknown tokens, in order."""
        found: list[int] = self.vocabulary.ids_of_kind(CONTROL_KINDS).tolist()
        return found

    def is_control(self, token: int) -> bool:
        """Whether the token is a control or unknown token, which is never text."""
        return self.vocabulary.kinds[self._checked(token)] in CONTROL_KINDS

    def token_text(self, token: int) -> str:
        """Return the token as the model file spells it."""
        return self.vocabulary.texts[self._checked(token)].decode()

    def token_bytes(self, token: int) -> bytes:
        """Return the token's bytes: decoded for normal and byte tokens, the text itself for markers.

        Unused tokens have none. A token may hold a part of a character.
        """
        return self.pieces[self._checked(token)]

    def encode(self, text: str, *, parse_special: bool, add_bos: bool) -> list[int]:
        """Return the ids of ``text``.

        With ``parse_special`` the text of control tokens becomes those tokens; without it, only
        user-defined tokens are recognised. With ``add_bos`` the ids begin with one BOS if the model
        wants it, also when the text already began with it, behind blanks or not. Raises ``TokenizerError``
        for lone surrogates.
        """
        markers = self.all_markers if parse_special else self.literal_markers
        return self._encode_pieces(markers.split(_checked_text(text)), add_bos=add_bos)

    def split_special(self, text: str) -> list[str | int]:
        """Replace the text of control and user-defined tokens by their ids, the longest at each place."""
        return self.all_markers.split(text)

    def encode_segments(self, segments: Sequence[str | int], *, add_bos: bool) -> list[int]:
        """Return the ids of a prompt made of ready ids and literal text.

        Strings never give a control token, whatever they spell; neighbouring strings are one text. BOS is
        added as in ``encode``.
        """
        pieces: list[str | int] = []
        for is_text, group in groupby(segments, key=lambda segment: isinstance(segment, str)):
            if is_text:
                text = "".join(segment for segment in group if isinstance(segment, str))
                pieces += self.literal_markers.split(_checked_text(text))
            else:
                pieces += (self._checked(segment) for segment in group if isinstance(segment, int))
        return self._encode_pieces(pieces, add_bos=add_bos)

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of ``tokens``, as a ``Detokenizer`` gives it."""
        detokenizer = self.detokenizer()
        return "".join([*map(detokenizer.push, tokens), detokenizer.finish()])

    def detokenizer(self, *, shown: Container[int] = ()) -> Detokenizer:
        """Start the text of a new sequence; ``shown``: control tokens that give their text."""
        return Detokenizer(self, shown=shown)

    def _encode_pieces(self, pieces: Sequence[str | int], *, add_bos: bool) -> list[int]:
        ids: list[int] = []
        for piece in pieces:
            if isinstance(piece, int):
                ids.append(piece)
            else:
                ids += self.encoder.encode(piece)
        if add_bos and self.add_bos and self.bos_id is not None and not self._begins_with_bos(pieces):
            ids.insert(0, self.bos_id)
        return ids

    def _begins_with_bos(self, pieces: Sequence[str | int]) -> bool:
        # Templates write it behind a line break of their own, too.
        written = (piece for piece in pieces if isinstance(piece, int) or piece.strip())
        return next(written, None) == self.bos_id

    def _checked(self, token: int) -> int:
        if not 0 <= token < len(self.vocabulary.kinds):
            raise TokenizerError(f"token id {token} is not in 0 to {self.vocab_size - 1}")
        return token


def token_pieces(vocabulary: Vocabulary, pieces_of: Callable[[PackedBytes], PackedBytes]) -> PackedBytes:
    """Return the bytes of each token, those of the normal ones by ``pieces_of``.

    All together, because one by one 151,936 take a quarter of a second.
    """
    others = vocabulary.ids_of_kind(frozenset(TokenKind) - {TokenKind.NORMAL}).tolist()
    pieces = dict.fromkeys(others, b"")
    normal = pieces_of(vocabulary.texts.replaced(pieces))
    for text, token in vocabulary.of_kind(MARKER_KINDS).items():
        pieces[token] = text.encode()
    for text, token in vocabulary.of_kind(frozenset({TokenKind.BYTE})).items():
        pieces[token] = bytes.fromhex(BYTE_TOKEN.sub(r"\1", text))
    return normal.replaced(pieces)


def _checked_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TokenizerError(f"the text has a lone surrogate at character {error.start}") from error
    return text
