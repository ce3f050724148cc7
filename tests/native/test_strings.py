"""Arrays of strings in a file: read one after another, and never beyond its end."""

from mmap import mmap
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrite import _native

MOST = 1 << 20


def mapped(content: bytes) -> mmap:
    memory = mmap(-1, max(len(content), 1))
    memory[: len(content)] = content
    return memory


def written(texts: list[bytes]) -> bytes:
    return b"".join(pack("<Q", len(text)) + text for text in texts)


@given(st.lists(st.text(max_size=20), max_size=8), st.binary(max_size=9))
def test_strings_come_back(texts: list[str], before: bytes) -> None:
    file = mapped(before + written([text.encode() for text in texts]))
    end = len(before) + len(written([text.encode() for text in texts]))
    assert _native.read_strings(file, len(texts), len(before)) == texts
    assert _native.walk_strings(file, len(texts), len(before), MOST) == (len(texts), end)


def test_a_walk_stops_before_a_string_that_is_too_long() -> None:
    file = mapped(written([b"ab", b"abc", b"d"]))
    assert _native.walk_strings(file, 3, 0, 2) == (1, 10)


@pytest.mark.parametrize("length", [4, 1 << 32, (1 << 63) - 9, (1 << 64) - 1])
def test_a_length_beyond_the_end_is_found(length: int) -> None:
    file = mapped(written([b"ab"]) + pack("<Q", length) + b"abc")
    with pytest.raises(ValueError, match="not inside the file"):
        _native.read_strings(file, 2, 0)
    assert _native.walk_strings(file, 2, 0, MOST)[0] == (2 if length == 4 else 1)


@pytest.mark.parametrize("offset", [-1, 4, 1 << 40])
def test_a_length_that_is_not_in_the_file_is_never_read(offset: int) -> None:
    file = mapped(bytes(11))
    assert _native.walk_strings(file, 1, offset, MOST) == (0, offset)
    with pytest.raises(ValueError, match="not inside the file"):
        _native.read_strings(file, 1, offset)


def test_text_that_is_not_utf_8_is_named() -> None:
    with pytest.raises(UnicodeDecodeError) as caught:
        _native.read_strings(mapped(written([b"a", b"\xe6\x97", b"b"])), 3, 0)
    assert caught.value.object == b"\xe6\x97"
