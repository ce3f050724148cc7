"""Whole characters only, whatever the token borders."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrite.tokenizer import TokenizerError
from tests.tokenizer.metadata import UNUSED, bytelevel, sentencepiece

TOKENIZER = bytelevel()
IM_END = TOKENIZER.vocabulary.ids["<|im_end|>"]
TOOL = TOKENIZER.vocabulary.ids["<tool>"]


def byte_ids(data: bytes) -> list[int]:
    """Return one token per byte; the small vocabulary begins with the 256 bytes, in order."""
    return list(data)


def pushes(tokens: list[int]) -> list[str]:
    """Push the tokens one by one; the last string is what ``finish`` gives."""
    detokenizer = TOKENIZER.detokenizer()
    return [*map(detokenizer.push, tokens), detokenizer.finish()]


ILL_FORMED = {
    b"\xe2\x80A": "\ufffdA",
    b"\xe2\x82\xac\xe2\x82A": "€\ufffdA",
    b"\xf0": "\ufffd",
    b"\xf0\x9f\x9a": "\ufffd",
    b"\x80": "\ufffd",
    b"A\x80\x80B": "A\ufffd\ufffdB",
    b"\xc0\xaf": "\ufffd\ufffd",
    b"\xed\xa0\x80": "\ufffd\ufffd\ufffd",
    b"\xf4\x91\x92\x93\xffA\x80\xbfB": "\ufffd" * 5 + "A" + "\ufffd" * 2 + "B",
    b"a\xf1\x80\x80\xe1\x80\xc2b\x80c\x80\xbfd": "a" + "\ufffd" * 3 + "b\ufffdc" + "\ufffd" * 2 + "d",
}
"""The last three are the Unicode Standard's own examples (chapter 3, U+FFFD substitution)."""


@pytest.mark.parametrize(("data", "text"), ILL_FORMED.items())
def test_each_ill_formed_part_becomes_one_replacement_character(data: bytes, text: str) -> None:
    assert "".join(pushes(byte_ids(data))) == text
    assert TOKENIZER.decode(byte_ids(data)) == text


def test_a_character_appears_only_when_it_is_whole() -> None:
    assert pushes(byte_ids("é€🚀".encode())) == ["", "é", "", "", "€", "", "", "", "🚀", ""]


def test_an_unfinished_character_is_flushed_once() -> None:
    detokenizer = TOKENIZER.detokenizer()
    assert detokenizer.push(0xF0) == ""
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.finish() == ""


@given(st.binary(max_size=24), st.lists(st.sampled_from(["he", "ll", "hell", "<tool>"]), max_size=3))
def test_pushed_text_is_the_decoded_text_whatever_the_bytes(data: bytes, words: list[str]) -> None:
    tokens = byte_ids(data) + [TOKENIZER.vocabulary.ids[word] for word in words]
    parts = pushes(tokens)
    assert "".join(parts) == TOKENIZER.decode(tokens)
    assert "".join(parts) == b"".join(map(TOKENIZER.token_bytes, tokens)).decode(errors="replace")


@given(st.text(max_size=24), st.data())
def test_valid_text_cut_anywhere_never_shows_a_replacement(text: str, data: st.DataObject) -> None:
    tokens = byte_ids(text.encode())
    cut = data.draw(st.integers(0, len(tokens)))
    detokenizer = TOKENIZER.detokenizer()
    before = "".join(map(detokenizer.push, tokens[:cut]))
    after = "".join(map(detokenizer.push, tokens[cut:]))
    assert text.startswith(before)
    assert before + after == text
    assert detokenizer.finish() == ""


def test_control_tokens_are_no_text_and_user_defined_ones_are() -> None:
    assert pushes([0x41, IM_END, TOOL, 0x42, IM_END]) == ["A", "", "<tool>", "B", "", ""]


def test_unused_tokens_are_no_text() -> None:
    tokenizer = sentencepiece()
    kinds = list(tokenizer.vocabulary.kinds)
    kinds[-1] = UNUSED
    assert sentencepiece(token_type=kinds).decode([len(kinds) - 1, len(kinds) - 4]) == "ab"


def test_scored_vocabulary_keeps_the_leading_space() -> None:
    tokenizer = sentencepiece()
    tokens = tokenizer.encode("ab c", parse_special=False, add_bos=True)
    assert tokenizer.decode(tokens) == " ab c"
    assert tokenizer.token_bytes(tokenizer.vocabulary.ids["▁ab"]) == b" ab"
    assert tokenizer.token_bytes(tokenizer.vocabulary.ids["<0x0A>"]) == b"\n"


@pytest.mark.parametrize("token", [-1, 263, 1 << 40])
def test_ids_outside_the_vocabulary_are_refused(token: int) -> None:
    with pytest.raises(TokenizerError, match=f"token id {token} is not in 0 to 262"):
        TOKENIZER.decode([token])


def test_control_tokens_that_are_to_be_shown_give_their_text() -> None:
    shown, hidden = TOKENIZER.detokenizer(shown=frozenset({IM_END})), TOKENIZER.detokenizer()
    tokens = [*byte_ids(b"Hm."), IM_END]
    assert "".join(map(shown.push, tokens)) == "Hm.<|im_end|>"
    assert "".join(map(hidden.push, tokens)) == "Hm."
