"""Families and reasoning marks, found from templates and vocabularies."""

from pathlib import Path

import pytest

from ferrite.chat import ChatTemplate
from ferrite.gguf import open_gguf
from ferrite.tokenizer import load_tokenizer
from ferrite.toolcalls import AnswerFormat, ReasoningMarks, find_format
from ferrite.toolcalls.families import (
    GENERIC,
    HERMES,
    LLAMA3,
    MISTRAL,
    MISTRAL_NAMED,
    PYTHONIC,
    PYTHONIC_MARKED,
    ToolFamily,
    find_family,
    find_reasoning,
)
from tests.chat.templates import (
    GEMMA,
    HERMES_TOOLS,
    LLAMA3_TOOLS,
    MISTRAL_TOOLS,
    PYTHONIC_TOOLS,
    TEXT_ARGUMENTS,
    Marked,
)


def no_control(text: str) -> int | None:
    """A vocabulary without control tokens."""


@pytest.mark.parametrize(
    ("template", "family"),
    [
        (HERMES_TOOLS, HERMES),
        (LLAMA3_TOOLS, LLAMA3),
        (MISTRAL_TOOLS, MISTRAL),
        (MISTRAL_TOOLS + "[ARGS]", MISTRAL_NAMED),
        (PYTHONIC_TOOLS, PYTHONIC),
        (PYTHONIC_TOOLS + "<|tool_call_start|>", PYTHONIC_MARKED),
        (TEXT_ARGUMENTS, GENERIC),
        (GEMMA, GENERIC),
        (HERMES_TOOLS + "<function=f><parameter=a>", GENERIC),
    ],
)
def test_the_template_tells_its_family(template: str, family: ToolFamily) -> None:
    uses_tools = ChatTemplate(template, Marked()).uses_tools
    assert find_family(template, uses_tools=uses_tools, control_id=no_control) == family
    assert family.told_in_text == (family is GENERIC)


def test_a_template_that_shows_no_tools_has_no_family_of_its_own() -> None:
    assert find_family("<tool_call>", uses_tools=False, control_id=no_control) == GENERIC


def test_marks_that_are_control_tokens_are_known_by_id() -> None:
    ids = {"[TOOL_CALLS]": 5, "[ARGS]": 6, "<think>": 7, "</think>": 8}
    named = find_family("[TOOL_CALLS][ARGS]", uses_tools=True, control_id=ids.get)
    assert named.control_ids == (("[TOOL_CALLS]", 5), ("[ARGS]", 6))
    assert named.control_id("[TOOL_CALLS]") == 5
    assert named.control_id("[CALL_ID]") is None
    marks = find_reasoning("</think>", control_id=ids.get, has_token=ids.__contains__)
    assert marks == ReasoningMarks("<think>", "</think>", (("<think>", 7), ("</think>", 8)))
    assert AnswerFormat(named, marks).shown_ids == {5, 6, 7, 8}
    assert AnswerFormat(HERMES, None).shown_ids == frozenset()


def test_reasoning_marks_are_found_in_template_or_vocabulary() -> None:
    def found(template: str, *tokens: str) -> str | None:
        marks = find_reasoning(template, control_id=no_control, has_token=tokens.__contains__)
        return None if marks is None else marks.opening

    assert found("{{ m.content.split('</think>')[-1] }}") == "<think>"
    assert found("", "<think>", "</think>") == "<think>"
    assert found("[THINK]x[/THINK]") == "[THINK]"
    assert found("", "<think>") is None
    assert found("") is None


@pytest.mark.model
@pytest.mark.parametrize(
    ("fixture", "family"), [("smollm2_path", GENERIC), ("qwen_path", HERMES), ("gemma_path", GENERIC)]
)
def test_real_models(fixture: str, family: ToolFamily, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(fixture)
    with open_gguf(path) as file:
        tokenizer = load_tokenizer(file.metadata)
        template = ChatTemplate.from_metadata(file.metadata, tokenizer)
    assert find_format(template, tokenizer) == AnswerFormat(family, None)
