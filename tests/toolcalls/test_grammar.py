"""Grammars of calls: llguidance compiles them, and all that they let through is read as it should be."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jsonschema
import llguidance
import llguidance.numpy
import pytest

from ferrite import toolcalls
from ferrite.gguf import open_gguf
from ferrite.grammar import GrammarCompiler
from ferrite.tokenizer import load_tokenizer
from ferrite.toolcalls import (
    AnswerStream,
    CallGrammarError,
    CallSyntax,
    Function,
    ReasoningMarks,
    ToolFamily,
    content_grammar,
    whole,
)
from ferrite.toolcalls.families import (
    GENERIC,
    HERMES,
    LLAMA3,
    MISTRAL,
    MISTRAL_NAMED,
    PYTHONIC,
    PYTHONIC_MARKED,
)
from tests.toolcalls.support import THINK, numbered, read

STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def _schema_source(schema: Mapping[str, Any], /, *, strict: bool) -> str:
    """JSON as ``json.dumps`` writes it; ``oddity`` anywhere stands for what cannot be enforced."""
    if "oddity" in json.dumps(schema):
        raise ValueError(f"no oddity, strict {strict}")
    return json.dumps({**schema, "x-guidance": STYLE})


call_grammar = partial(toolcalls.call_grammar, schema_source=_schema_source)
EOS, MARKS = 256, ("[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<think>", "</think>")


class _Bytes:
    """A vocabulary of bytes, EOS and marks that are control tokens."""

    eos_token_id = EOS
    bos_token_id = None
    tokens = [bytes([byte]) for byte in range(256)] + [mark.encode() for mark in ("<eos>", *MARKS)]
    special_token_ids = list(range(EOS, EOS + 1 + len(MARKS)))  # noqa: RUF012

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


TOKENIZER = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()))
IDS = {mark: EOS + 1 + index for index, mark in enumerate(MARKS)}
FUNCTIONS = [
    Function(
        "f",
        None,
        {
            "type": "object",
            "properties": {
                "path": {"type": "string", "maxLength": 12},
                "line": {"type": "integer"},
                "kind": {"$ref": "#/$defs/kind"},
            },
            "required": ["path", "line"],
            "additionalProperties": False,
            "$defs": {"kind": {"enum": ["a", 'b"}', None, True]}},
        },
        strict=True,
    ),
    Function("g-2"),
]
CONTROL = [
    replace(LLAMA3, control_ids=(("<|python_tag|>", IDS["<|python_tag|>"]),)),
    replace(MISTRAL, control_ids=(("[TOOL_CALLS]", IDS["[TOOL_CALLS]"]),)),
    replace(MISTRAL_NAMED, control_ids=(("[TOOL_CALLS]", IDS["[TOOL_CALLS]"]), ("[ARGS]", IDS["[ARGS]"]))),
]
FAMILIES = [HERMES, GENERIC, LLAMA3, MISTRAL, MISTRAL_NAMED, PYTHONIC, PYTHONIC_MARKED, *CONTROL]
CONTROL_THINK = replace(THINK, control_ids=tuple((mark, IDS[mark]) for mark in ("<think>", "</think>")))
families = pytest.mark.parametrize(
    "family", FAMILIES, ids=lambda family: f"{family.name}{'-control' * bool(family.control_ids)}"
)


def _matcher(grammar: str) -> llguidance.LLMatcher:
    matcher = llguidance.LLMatcher(TOKENIZER, llguidance.LLMatcher.grammar_from_lark(grammar))
    assert not matcher.is_error(), f"{matcher.get_error()}\n{grammar}"
    return matcher


def _ids(text: str, marks: Sequence[str]) -> list[int]:
    for mark in marks:
        before, found, behind = text.partition(mark)
        if found:
            return [*_ids(before, marks), IDS[mark], *_ids(behind, marks)]
    return list(text.encode())


def _fits(grammar: str, text: str, marks: Sequence[str] = ()) -> bool:
    """Whether the grammar lets the whole text through and may end there."""
    matcher, ids = _matcher(grammar), _ids(text, marks)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def _drawn(grammar: str, seed: int, steps: int = 600) -> str | None:
    """A random text that the grammar lets through, with a liking for its end; None where it has none soon."""
    draw = random.Random(seed)
    matcher = _matcher(grammar)
    mask = llguidance.numpy.allocate_token_bitmask(1, TOKENIZER.vocab_size)
    made: list[int] = []
    for _ in range(steps):
        llguidance.numpy.fill_next_token_bitmask(matcher, mask)
        bits = mask.view("uint8")[0]
        allowed = [token for token in range(TOKENIZER.vocab_size) if bits[token // 8] >> token % 8 & 1]
        ascii_only = [token for token in allowed if token < 128 or token >= EOS]
        liked = [token for token in allowed if token in (EOS, *b'"})]')]
        token = draw.choice(liked if liked and draw.random() < 0.6 else ascii_only or allowed)
        if token == EOS:
            text = b"".join(_Bytes.tokens[token] for token in made)
            return text.decode()
        assert matcher.consume_token(token)
        made.append(token)
    return None


def _arguments_are_right(name: str, arguments: dict[str, Any]) -> None:
    function = next(function for function in FUNCTIONS if function.name == name)
    jsonschema.validate(arguments, dict(function.parameters))


@families
@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("follow", ["possible", "strict"])
@pytest.mark.parametrize(
    ("marks", "opened"), [(None, False), (THINK, False), (THINK, True), (CONTROL_THINK, True)]
)
def test_every_grammar_compiles(
    family: ToolFamily,
    choice: Literal["auto", "required"],
    follow: Literal["possible", "strict"],
    marks: ReasoningMarks | None,
    opened: bool,
) -> None:
    for parallel in (True, False):
        _matcher(
            call_grammar(
                family, FUNCTIONS, choice=choice, parallel=parallel, follow=follow, marks=marks, opened=opened
            )
        )


@families
@pytest.mark.parametrize("parallel", [True, False])
def test_a_forced_answer_is_calls_of_declared_functions_that_follow_their_schemas(
    family: ToolFamily,
    parallel: bool,
) -> None:
    grammar = call_grammar(family, FUNCTIONS, choice="required", parallel=parallel)
    counts = set()
    for seed in range(12):
        text = _drawn(grammar, seed)
        if text is None:
            continue
        syntax = CallSyntax(family, frozenset(("f", "g-2")), numbered, text_allowed=False)
        answer = whole(read(text, AnswerStream(calls=syntax)))
        assert answer.calls, text
        for call in answer.calls:
            assert call.complete
            _arguments_are_right(call.name, json.loads(call.arguments))
        counts.add(len(answer.calls))
    assert counts == {1} if not parallel else max(counts) > 1


FREE = [
    "",
    "Hello.\n",
    "See <tool_cal [TOOL_CALL f(x) [1, 2] <|tool_call_start {}",
    '{"answer": 42}',
    '{"name": "Ann", "age": 3}',
    '```json\n{"a": 1}\n```',
    "[link](url)",
]


@families
@pytest.mark.parametrize("text", FREE)
def test_an_automatic_answer_may_be_any_text(family: ToolFamily, text: str) -> None:
    grammar = call_grammar(family, FUNCTIONS, choice="auto", parallel=True, marks=THINK)
    assert _fits(grammar, text)


G = '{"name": "g-2", "arguments": {}}'


@pytest.mark.parametrize(
    ("family", "good", "bad"),
    [
        (HERMES, f"Hm.\n<tool_call>\n{G}\n</tool_call>", "Hm.\n<tool_call>{"),
        (HERMES, f"<tool_call>\n{G}\n</tool_call>\n<tool_call>\n{G}\n</tool_call>", "<tool_call>\n{}"),
        (HERMES, G, '{"name": "f", "arguments": {}}'),
        (HERMES, f"```json\n{G}\n```", '```json\n{ "name": "f", "arguments": {}}'),
        (LLAMA3, '{"name": "g-2", "parameters": {}}', '{"type": "function", "name": "f"}'),
        (LLAMA3, '<|python_tag|>{"name": "g-2", "parameters": {}}', "<|python_tag|>f"),
        (CONTROL[0], '<|python_tag|>{"name": "g-2", "parameters": {}}', "<|python_tag|>f"),
        (CONTROL[1], f"Hm.[TOOL_CALLS][{G}, {G}]", "[TOOL_CALLS]f"),
        (CONTROL[2], "[TOOL_CALLS]g-2[ARGS]{}[TOOL_CALLS]g-2[ARGS]{}", "[TOOL_CALLS]x"),
        (PYTHONIC, '[g-2(), f(path="x", line=-3)]', "[f(line=3"),
        (PYTHONIC_MARKED, "Hm.<|tool_call_start|>[g-2()]<|tool_call_end|>", "<|tool_call_start|>[x"),
    ],
)
def test_an_automatic_answer_may_hold_calls_only_in_the_familys_form(
    family: ToolFamily, good: str, bad: str
) -> None:
    grammar = call_grammar(family, FUNCTIONS, choice="auto", parallel=True, marks=THINK)
    marks = [mark for mark, _ in family.control_ids]
    assert _fits(grammar, good, marks)
    matcher, ids = _matcher(grammar), _ids(bad, marks)
    assert matcher.try_consume_tokens(ids) < len(ids)


@pytest.mark.parametrize("family", [HERMES, LLAMA3])
@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('{\n  "name": "g-2",\n  "arguments": {}\n}', 1),
        ('\n{"name" : "g-2" , "parameters": {"a": [1]}}', 1),
        ('{"type": "function", "function": "g-2", "arguments": {}}', 1),
        ('```json\n{\n    "name": "g-2",\n    "arguments": {}\n}\n```', 1),
        ('```\n{"name":"g-2","arguments": {}}```', 1),
        (f"{G}\n{G}, {G};{G}", 4),
        (f"```json\n{G}\n{G}\n```", 2),
    ],
)
def test_a_call_without_its_trigger_may_be_spaced_as_the_model_likes(
    family: ToolFamily, text: str, count: int
) -> None:
    many, one = (
        call_grammar(family, FUNCTIONS, choice="auto", parallel=parallel) for parallel in (True, False)
    )
    assert _fits(many, text)
    assert _fits(one, text) == (count == 1)
    syntax = CallSyntax(family, frozenset(("f", "g-2")), numbered, guided=True)
    answer = whole(read(text, AnswerStream(calls=syntax)))
    assert ([call.name for call in answer.calls], answer.content) == (["g-2"] * count, None)


@pytest.mark.parametrize(("marks", "controls"), [(THINK, ()), (CONTROL_THINK, ("<think>", "</think>"))])
def test_a_reasoning_section_may_stand_before_a_forced_call(
    marks: ReasoningMarks, controls: Sequence[str]
) -> None:
    call = f"<tool_call>\n{G}\n</tool_call>"
    for opened, texts in (
        (
            False,
            {call: True, f"<think>\nhm <tool_call>\n</think>\n\n{call}": True, f"hm</think>{call}": False},
        ),
        (True, {call: False, f"hm <tool_call>\n</think>\n\n{call}": True, f"</think>{call}": True}),
    ):
        for choice in ("required", "auto"):
            grammar = call_grammar(
                HERMES, FUNCTIONS, choice=choice, parallel=True, marks=marks, opened=opened
            )
            for text, fits in texts.items():
                if choice == "required" or fits:
                    assert _fits(grammar, text, controls) == fits, (opened, choice, text)


def test_one_call_at_most_where_parallel_calls_are_off() -> None:
    call = f"<tool_call>\n{G}\n</tool_call>"
    many, one = (
        call_grammar(HERMES, FUNCTIONS, choice="required", parallel=parallel) for parallel in (True, False)
    )
    assert _fits(many, "\n".join([call] * 16))
    assert not _fits(many, "\n".join([call] * 17))
    assert _fits(one, call)
    assert not _fits(one, f"{call}\n{call}")


def test_only_strict_functions_follow_their_schema_where_that_is_asked_for() -> None:
    loose = replace(FUNCTIONS[0], name="h", strict=False)
    text = '<tool_call>\n{{"name": "{}", "arguments": {{"x": 1}}}}\n</tool_call>'
    strict = call_grammar(HERMES, [FUNCTIONS[0], loose], choice="required", parallel=True, follow="strict")
    assert _fits(strict, text.format("h"))
    assert not _fits(strict, text.format("f"))
    every = call_grammar(HERMES, [FUNCTIONS[0], loose], choice="required", parallel=True)
    assert not _fits(every, text.format("h"))


@pytest.mark.parametrize(
    ("parameters", "part"),
    [
        ({"anyOf": [{}]}, "`anyOf`"),
        ({"properties": {"a b": {}}}, "'a b'"),
        ({"properties": []}, "`properties`"),
        ({"required": 3}, "`required`"),
    ],
)
def test_what_python_syntax_cannot_express_is_refused(parameters: dict[str, Any], part: str) -> None:
    strict, loose = (Function("f", None, parameters, strict=strict) for strict in (True, False))
    with pytest.raises(CallGrammarError) as refusal:
        call_grammar(PYTHONIC, [strict], choice="required", parallel=True)
    assert part in str(refusal.value)
    assert refusal.value.function == "f"
    assert _fits(call_grammar(PYTHONIC, [loose], choice="required", parallel=True), "[f()]")


def test_python_syntax_requires_what_the_schema_requires() -> None:
    function = Function("f", None, {"properties": {"a": {"type": "integer"}}, "required": ["b"]})
    grammar = call_grammar(PYTHONIC, [function], choice="required", parallel=True)
    assert _fits(grammar, '[f(b="x", a=1)]')
    assert not _fits(grammar, "[f(a=1)]")
    loose = replace(function, parameters={**function.parameters, "anyOf": [{}]})
    assert _fits(
        call_grammar(PYTHONIC, [loose], choice="required", parallel=True, follow="strict"), "[f(b=1, a={})]"
    )


@pytest.mark.parametrize("follow", ["possible", "strict"])
@pytest.mark.parametrize("family", [HERMES, MISTRAL_NAMED, PYTHONIC])
def test_a_strict_schema_that_cannot_be_enforced_names_its_function(
    family: ToolFamily, follow: Literal["possible", "strict"]
) -> None:
    parameters = {"properties": {"x": {"oddity": 1}}}
    functions = [Function("f"), Function("g", None, parameters), Function("h", None, parameters, strict=True)]
    with pytest.raises(CallGrammarError, match="no oddity, strict True") as refusal:
        call_grammar(family, functions, choice="required", parallel=True, follow=follow)
    assert refusal.value.function == "h"
    grammar = call_grammar(family, functions[:2], choice="required", parallel=True, follow=follow)
    matcher = _matcher(grammar)
    assert matcher.is_accepting() is False


def test_a_loose_function_takes_any_object_where_its_schema_cannot_be_enforced() -> None:
    odd = Function("g", None, {"oddity": 1})
    grammar = call_grammar(HERMES, [odd], choice="required", parallel=False)
    assert _fits(grammar, '<tool_call>\n{"name": "g", "arguments": {"x": [1]}}\n</tool_call>')
    assert not _fits(grammar, '<tool_call>\n{"name": "g", "arguments": [1]}\n</tool_call>')


CONTENT = json.dumps({"type": "object", "additionalProperties": {"type": "integer"}, "x-guidance": STYLE})


@families
def test_content_may_be_json_where_calls_are_automatic(family: ToolFamily) -> None:
    family = family.without_bare()
    grammar = call_grammar(family, FUNCTIONS, choice="auto", parallel=True, content=CONTENT, marks=THINK)
    assert _fits(grammar, '{"a": 1}')
    assert _fits(grammar, '<think>\nHm.\n</think>\n\n{"a": 1}')
    assert not _fits(grammar, '{"a": "b"}')
    assert not _fits(grammar, "Hello")
    forced = call_grammar(family, FUNCTIONS, choice="required", parallel=False)
    texts = {text for seed in range(12) if (text := _drawn(forced, seed)) is not None}
    assert texts
    for text in texts:
        assert _fits(grammar, text, [mark for mark, _ in family.control_ids])
    answer = whole(read('{"name": 1}', AnswerStream(calls=CallSyntax(family, frozenset(["g-2"]), numbered))))
    assert (answer.content, answer.calls) == ('{"name": 1}', ())


@pytest.mark.parametrize(("marks", "controls"), [(THINK, ()), (CONTROL_THINK, ("<think>", "</think>"))])
def test_json_content_may_follow_a_reasoning_section(marks: ReasoningMarks, controls: Sequence[str]) -> None:
    for opened, texts in (
        (False, {'{"a": 1}': True, '<think>\n{"a</think>\n\n{"a": 1}': True, 'x{"a": 1}': False}),
        (True, {'{"a": 1}': False, '{"a</think>\n\n{"a": 1}': True}),
    ):
        grammar = content_grammar(CONTENT, marks, opened=opened)
        for text, fits in texts.items():
            assert _fits(grammar, text, controls) == fits, (opened, text)


@pytest.mark.model
@pytest.mark.parametrize(("fixture", "family"), [("qwen_path", HERMES), ("smollm2_path", GENERIC)])
def test_real_vocabularies_write_calls_in_the_tokens_that_the_model_knows(
    fixture: str, family: ToolFamily, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(fixture)
    with open_gguf(path) as file:
        tokenizer = load_tokenizer(file.metadata)
    compiler = GrammarCompiler(tokenizer)
    arguments = '{"path": "a}\\"é", "line": -3, "kind": "b\\"}"}'
    text = f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'
    for choice, before in (("required", ""), ("auto", "I look.\n")):
        grammar = toolcalls.call_grammar(
            family,
            FUNCTIONS,
            choice="auto" if choice == "auto" else "required",
            parallel=True,
            schema_source=compiler.schema_source,
        )
        constraint = compiler.compile_lark(grammar).constraint()
        for token in tokenizer.encode(before + text, parse_special=True, add_bos=False):
            constraint.accept(token)
        assert constraint.is_accepting
