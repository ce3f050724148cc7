"""Arrays of strings in a file: read one after another, never beyond its end, and found again."""

from collections.abc import Callable
from mmap import mmap
from struct import pack

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrite import _native
from ferrite.gguf import PackedBytes

MOST = 1 << 20


def mapped(content: bytes) -> mmap:
    memory = mmap(-1, max(len(content), 1))
    memory[: len(content)] = content
    return memory


def written(texts: list[bytes]) -> bytes:
    return b"".join(pack("<Q", len(text)) + text for text in texts)


def read(file: mmap, count: int, offset: int) -> list[bytes]:
    data, offsets = _native.pack_strings(file, count, offset)
    return list(PackedBytes(data, np.frombuffer(offsets, np.uint32)))


def table(texts: list[str]) -> _native.TextIds:
    packed = PackedBytes.of(map(str.encode, texts))
    return _native.TextIds(packed.data, packed.offsets)


@given(st.lists(st.binary(max_size=20), max_size=8), st.binary(max_size=9))
def test_strings_come_back(texts: list[bytes], before: bytes) -> None:
    file = mapped(before + written(texts))
    end = len(before) + len(written(texts))
    assert read(file, len(texts), len(before)) == texts
    assert _native.walk_strings(file, len(texts), len(before), MOST) == (len(texts), end)


def test_a_walk_stops_before_a_string_that_is_too_long() -> None:
    file = mapped(written([b"ab", b"abc", b"d"]))
    assert _native.walk_strings(file, 3, 0, 2) == (1, 10)


@pytest.mark.parametrize("length", [4, 1 << 32, (1 << 63) - 9, (1 << 64) - 1])
def test_a_length_beyond_the_end_is_found(length: int) -> None:
    file = mapped(written([b"ab"]) + pack("<Q", length) + b"abc")
    with pytest.raises(ValueError, match="not inside the file"):
        read(file, 2, 0)
    assert _native.walk_strings(file, 2, 0, MOST)[0] == (2 if length == 4 else 1)


@pytest.mark.parametrize("offset", [-1, 4, 1 << 40])
def test_a_length_that_is_not_in_the_file_is_never_read(offset: int) -> None:
    file = mapped(bytes(11))
    assert _native.walk_strings(file, 1, offset, MOST) == (0, offset)
    with pytest.raises(ValueError, match="not inside the file"):
        read(file, 1, offset)


@given(st.lists(st.text(max_size=20), max_size=40), st.lists(st.text(max_size=3), max_size=9), st.data())
def test_texts_are_found_as_in_a_dict(texts: list[str], others: list[str], data: st.DataObject) -> None:
    expected = {text: place for place, text in enumerate(texts)}
    ids = table(texts)
    hidden = data.draw(st.lists(st.sampled_from(range(len(texts))), max_size=9) if texts else st.just([]))
    fewer = ids.without(np.array(hidden, np.uint32))
    left = {text: place for text, place in expected.items() if place not in hidden}
    for found, wanted in ((fewer, left), (ids, expected)):
        assert len(found) == len(wanted)
        for text in texts + others:
            assert found.get(text) == wanted.get(text)
            assert (text in found) == (text in wanted)


def test_a_text_that_is_not_there_is_a_key_error() -> None:
    ids = table(["a", "", "long enough to be hashed in several words"])
    assert ids["long enough to be hashed in several words"] == 2
    assert ids[""] == 1
    with pytest.raises(KeyError, match="b"):
        ids["b"]
    assert ids.get("\ud800") is None
    assert "a" not in table([])


def test_a_table_keeps_its_texts() -> None:
    data, offsets = b"".join([b"a" * 1000, b"b" * 1000]), np.array([0, 1000, 2000], np.uint32)
    fewer = _native.TextIds(data, offsets).without(np.array([0], np.uint32))
    del data, offsets
    bytes(2000), np.zeros(3, np.uint32)
    assert fewer.get("b" * 1000) == 1


def test_text_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(UnicodeDecodeError) as caught:
        _native.unpack_texts(b"a\xe6\x97b", np.array([0, 1, 3, 4], np.uint32))
    assert caught.value.object == b"\xe6\x97"


@pytest.mark.parametrize("unpack", [_native.unpack_texts, _native.unpack_pairs])
@pytest.mark.parametrize("offsets", [[0, 4], [0, 3, 2], [3, 2]])
def test_texts_outside_the_data_are_refused(
    unpack: Callable[[bytes, npt.NDArray[np.uint32]], object], offsets: list[int]
) -> None:
    with pytest.raises(ValueError, match="not inside the data"):
        unpack(b"a b", np.array(offsets, np.uint32))


@pytest.mark.parametrize("offsets", [[], [0, 3], [0, 2, 1]])
def test_offsets_that_leave_the_texts_are_refused(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="offsets"):
        _native.TextIds(b"ab", np.array(offsets, np.uint32))


def test_hiding_what_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="no such text"):
        table(["a"]).without(np.array([1], np.uint32))
