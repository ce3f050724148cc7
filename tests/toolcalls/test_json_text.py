"""The JSON reader against Python's own."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrite.toolcalls.json_text import MAX_DEPTH, JsonReader, escaped

values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
FRAGMENTS = [*'{}[],:"\\-01.eE+u', "true", "null", "12", '"a"', "\\n", "\\u00e9", " ", "\n", "é"]


def _read(text: str) -> tuple[str | None, str]:
    """What was written for the value, None where the text is none; and what is left of the text."""
    reader, written = JsonReader(), ""
    for at, character in enumerate(text):
        if reader.done:
            return written, text[at:]
        step = reader.read(character)
        if step is None:
            return None, text[at:]
        reader = step[0]
        written += step[1]
        if reader.done and not step[1]:
            return written, text[at:]
    return (written if reader.done else None), ""


@given(values, st.sampled_from([None, 1]), st.booleans())
def test_every_value_is_read_to_its_end_and_written_as_it_is(
    value: Any,
    indent: int | None,
    ensure_ascii: bool,
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)
    assert _read(f"{text},") == (text, ",")


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join))
def test_what_json_refuses_is_refused(text: str) -> None:
    written, rest = _read(f"[{text}]")
    try:
        json.loads(f"[{text}]", strict=False)
    except json.JSONDecodeError:
        assert written is None or rest
    else:
        assert rest == ""
        assert json.loads(written or "") == json.loads(f"[{text}]", strict=False)


def test_control_characters_in_strings_are_escaped() -> None:
    assert _read('"a\nb\tc\x01"') == ('"a\\nb\\tc\\u0001"', "")
    assert [escaped(character) for character in '"\\\r\ud800é'] == ['\\"', "\\\\", "\\r", "\\ud800", "é"]


@pytest.mark.parametrize(
    "text", ["01", "-", "1.", "1.e5", "1e", ".5", "+1", "NaN", "tru", "'a'", "{a:1}", "[1,]", '{"a":1,}']
)
def test_near_json_is_no_json(text: str) -> None:
    written, rest = _read(f"[{text}]")
    assert written is None or rest


def test_nesting_is_bounded() -> None:
    assert _read("[" * MAX_DEPTH + "]" * MAX_DEPTH)[0] is not None
    assert _read("[" * (MAX_DEPTH + 1))[0] is None
    assert _read("[" + "9" * 512 + "]")[0] is not None
    assert _read("[" + "9" * 513 + "]")[0] is None
