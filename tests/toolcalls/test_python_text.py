"""Keyword arguments in Python syntax against the values they stand for."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrite.toolcalls.json_text import MAX_DEPTH
from ferrite.toolcalls.python_text import PythonReader

literals: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, min_size=2, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)


def _written(text: str) -> str | None:
    """The JSON for ``f(text)``."""
    reader, written = PythonReader(), "{"
    for at, character in enumerate(f"{text})"):
        step = reader.read(character)
        if step is None:
            return None
        reader = step[0]
        written += step[1]
        if reader.done:
            return written if at == len(text) else None
    return None


@given(st.dictionaries(names, literals, max_size=4))
def test_what_python_prints_becomes_the_same_json(arguments: dict[str, Any]) -> None:
    text = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    written = _written(text)
    assert written is not None
    assert json.loads(written) == json.loads(json.dumps(arguments))


@given(st.dictionaries(names, literals, max_size=4))
def test_json_values_are_taken_too(arguments: dict[str, Any]) -> None:
    written = _written(",".join(f"{name}={json.dumps(value)}" for name, value in arguments.items()))
    assert written is not None
    assert json.loads(written) == json.loads(json.dumps(arguments))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (
            "a=-3, b=.5, c=5., d=1_000, e=0x1F, f=+2",
            {"a": -3, "b": 0.5, "c": 5.0, "d": 1000, "e": 31, "f": 2},
        ),
        (r"a='\x41\u00e9\U0001F600\0\/'", {"a": "Aé😀\0/"}),
        (r"a='\ud83d\ude00'", {"a": "😀"}),
        (r"a='\d', b='x\'y', c=" + '"}\\""', {"a": "\\d", "b": "x'y", "c": '}"'}),
        ("a='line\nbreak'", {"a": "line\nbreak"}),
        ("a=(1,), b=[], c=(), d={}", {"a": [1], "b": [], "c": [], "d": {}}),
        (" a = [ 1 , 2 , ] , ", {"a": [1, 2]}),
        ("", {}),
    ],
)
def test_what_models_write(text: str, value: Any) -> None:
    assert json.loads(_written(text) or "null") == value


@pytest.mark.parametrize(
    "text",
    [
        *("1", "'x'", "a", "a=", "a=1 2", "a==1", "=1", "a=x", "a=x()", "a=[1}", "a={1: 2}", "a={'k'}"),
        *(
            "a=1,,b=2",
            "a='x'b=2",
            "a=1_0e999",
            "a=nan",
            "a=1..2",
            r"a='\xZZ'",
            r"a='\U00110000'",
            "**a",
            "é=1",
        ),
        "a=" + "9" * 513,
        "a=" + "[" * MAX_DEPTH,
    ],
)
def test_everything_else_is_refused(text: str) -> None:
    assert _written(text) is None
