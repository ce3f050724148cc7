"""The bytes of tokens, made for a whole vocabulary at once."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrite.gguf import PackedBytes
from ferrite.tokenizer.bytelevel import BYTE_ALPHABET, byte_level_pieces
from ferrite.tokenizer.sentencepiece import sentencepiece_pieces
from tests.tokenizer.metadata import CONTROL, NORMAL, UNUSED, USER_DEFINED, bytelevel, packed

TEXTS = st.lists(st.text([*BYTE_ALPHABET.values(), "▁", "日", "\uffff", "\0", " "], max_size=6), max_size=6)


@pytest.mark.parametrize("pieces_of", [byte_level_pieces, sentencepiece_pieces])
@given(texts=TEXTS)
def test_texts_do_not_depend_on_their_neighbours(
    pieces_of: Callable[[PackedBytes], PackedBytes], texts: list[str]
) -> None:
    assert list(pieces_of(packed(texts))) == [pieces_of(packed([text]))[0] for text in texts]


def test_byte_level_characters_stand_for_bytes() -> None:
    assert list(byte_level_pieces(packed(["Ġa", "Ċ", "é"]))) == [b" a", b"\n", b"\xe9"]
    assert list(byte_level_pieces(packed(["".join(BYTE_ALPHABET.values())]))) == [bytes(range(256))]


def test_a_text_with_other_characters_is_taken_as_it_is() -> None:
    assert list(byte_level_pieces(packed(["Ġ日", "Ġa"]))) == ["Ġ日".encode(), b" a"]
    assert list(byte_level_pieces(packed(["Ġ\uffff", "Ġa"]))) == ["Ġ\uffff".encode(), b" a"]


def test_scored_tokens_have_their_own_sign_for_a_space() -> None:
    assert list(sentencepiece_pieces(packed(["▁a▁", "\uffff▁", ""]))) == [b" a ", "\uffff ".encode(), b""]


def test_each_kind_of_token_has_its_bytes() -> None:
    tokens = [*BYTE_ALPHABET.values(), "Ġhe", "<|ｍ|>", "<Ġtool>", "<gone>"]
    model = bytelevel(
        tokens=tokens,
        token_type=[NORMAL] * 257 + [CONTROL, USER_DEFINED, UNUSED],
        merges=[],
        bos_token_id=257,
        eos_token_id=257,
    )
    expected = [
        *(bytes([byte]) for byte in BYTE_ALPHABET),
        b" he",
        "<|ｍ|>".encode(),
        "<Ġtool>".encode(),
        b"",
    ]
    assert list(map(model.token_bytes, range(model.vocab_size))) == expected
