"""Many byte strings in one piece of memory, and what they cost there."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrite.gguf import PackedBytes

STRINGS = st.lists(st.binary(max_size=6), max_size=12)


@given(STRINGS, st.slices(12))
def test_strings_come_back(strings: list[bytes], part: slice) -> None:
    packed = PackedBytes.of(strings)
    assert list(packed) == [packed[place] for place in range(len(packed))] == strings
    assert packed[part] == strings[part]
    assert packed.lengths().tolist() == list(map(len, strings))
    assert packed.counts(b"\0a").tolist() == [text.count(b"\0") + text.count(b"a") for text in strings]


@pytest.mark.parametrize("index", [2, -3])
def test_an_index_outside_is_refused(index: int) -> None:
    packed = PackedBytes.of([b"a", b"b"])
    assert packed[-1] == b"b"
    with pytest.raises(IndexError):
        packed[index]


@given(STRINGS, st.dictionaries(st.integers(0, 11), st.binary(max_size=9)))
def test_some_are_replaced(strings: list[bytes], changes: dict[int, bytes]) -> None:
    changes = {place: text for place, text in changes.items() if place < len(strings)}
    expected = [changes.get(place, text) for place, text in enumerate(strings)]
    assert list(PackedBytes.of(strings).replaced(changes)) == expected


@given(st.lists(st.text(max_size=4), max_size=8))
def test_texts_come_back_and_their_characters_are_counted(texts: list[str]) -> None:
    packed = PackedBytes.of(map(str.encode, texts))
    assert packed.texts() == texts
    assert np.diff(packed.character_offsets()).tolist() == list(map(len, texts))


WORDS = st.text(st.characters(exclude_characters=" ", exclude_categories=["Cs"]), max_size=3)


@given(st.lists(st.tuples(WORDS, WORDS), max_size=8))
def test_pairs_are_cut_at_their_space(pairs: list[tuple[str, str]]) -> None:
    assert PackedBytes.of(" ".join(pair).encode() for pair in pairs).pairs() == pairs


@pytest.mark.parametrize("text", [b"", b"ab", b"a b ", b"  "])
def test_what_is_no_pair_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="no space or several"):
        PackedBytes.of([b"a b", text]).pairs()


def test_a_string_takes_its_bytes_and_four() -> None:
    packed = PackedBytes.of([b"abcdefgh"] * 1000)
    assert sys.getsizeof(packed.data) + packed.offsets.nbytes < 1000 * 12 + 100
