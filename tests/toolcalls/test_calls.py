"""Calls out of text, family by family; what is no call stays text; any way of cutting the text."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrite.toolcalls import (
    MAX_ARGUMENT_BYTES,
    MAX_CALLS,
    AnswerEvent,
    AnswerStream,
    CallArguments,
    CallEnd,
    CallStart,
    Text,
    ToolFamily,
    whole,
)
from ferrite.toolcalls.call_state import MAX_UNREPORTED
from ferrite.toolcalls.families import (
    GENERIC,
    HERMES,
    LLAMA3,
    MISTRAL,
    MISTRAL_NAMED,
    PYTHONIC,
    PYTHONIC_MARKED,
)
from tests.toolcalls.support import cut, read, read_calls, syntax
from tests.toolcalls.test_json_text import values

FAMILIES = [HERMES, GENERIC, LLAMA3, MISTRAL, MISTRAL_NAMED, PYTHONIC, PYTHONIC_MARKED]


def _call(index: int, name: str, arguments: str, *, complete: bool = True) -> list[AnswerEvent]:
    pieces: list[AnswerEvent] = [CallArguments(index, arguments)] if arguments else []
    return [CallStart(index, f"call_{index}", name), *pieces, CallEnd(index, complete)]


F = _call(0, "f", '{"a": 1}')
F_THEN_G = [*F, *_call(1, "g", "{}")]


@pytest.mark.parametrize(
    ("family", "text", "events"),
    [
        (HERMES, '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', F),
        (HERMES, '<tool_call>{"arguments":{"a": 1}, "name":"f"}</tool_call>', F),
        (HERMES, '<tool_call>{"type": "function", "name": "f", "parameters": {"a": 1}, "id": 7}', F),
        (HERMES, '<tool_call>\n{"name": "f", "arguments": "{\\"a\\": 1}"}\n</tool_call>', F),
        (HERMES, '<tool_call>{"arguments": "{\\"a\\": 1}", "name": "f"}</tool_call>', F),
        (HERMES, '<tool_call>{"name": "f", "arguments": {"a": 1}', F),
        (HERMES, '<tool_call>{"name": "f", "arguments": {"a": 1}}}\n</tool_call>\n', F),
        (HERMES, '<tool_call>{"name": "f", "arguments": {"a": 1}, "why": [{}]}</tool_call>', F),
        (
            HERMES,
            '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>\n<tool_call>{"name": "g"}',
            F_THEN_G,
        ),
        (HERMES, '<tool_call>{"name": "f", "arguments": {"a": 1}}\n<tool_call>{"name": "g"}', F_THEN_G),
        (HERMES, '{"name": "f", "arguments": {"a": 1}}', F),
        (HERMES, '{"name": "f", "arguments": {"a": 1}}\n{"name": "g"}', F_THEN_G),
        (HERMES, '```json\n{"name": "f", "arguments": {"a": 1}}\n```', F),
        (HERMES, '```\n{"name": "f", "arguments": {"a": 1}}\n{"name": "g", "arguments": null}```', F_THEN_G),
        (LLAMA3, '{"name": "f", "parameters": {"a": 1}}', F),
        (
            LLAMA3,
            '<|python_tag|>{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}',
            F_THEN_G,
        ),
        (LLAMA3, '{"type": "function", "function": "f", "parameters": {"a": 1}}', F),
        (
            MISTRAL,
            '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]',
            F_THEN_G,
        ),
        (MISTRAL, '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "abcdefghi"}]', F),
        (MISTRAL, '[TOOL_CALLS] {"name": "f", "arguments": {"a": 1}}', F),
        (MISTRAL_NAMED, '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]123456789[ARGS]{}', F_THEN_G),
        (MISTRAL_NAMED, '[TOOL_CALLS]f{"a": 1}', F),
        (PYTHONIC, "[f(a=1), g()]", F_THEN_G),
        (PYTHONIC, "\n[ f( a = 1 ) ]\n", F),
        (PYTHONIC_MARKED, "<|tool_call_start|>[f(a=1)]<|tool_call_end|>", F),
        (PYTHONIC_MARKED, "<|tool_call_start|>[f(a=1), g()]", F_THEN_G),
    ],
)
def test_calls_of_every_family(family: ToolFamily, text: str, events: list[AnswerEvent]) -> None:
    assert read_calls(text, family) == events


@pytest.mark.parametrize(
    ("family", "text", "events"),
    [
        (
            HERMES,
            'I look.\n<tool_call>\n{"name": "g"}\n</tool_call>',
            [Text("I look."), *_call(0, "g", "{}")],
        ),
        (HERMES, 'I look.\n\n<tool_call>{"name": "g"}', [Text("I look.\n"), *_call(0, "g", "{}")]),
        (HERMES, '\n <tool_call>{"name": "g"}</tool_call>\n', _call(0, "g", "{}")),
        (HERMES, '<tool_call>{"name": "g"}</tool_call>\nDone.\n', [*_call(0, "g", "{}"), Text("\nDone.\n")]),
        (HERMES, '<tool_call>\n<tool_call>{"name": "g"}', [Text("<tool_call>\n"), *_call(0, "g", "{}")]),
        (HERMES, '{"name": "g"}\n{"t": 3}', [*_call(0, "g", "{}"), Text('\n{"t": 3}')]),
        (LLAMA3, '{"name": "g"}; \n', _call(0, "g", "{}")),
        (PYTHONIC, "[g(), ", _call(0, "g", "{}")),
        (LLAMA3, 'Hm. <|python_tag|>{"name": "g"}', [Text("Hm. "), *_call(0, "g", "{}")]),
        (MISTRAL, 'Hm.[TOOL_CALLS][{"name": "g"}]Hm.', [Text("Hm."), *_call(0, "g", "{}"), Text("Hm.")]),
    ],
)
def test_text_beside_calls_is_text(family: ToolFamily, text: str, events: list[AnswerEvent]) -> None:
    assert read_calls(text, family) == events


@pytest.mark.parametrize(
    ("family", "text"),
    [
        (HERMES, "a <tool_call> b"),
        (HERMES, "<tool_cal"),
        (HERMES, "a\n\n<tool_\n\n"),
        (HERMES, '<tool_call>{"name": "unknown", "arguments": {"a": 1}}</tool_call>'),
        (HERMES, '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
        (HERMES, '<tool_call>{"name": "f", "arguments": "[1]"}</tool_call>'),
        (HERMES, '<tool_call>{"name": "f", "arguments": "\\x"}</tool_call>'),
        (HERMES, '<tool_call>{"name": 3}</tool_call>'),
        (HERMES, '<tool_call>{"name": "f", "argumen'),
        (HERMES, '<tool_call>{"arguments": {"a": 1}}</tool_call>'),
        (HERMES, '<tool_call>{"id": "x", "name": "f", "arguments": {}}</tool_call>'),
        (HERMES, "<tool_call>f(a=1)</tool_call>"),
        (HERMES, '{"answer": 42}'),
        (HERMES, '{"type": "circle", "name": "f"}'),
        (HERMES, 'See {"name": "f", "arguments": {"a": 1}}'),
        (HERMES, '```python\n{"name": "f", "arguments": {"a": 1}}\n```'),
        (HERMES, '```json\n{"answer": 42}\n```\n'),
        (HERMES, "`a` ``b"),
        (HERMES, "</tool_call>"),
        (LLAMA3, '{"name": "unknown", "parameters": {}}'),
        (LLAMA3, "<|python_tag|>search.call(query='x')"),
        (MISTRAL, "[TOOL_CALLS] are written so"),
        (MISTRAL, '[{"name": "f", "arguments": {}}]'),
        (MISTRAL_NAMED, "[TOOL_CALLS]unknown[ARGS]{}"),
        (MISTRAL_NAMED, "[TOOL_CALLS]f[ARGX]{}"),
        (MISTRAL_NAMED, "[TOOL_CALLS]f[ARGS][1]"),
        (PYTHONIC, "[1, 2]"),
        (PYTHONIC, "[link](url)"),
        (PYTHONIC, "[f]"),
        (PYTHONIC, "[f('Oslo')]"),
        (PYTHONIC, "[unknown(a=1)]"),
        (PYTHONIC, "See [f(a=1)]"),
        (PYTHONIC_MARKED, "[f(a=1)]"),
        (PYTHONIC_MARKED, "<|tool_call_start|>f(a=1)"),
    ],
)
def test_what_merely_looks_like_a_call_is_text_unchanged(family: ToolFamily, text: str) -> None:
    assert read_calls(text, family) == [Text(text)]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@given(text=st.text(st.characters(exclude_characters="<[{`"), min_size=1))
def test_text_without_marks_goes_through(family: ToolFamily, text: str) -> None:
    assert read_calls(text, family) == [Text(text)]


def test_text_is_not_held_back_longer_than_it_must() -> None:
    stream = AnswerStream(calls=syntax(HERMES))
    assert stream.push("Hello") == [Text("Hello")]
    assert stream.push(" wor<") == [Text(" wor")]
    assert stream.push("b>") == [Text("<b>")]
    assert stream.push("\n") == []
    assert stream.push("\nx") == [Text("\n\nx")]


def test_arguments_flow_while_they_are_written() -> None:
    stream = AnswerStream(calls=syntax(HERMES))
    assert stream.push('<tool_call>\n{"name": "f", "arguments": ') == []
    assert stream.push("{") == [CallStart(0, "call_0", "f"), CallArguments(0, "{")]
    assert stream.push('"text": "lo') == [CallArguments(0, '"text": "lo')]
    assert stream.push("ng") == [CallArguments(0, "ng")]
    assert stream.push('"}') == [CallArguments(0, '"}'), CallEnd(0, complete=True)]
    assert stream.push("}\n</tool_call>") == []
    python = AnswerStream(calls=syntax(PYTHONIC))
    assert python.push("[f(a='lo") == [CallStart(0, "call_0", "f"), CallArguments(0, '{"a": "lo')]
    assert python.push("ng") == [CallArguments(0, "ng")]


TRICKY = (
    '{"path": "a}b\\"c", "line": -3, "text": "new\\nline 😀 </tool_call> <tool_call>", "x": [1.5e-3, {}]}'
)


@pytest.mark.parametrize(
    ("family", "before", "behind"),
    [
        (HERMES, '<tool_call>\n{"name": "f", "arguments": ', "}\n</tool_call>"),
        (LLAMA3, '{"name": "f", "parameters": ', "}"),
        (MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": ', "}]"),
        (MISTRAL_NAMED, "[TOOL_CALLS]f[ARGS]", ""),
    ],
)
def test_json_arguments_come_out_as_they_were_written(family: ToolFamily, before: str, behind: str) -> None:
    assert read_calls(f"{before}{TRICKY}{behind}", family) == _call(0, "f", TRICKY)


@given(st.dictionaries(st.text(max_size=5), values, max_size=4), st.lists(st.integers(0, 500), max_size=8))
def test_any_arguments_in_any_pieces(arguments: dict[str, Any], places: list[int]) -> None:
    written = json.dumps(arguments, ensure_ascii=False)
    text = f'Hm.\n<tool_call>\n{{"name": "f", "arguments": {written}}}\n</tool_call>'
    events = read(cut(text, places), AnswerStream(calls=syntax(HERMES)))
    assert events == [Text("Hm."), *_call(0, "f", written)]


FRAGMENTS = [
    *(
        "<tool_call>",
        "</tool_call>",
        '{"name": "f", "arguments": ',
        '{"a": 1}',
        "}",
        "{",
        '"',
        "\n",
        " ",
        "a<",
    ),
    *(
        '{"name": "g"}',
        '"name": "f"',
        ", ",
        "; ",
        "[TOOL_CALLS]",
        "[",
        "]",
        "f[ARGS]",
        "[f(a=1",
        "f(",
        ")",
        "='x'",
    ),
    *(
        "<|python_tag|>",
        "<|tool_call_start|>",
        "<|tool_call_end|>",
        "```json\n",
        "```",
        "é😀",
        "null",
        '\\"',
        "-",
    ),
]
scraps = st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@given(text=scraps, places=st.lists(st.integers(0, 200), max_size=6), max_calls=st.integers(1, 3))
def test_any_cut_of_any_text_gives_the_same(
    family: ToolFamily, text: str, places: list[int], max_calls: int
) -> None:
    expected = read_calls(text, family, max_calls=max_calls)
    stream = AnswerStream(calls=syntax(family, max_calls=max_calls))
    assert read(cut(text, places), stream) == expected


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@given(text=scraps)
def test_calls_are_well_formed_whatever_the_model_writes(family: ToolFamily, text: str) -> None:
    events = read_calls(text, family)
    answer = whole(events)
    for index, call in enumerate(answer.calls):
        own = [
            event
            for event in events
            if not isinstance(event, Text) and getattr(event, "index", None) == index
        ]
        assert [type(event) for event in own] in (
            [CallStart, CallArguments, CallEnd],
            [CallStart, CallEnd],
        )
        assert call.name in ("f", "g")
        if call.complete:
            assert isinstance(json.loads(call.arguments), dict)
        else:
            assert index == len(answer.calls) - 1
    if not answer.calls:
        assert answer.content == text


@pytest.mark.parametrize(
    ("family", "text", "arguments"),
    [
        (HERMES, '<tool_call>{"name": "f", "arguments": {"a": "lo', '{"a": "lo'),
        (HERMES, '<tool_call>{"name": "f", "arguments": {"a": x}}</tool_call> more', '{"a": '),
        (HERMES, '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1"}</tool_call>', '{"a": 1'),
        (LLAMA3, '{"name": "f", "parameters": {', "{"),
        (MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": {"a": -', '{"a": -'),
        (PYTHONIC, "[f(a='x', 3)] more", '{"a": "x"'),
    ],
)
def test_a_call_that_breaks_off_ends_incomplete_and_the_answer_with_it(
    family: ToolFamily, text: str, arguments: str
) -> None:
    assert read_calls(text, family) == _call(0, "f", arguments, complete=False)


def test_calls_are_bounded_in_number_and_size() -> None:
    text = '<tool_call>{"name": "g"}</tool_call>'
    assert len(whole(read_calls(text * (MAX_CALLS + 3), HERMES)).calls) == MAX_CALLS
    one = AnswerStream(calls=syntax(HERMES, max_calls=1))
    one.push(text[:-1])
    assert one.ended
    assert one.push(text * 2) == []
    for size, complete in ((MAX_ARGUMENT_BYTES, True), (MAX_ARGUMENT_BYTES + 1, False)):
        arguments = '{"é": "' + "x" * (size - len('{"é": ""}'.encode())) + '"}'
        stream = AnswerStream(calls=syntax(HERMES))
        call = whole(read([f'<tool_call>{{"name": "f", "arguments": {arguments}}}'], stream)).calls[0]
        assert call.complete == complete
        assert (call.arguments == arguments) == complete


def test_a_call_whose_name_comes_too_late_is_text() -> None:
    late = '<tool_call>{"arguments": {"a": "' + "x" * MAX_UNREPORTED + '"}, "name": "f"}'
    assert read([late], AnswerStream(calls=syntax(HERMES))) == [Text(late)]


def test_where_a_grammar_forces_calls_nothing_is_text() -> None:
    cut_off = '<tool_call>\n{"name": "f", "argu'
    assert read_calls(cut_off, HERMES, text_allowed=False) == []
    text = '<tool_call>{"name": "g"}</tool_call>\n'
    assert read_calls(text, HERMES, text_allowed=False) == _call(0, "g", "{}")


@pytest.mark.parametrize(
    ("family", "text", "content"),
    [
        (HERMES, 'Hm.\n<tool_call>\n{"na', "Hm."),
        (HERMES, "<tool_call>", ""),
        (HERMES, '{"name": "Ann', '{"name": "Ann'),
        (HERMES, "Hm <tool_ca", "Hm <tool_ca"),
        (HERMES, '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n<tool_call>\n{', ""),
        (LLAMA3, '{"name": "f", "parameters": {}}; {"na', ""),
        (PYTHONIC, "[f(x=1), g", ""),
        (MISTRAL_NAMED, "Hm.[TOOL_CALLS]f[AR", "Hm."),
    ],
)
def test_a_call_cut_before_its_arguments_is_dropped_where_a_grammar_says_that_it_is_one(
    family: ToolFamily, text: str, content: str
) -> None:
    guided = whole(read_calls(text, family, guided=True))
    assert (guided.content or "") == content
    assert all(call.complete for call in guided.calls)
    free = whole(read_calls(text, family))
    assert free.calls == guided.calls
    assert (free.content or "").startswith(content)
