"""Every kind of damage has its own one-line error that names what and where (FR-45, FR-46)."""

import os
import struct
from pathlib import Path

import pytest

from ferrite.gguf import GGUFError, limits, open_gguf
from tests.gguf import build
from tests.gguf.build import Build, Tensor
from tests.gguf.conftest import Refuse

GOOD = Build(
    [
        build.pair("general.architecture", build.STRING, "llama"),
        build.array_pair("tokens", build.STRING, ["a", "bc", ""]),
        build.array_pair("flags", build.BOOL, [True, False]),
        build.pair("n", build.U32, 7),
    ],
    [Tensor("first", (4, 2)), Tensor("second", (32,), 8, 32)],
    bytes(66),
)


def test_a_cut_at_every_byte_is_refused(refuse: Refuse) -> None:
    whole = bytes(GOOD)
    for size in range(len(whole)):
        assert refuse(whole[:size])


@pytest.mark.parametrize(
    ("magic", "message"),
    [
        (b"lmgg", "not a GGUF file: it is the older GGML format (at byte 0)"),
        (b"vers", "not a GGUF file: it is a Git LFS pointer; fetch the file it stands for (at byte 0)"),
        (b"PK\3\4", r"not a GGUF file: it starts with 'PK\x03\x04' (at byte 0)"),
    ],
)
def test_foreign_magic(refuse: Refuse, magic: bytes, message: str) -> None:
    assert refuse(Build(magic=magic)) == message


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (1, "GGUF version 1 is not supported, only 2 and 3 are (at byte 4)"),
        (4, "GGUF version 4 is not supported, only 2 and 3 are (at byte 4)"),
        (0, "GGUF version 0 is not supported, only 2 and 3 are (at byte 4)"),
        (3 << 24, "big-endian GGUF is not supported (at byte 4)"),
    ],
)
def test_versions(refuse: Refuse, version: int, message: str) -> None:
    assert refuse(Build(version=version)) == message


def test_counts_that_the_limits_or_the_file_cannot_hold(refuse: Refuse) -> None:
    assert refuse(Build(n_tensors=1 << 60)) == (
        "1152921504606846976 tensors are more than the 65536 supported (at byte 8)"
    )
    assert refuse(Build(n_pairs=1 << 63)).endswith(
        "metadata pairs are more than the 16384 supported (at byte 16)"
    )
    assert refuse(Build(n_tensors=9)) == "9 tensors cannot fit into the 8 bytes left in the file (at byte 8)"
    assert (
        refuse(Build(n_pairs=1))
        == "1 metadata pairs cannot fit into the 0 bytes left in the file (at byte 16)"
    )


@pytest.mark.parametrize("length", [1 << 40, (1 << 64) - 1, 26])
def test_strings_longer_than_the_file(refuse: Refuse, length: int) -> None:
    payload = struct.pack("<Q", length) + bytes(25)
    assert "key 'k'" in refuse(Build([build.raw_pair("k", build.STRING, payload)]))


def test_a_string_above_the_limit(refuse: Refuse) -> None:
    payload = struct.pack("<Q", limits.MAX_STRING_BYTES + 1) + bytes(200)
    assert refuse(Build([build.raw_pair("k", build.STRING, payload)])) == (
        "key 'k' holds a string of 67108865 bytes, more than 67108864 (at byte 37)"
    )


@pytest.mark.parametrize("element_type", [*build.CODES, build.STRING, build.ARRAY])
@pytest.mark.parametrize("count", [1 << 63, limits.MAX_ARRAY_ITEMS + 1, limits.MAX_ARRAY_ITEMS, 300])
def test_arrays_longer_than_the_file(refuse: Refuse, element_type: int, count: int) -> None:
    payload = struct.pack("<IQ", element_type, count) + bytes(200)
    message = refuse(Build([build.raw_pair("k", build.ARRAY, payload)]))
    assert message.startswith(f"{count} elements of key 'k' ")
    assert message.endswith("(at byte 41)")


def test_a_string_inside_an_array_that_passes_the_end(refuse: Refuse) -> None:
    payload = struct.pack("<IQ", build.STRING, 2) + build.string("ab") + struct.pack("<Q", 100)
    message = refuse(Build([build.raw_pair("k", build.ARRAY, payload)]))
    assert message == "the file ends inside key 'k', 100 bytes too early (at byte 67)"
    payload = struct.pack("<IQ", build.STRING, 3) + build.string(bytes(12)) + struct.pack("<Q", 0)
    message = refuse(Build([build.raw_pair("k", build.ARRAY, payload)]))
    assert message == "the file ends inside key 'k', before the length of string 2 (at byte 77)"


@pytest.mark.parametrize(
    ("element_type", "item", "count"),
    [
        (build.STRING, bytes(8), limits.MAX_ARRAY_ITEMS),
        (build.ARRAY, bytes(12), limits.MAX_WALKED_ITEMS // 16),
    ],
)
def test_arrays_that_take_long_to_walk(
    refuse: Refuse, monkeypatch: pytest.MonkeyPatch, element_type: int, item: bytes, count: int
) -> None:
    monkeypatch.setattr(limits, "MAX_WALKED_ITEMS", limits.MAX_WALKED_ITEMS >> 12)
    count >>= 12
    payload = struct.pack("<IQ", element_type, count) + item * count
    pairs = [build.raw_pair(f"k{index}", build.ARRAY, payload) for index in range(3)]
    assert "hold more than 2048 items" in refuse(Build(pairs))


def nested(depth: int) -> bytes:
    """An array of one array, ``depth`` arrays in all."""
    return struct.pack("<IQ", build.ARRAY, 1) * (depth - 1) + struct.pack("<IQ", build.U8, 0)


def test_arrays_nested_100_deep(refuse: Refuse) -> None:
    payload = nested(100)
    assert "key 'deep' nests arrays more than 4 deep" in refuse(
        Build([build.raw_pair("deep", build.ARRAY, payload)])
    )
    assert "more than 4 deep" in refuse(Build([build.raw_pair("deep", build.ARRAY, nested(5))]))


def test_arrays_nested_to_the_limit_open(path: Path) -> None:
    path.write_bytes(bytes(Build([build.raw_pair("deep", build.ARRAY, nested(4))])))
    with open_gguf(path) as file:
        assert file.metadata.get("deep") == [[[[]]]]


def test_keys(refuse: Refuse) -> None:
    one = build.pair("n", build.U8, 1)
    assert refuse(Build([build.pair("", build.U32, 1), one])) == (
        "metadata key 0 is 0 bytes long, must be 1 to 65535 (at byte 24)"
    )
    assert refuse(Build([one, build.pair("k" * 65_536, build.U8, 1)])) == (
        "metadata key 1 is 65536 bytes long, must be 1 to 65535 (at byte 38)"
    )
    assert refuse(Build([one, one])) == "key 'n' appears twice (at byte 38)"
    assert refuse(Build([build.pair(b"\xff\n", build.U8, 1)])) == (
        r"metadata key 0 is not UTF-8: '\ufffd\n' (at byte 24)"
    )


def test_a_hostile_name_stays_on_one_short_line(refuse: Refuse) -> None:
    key = "\x1b[2J\r\n\u202e" + "x" * 60_000
    message = refuse(Build([build.raw_pair(key, 99, bytes(8))]))
    assert len(message) < 250
    assert message.startswith(r"key '\x1b[2J\r\n\u202exxx")


@pytest.mark.parametrize("type_id", [13, 99, 2**32 - 1])
def test_unknown_value_types(refuse: Refuse, type_id: int) -> None:
    assert refuse(Build([build.raw_pair("k", type_id, bytes(8))])) == (
        f"key 'k' has the unknown value type {type_id} (at byte 33)"
    )
    payload = struct.pack("<IQ", type_id, 1) + bytes(8)
    assert refuse(Build([build.raw_pair("k", build.ARRAY, payload)])) == (
        f"key 'k' has the unknown value type {type_id} (at byte 37)"
    )


def test_bools_are_0_or_1(refuse: Refuse) -> None:
    message = "key 'k' holds a bool that is neither 0 nor 1"
    assert message in refuse(Build([build.raw_pair("k", build.BOOL, b"\2")]))
    payload = struct.pack("<IQ", build.BOOL, 3) + b"\0\2\1"
    assert message in refuse(Build([build.raw_pair("k", build.ARRAY, payload)]))


@pytest.mark.parametrize(
    ("type_id", "alignment", "message"),
    [
        (build.U32, 0, "is 0, below the minimum of 8"),
        (build.U32, 3, "is 3, below the minimum of 8"),
        (build.U32, 4, "is 4, below the minimum of 8"),
        (build.U32, 48, "is 48, not a power of two"),
        (build.U32, 1 << 31, "is 2147483648, above the maximum of 2097152"),
        (build.U64, (1 << 64) - 1, "is 18446744073709551615, above the maximum of 2097152"),
        (build.I32, -32, "is -32, below the minimum of 8"),
        (build.F32, 32.0, "is float32, expected integer"),
        (build.STRING, "32", "is string, expected integer"),
    ],
)
def test_alignment(refuse: Refuse, type_id: int, alignment: object, message: str) -> None:
    pair = build.pair("general.alignment", type_id, alignment)
    assert (
        refuse(Build([pair], [Tensor("t")], bytes(64))) == f"key 'general.alignment' {message} (at byte 53)"
    )


def test_tensor_names(refuse: Refuse) -> None:
    def message(*names: str | bytes) -> str:
        return refuse(Build([], [Tensor(name) for name in names], bytes(32)))

    assert message("") == "the name of tensor 0 is 0 bytes long, must be 1 to 256 (at byte 24)"
    assert message("n" * 257) == "the name of tensor 0 is 257 bytes long, must be 1 to 256 (at byte 24)"
    assert message(b"\xc3") == r"the name of tensor 0 is not UTF-8: '\ufffd' (at byte 24)"
    assert message("t", "t") == "tensor 't' appears twice (at byte 57)"


@pytest.mark.parametrize(
    ("shape", "type_id", "message"),
    [
        ((1, 1, 1, 1, 1), 0, "has 5 dimensions, more than 4"),
        ((8, 0), 0, "has a dimension of 0"),
        ((2**42 + 1,), 0, "ends at byte 17592186044484 of a file of 96"),
        ((2**42 + 1, 2**22), 0, "has a shape whose product overflows 63 bits"),
        ((2**32, 2**32), 0, "has a shape whose product overflows 63 bits"),
        ((2**63,), 0, "has a shape whose product overflows 63 bits"),
        ((2**64 - 1,) * 4, 0, "has a shape whose product overflows 63 bits"),
        ((9,), 0, "ends at byte 100 of a file of 96"),
        ((48,), 2, "has rows of 48 elements, not a multiple of the 32 in a Q4_0 block"),
        ((32, 8), 12, "has rows of 32 elements, not a multiple of the 256 in a Q4_K block"),
        ((), 8, "has rows of 1 elements, not a multiple of the 32 in a Q8_0 block"),
        ((8,), 42, "has the unknown type 42"),
        ((8,), 2**32 - 1, "has the unknown type 4294967295"),
        ((8,), 31, "has type Q4_0_4_4, which ggml has retired"),
    ],
)
def test_tensor_shapes_and_types(refuse: Refuse, shape: tuple[int, ...], type_id: int, message: str) -> None:
    text = refuse(Build([], [Tensor("t", shape, type_id)], bytes(32)))
    assert text.startswith(f"tensor 't' {message} (at byte ")


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        (8, "has offset 8, not a multiple of the alignment 32"),
        (32, "ends at byte 128 of a file of 96"),
        (2**63, "ends at byte 9223372036854775904 of a file of 96"),
        (2**64 - 32, "ends at byte 18446744073709551680 of a file of 96"),
    ],
)
def test_tensor_offsets(refuse: Refuse, offset: int, message: str) -> None:
    text = refuse(Build([], [Tensor("t", (8,), 0, offset)], bytes(32)))
    assert text == f"tensor 't' {message} (at byte 49)"


def test_overlapping_tensors(refuse: Refuse) -> None:
    tensors = [Tensor("b", (8,), 0, 32), Tensor("a", (16,), 0, 0)]
    assert refuse(Build([], tensors, bytes(64))) == "tensors 'a' and 'b' overlap (at byte 128)"
    assert "overlap" in refuse(Build([], [Tensor("a"), Tensor("b")], bytes(64)))


def test_paths_that_are_no_readable_file(tmp_path: Path, path: Path) -> None:
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    path.touch()
    cases = {
        tmp_path / "absent.gguf": "cannot be read: No such file or directory",
        tmp_path: "not a regular file",
        pipe: "not a regular file",
        path: "the file is empty",
        Path("nul\0.gguf"): "cannot be read: embedded null byte",
    }
    for case, message in cases.items():
        with pytest.raises(GGUFError, match=f": {message}$") as caught:
            open_gguf(case)
        assert str(caught.value).isprintable()
