"""Metadata made of Python values, and vocabularies small enough to read."""

import gc
import json
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ferrite.gguf import GGUFError, PackedBytes
from ferrite.tokenizer import Tokenizer, load_tokenizer
from ferrite.tokenizer.bytelevel import BYTE_ALPHABET

T = TypeVar("T")

CASES = Path(__file__).parent / "cases"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


class FakeMetadata:
    """Answers like ``ferrite.gguf.Metadata``; keys are given without ``tokenizer.ggml.``, None is missing."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def string(self, key: str) -> str:
        return self._value(key, str)

    def integer(self, key: str) -> int:
        return self._value(key, int)

    def boolean(self, key: str) -> bool:
        return self._value(key, bool)

    def packed_strings(self, key: str) -> PackedBytes:
        return packed(self._elements(key, str))

    def integers(self, key: str) -> npt.NDArray[np.integer]:
        return np.array(self._elements(key, int), np.int64)

    def numbers(self, key: str) -> npt.NDArray[np.floating]:
        return np.array(self._elements(key, float), np.float64)

    def _value(self, key: str, kind: type[T]) -> T:
        value = self._values.get(key)
        if type(value) is not kind:
            raise GGUFError(f"key {key!r} is missing or has another type")
        return value

    def _elements(self, key: str, kind: type[T]) -> list[T]:
        value = self._values.get(key)
        if not isinstance(value, list) or not all(type(element) is kind for element in value):
            raise GGUFError(f"key {key!r} is missing or has another type")
        return list(value)


def packed(texts: Sequence[str]) -> PackedBytes:
    """Pack texts as a file has them."""
    return PackedBytes.of(map(str.encode, texts))


def kept_bytes(make: Callable[[], object]) -> int:
    """Return how many bytes of Python objects and arrays there are for what ``make`` returns."""
    tracemalloc.start()
    try:
        made = make()
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    del made
    return taken


def stored(name: str) -> dict[str, Any]:
    """Return the stored cases of that name."""
    cases: dict[str, Any] = json.loads((CASES / f"{name}.json").read_text())
    return cases


def bytelevel_values(**changes: object) -> dict[str, object]:
    """Return metadata of a byte-level vocabulary: 256 bytes, three merges, four markers."""
    merges = ["h e", "l l", "he ll"]
    markers = {"<|bos|>": CONTROL, "<|im_start|>": CONTROL, "<|im_end|>": CONTROL, "<tool>": USER_DEFINED}
    tokens = [*BYTE_ALPHABET.values(), "he", "ll", "hell", *markers]
    values: dict[str, object] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [NORMAL] * 259 + list(markers.values()),
        "merges": merges,
        "bos_token_id": 259,
        "eos_token_id": 261,
    }
    return values | changes


def sentencepiece_values(**changes: object) -> dict[str, object]:
    """Return metadata of a scored vocabulary: byte tokens, a few pieces, equal scores among them."""
    pieces = {"▁": -9.0, "a": -9.0, "b": -9.0, "c": -9.0, "ab": -1.0, "bc": -1.0, "▁a": -2.0, "▁ab": -1.5}
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    values: dict[str, object] = {
        "model": "llama",
        "tokens": tokens,
        "token_type": [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces)],
        "scores": [0.0] * 259 + list(pieces.values()),
    }
    return values | changes


def bytelevel(**changes: object) -> Tokenizer:
    """Load ``bytelevel_values`` with changes."""
    return load_tokenizer(FakeMetadata(bytelevel_values(**changes)))


def sentencepiece(**changes: object) -> Tokenizer:
    """Load ``sentencepiece_values`` with changes."""
    return load_tokenizer(FakeMetadata(sentencepiece_values(**changes)))
