"""Typed access: every type, defaults, and errors that name key, found and expected type."""

import math
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrite.gguf import GGUFError, GGUFFile, Metadata, ValueType, open_gguf
from tests.gguf import build
from tests.gguf.build import Build

GETTERS = ("string", "integer", "u32", "number", "boolean", "strings", "integers", "numbers")


@pytest.fixture
def file(path: Path) -> Iterator[GGUFFile]:
    path.write_bytes(
        bytes(
            Build(
                [
                    build.pair("string", build.STRING, "tëxt"),
                    build.pair("not utf-8", build.STRING, b"\xff"),
                    build.pair("integer", build.I16, -3),
                    build.pair("large", build.U64, 1 << 40),
                    build.pair("number", build.F32, 0.5),
                    build.pair("infinite", build.F64, math.inf),
                    build.pair("boolean", build.BOOL, True),
                    build.array_pair("strings", build.STRING, ["a", "", "日本"]),
                    build.array_pair("bad strings", build.STRING, ["a", b"\xe6\x97", b"\xff"]),
                    build.array_pair("cut strings", build.STRING, ["", b"a\xe6\x97", "", b"\xa5"]),
                    build.array_pair("integers", build.U8, [0, 255]),
                    build.array_pair("numbers", build.F64, [0.1, -2.5]),
                    build.array_pair("booleans", build.BOOL, [True, False]),
                    build.array_pair("empty", build.I32, []),
                ]
            )
        )
    )
    with open_gguf(path) as opened:
        yield opened


@pytest.fixture
def metadata(file: GGUFFile) -> Metadata:
    return file.metadata


def test_each_getter_returns_its_type(metadata: Metadata) -> None:
    assert metadata.string("string") == "tëxt"
    assert metadata.integer("integer") == -3
    assert metadata.integer("large") == 1 << 40
    assert metadata.number("number") == 0.5
    assert metadata.boolean("boolean") is True
    assert metadata.strings("strings") == ["a", "", "日本"]
    assert metadata.integers("integers").tolist() == [0, 255]
    assert metadata.numbers("numbers").tolist() == [0.1, -2.5]
    assert metadata.integers("empty").tolist() == []


def test_get_returns_natural_values(metadata: Metadata) -> None:
    assert metadata.get("string") == "tëxt"
    assert metadata.get("integer") == -3
    assert metadata.get("boolean") is True
    assert metadata.get("booleans") == [True, False]
    assert metadata.get("strings") == ["a", "", "日本"]
    assert metadata.get("empty") == []
    assert metadata.get("absent") is None
    assert metadata.get("absent", 3) == 3
    assert metadata.head("integers", 1) == [0]
    assert metadata.head("integers", 9) == [0, 255]


def test_entry_describes_without_decoding(metadata: Metadata) -> None:
    entry = metadata.entry("integers")
    assert (entry.type, entry.element_type, entry.count) == (ValueType.ARRAY, ValueType.UINT8, 2)
    assert (entry.kind, entry.item_type) == ("array of uint8", ValueType.UINT8)
    assert metadata.entry("integer").kind == "int16"
    assert "integer" in metadata
    assert "absent" not in metadata
    assert len(metadata) == len(list(metadata)) == 14


@pytest.mark.parametrize("getter", GETTERS)
def test_a_missing_key_is_named_unless_there_is_a_default(
    metadata: Metadata, path: Path, getter: str
) -> None:
    get = getattr(metadata, getter)
    with pytest.raises(GGUFError) as caught:
        get("llama.block_count")
    assert str(caught.value) == f"{path}: key 'llama.block_count' is missing"
    assert get("llama.block_count", None) is None
    assert get("llama.block_count", default="x") == "x"


@pytest.mark.parametrize(
    ("getter", "key", "problem"),
    [
        ("string", "integer", "is int16, expected string"),
        ("string", "not utf-8", "is not UTF-8 text"),
        ("get", "not utf-8", "holds text that is not UTF-8"),
        ("integer", "number", "is float32, expected integer"),
        ("integer", "boolean", "is bool, expected integer"),
        ("u32", "large", "is 1099511627776, above the maximum of 4294967295"),
        ("u32", "integer", "is -3, below the minimum of 0"),
        ("number", "integer", "is int16, expected float"),
        ("number", "infinite", "is inf, not a finite number"),
        ("boolean", "integers", "is array of uint8, expected bool"),
        ("strings", "string", "is string, expected array of string"),
        ("strings", "bad strings", "is not UTF-8 text at index 1"),
        ("strings", "cut strings", "is not UTF-8 text at index 1"),
        ("strings", "numbers", "is array of float64, expected array of string"),
        ("integers", "booleans", "is array of bool, expected array of integer"),
        ("numbers", "integers", "is array of uint8, expected array of float"),
    ],
)
def test_a_wrong_type_or_value_is_refused(
    metadata: Metadata, path: Path, getter: str, key: str, problem: str
) -> None:
    with pytest.raises(GGUFError) as caught:
        getattr(metadata, getter)(key)
    assert str(caught.value) == f"{path}: key {key!r} {problem} (at byte {metadata.entry(key).offset})"


def test_a_wrong_type_is_refused_even_with_a_default(metadata: Metadata) -> None:
    with pytest.raises(GGUFError, match="expected integer"):
        metadata.integer("number", 1)


def test_scores_declared_as_bytes_are_not_read_as_floats(path: Path) -> None:
    scores = build.array_pair("tokenizer.ggml.scores", build.U8, [1, 2, 3, 4])
    path.write_bytes(bytes(Build([scores])))
    with (
        open_gguf(path) as file,
        pytest.raises(
            GGUFError, match=r"'tokenizer\.ggml\.scores' is array of uint8, expected array of float"
        ),
    ):
        file.metadata.numbers("tokenizer.ggml.scores")


def test_an_error_of_a_user_names_file_key_and_place(metadata: Metadata, path: Path) -> None:
    offset = metadata.entry("string").offset
    assert str(metadata.error("string", "is odd")) == f"{path}: key 'string' is odd (at byte {offset})"


FIXED = [code for code in build.CODES if code not in (build.F32, build.F64, build.BOOL)]
BITS = {code: 8 * struct.calcsize(build.CODES[code]) for code in FIXED}


@st.composite
def integer_arrays(draw: st.DrawFn) -> tuple[int, list[int]]:
    code = draw(st.sampled_from(FIXED))
    low = -(1 << BITS[code] - 1) if build.CODES[code].islower() else 0
    return code, draw(st.lists(st.integers(low, low + (1 << BITS[code]) - 1), max_size=20))


@given(
    integers=integer_arrays(),
    texts=st.lists(st.text(max_size=20), max_size=20),
    numbers=st.lists(st.floats(width=32), max_size=20),
)
def test_arrays_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    integers: tuple[int, list[int]],
    texts: list[str],
    numbers: list[float],
) -> None:
    path = tmp_path_factory.getbasetemp() / "arrays.gguf"
    pairs = [
        build.array_pair("integers", integers[0], list(integers[1])),
        build.array_pair("texts", build.STRING, list(texts)),
        build.array_pair("numbers", build.F32, list(numbers)),
    ]
    path.write_bytes(bytes(Build(pairs)))
    with open_gguf(path) as file:
        assert file.metadata.integers("integers").tolist() == integers[1]
        assert file.metadata.strings("texts") == texts
        read = file.metadata.numbers("numbers").tolist()
        assert [math.isnan(it) or it for it in read] == [math.isnan(it) or it for it in numbers]
