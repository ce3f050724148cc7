"""How the template families write calls and reasoning, found from a template's text and its vocabulary."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

from ferrite.chat import ChatTemplate
from ferrite.tokenizer import Tokenizer

ControlId: TypeAlias = Callable[[str], int | None]
"""Text → id of the control token with that text; None where there is none."""


class Syntax(Enum):
    """What stands behind the mark that opens a call."""

    OBJECT = "object"
    """``{"name": "f", "arguments": {…}}``"""
    ARRAY = "array"
    """a list of such objects"""
    NAMED = "named"
    """the name, ``[ARGS]``, the arguments as JSON"""
    PYTHON = "python"
    """``[f(x=1), g()]``"""


@dataclass(frozen=True, slots=True)
class ToolFamily:
    """How one family of models writes calls.

    A call begins with ``trigger`` wherever that stands, or, where ``bare``, with the first bracket of
    ``syntax`` as the first character of the answer; an object may then also stand in a Markdown fence, as
    some small models write it. What merely looks like the beginning of a call is text.
    """

    name: str
    syntax: Syntax
    trigger: str = ""
    bare: bool = False
    closing: str = ""
    """What stands behind a call; a model may leave it out."""
    opening_gap: str = ""
    """Blanks that the model's template writes between trigger and call; a parser takes any."""
    closing_gap: str = ""
    """The same before ``closing``."""
    between: str = ""
    """What the template writes between two calls."""
    arguments_key: str = "arguments"
    """The key of the arguments in an object; a parser takes ``arguments`` and ``parameters``."""
    control_ids: tuple[tuple[str, int], ...] = ()
    """Marks of this family that are control tokens, and their ids. Their text must reach the parser although
    control tokens otherwise give no text, and a grammar names them by their ids."""

    @property
    def writes_trigger(self) -> bool:
        """The family's own template puts the trigger before calls; others are taken without it, too."""
        return bool(self.trigger) and not (self.bare and not self.closing)

    @property
    def told_in_text(self) -> bool:
        """The prompt tells tools as ordinary text (``ChatTemplate.render_prompt(tools_as_text=True)``)."""
        return self.name == "generic"

    def without_bare(self) -> "ToolFamily":
        """The family where content is JSON too: a call then needs its trigger, if it has one."""
        return replace(self, bare=False) if self.trigger else self

    def control_id(self, mark: str) -> int | None:
        """The id of a mark that is a control token."""
        return dict(self.control_ids).get(mark)


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """The marks around a reasoning section; ``control_ids`` as in ``ToolFamily``."""

    opening: str
    closing: str
    control_ids: tuple[tuple[str, int], ...] = ()


HERMES = ToolFamily(
    "hermes",
    Syntax.OBJECT,
    trigger="<tool_call>",
    bare=True,
    closing="</tool_call>",
    opening_gap="\n",
    closing_gap="\n",
    between="\n",
)
GENERIC = replace(HERMES, name="generic")
"""For templates that know no tools, or write calls in a form that no parser reads: ``ferrite.chat`` tells the
model tools and syntax in the prompt."""
LLAMA3 = ToolFamily(
    "llama3",
    Syntax.OBJECT,
    trigger="<|python_tag|>",
    bare=True,
    between="; ",
    arguments_key="parameters",
)
MISTRAL = ToolFamily("mistral", Syntax.ARRAY, trigger="[TOOL_CALLS]", between=", ")
MISTRAL_NAMED = ToolFamily("mistral-named", Syntax.NAMED, trigger="[TOOL_CALLS]")
PYTHONIC = ToolFamily("pythonic", Syntax.PYTHON, bare=True, between=", ")
PYTHONIC_MARKED = ToolFamily(
    "pythonic-marked",
    Syntax.PYTHON,
    trigger="<|tool_call_start|>",
    closing="<|tool_call_end|>",
    between=", ",
)

FENCE = "```"
FENCE_LANGUAGES = ("json", "")
ARGUMENTS_MARK = "[ARGS]"
CALL_ID_MARK = "[CALL_ID]"

_REASONING = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>"))
_PYTHONIC_EXAMPLE = re.compile(r"\[\w+\(\w+ ?= ?\w+")
_NOT_OURS = (
    "<function=",
    "<arg_key>",
    "<｜tool▁calls▁begin｜>",
    "<|tool_call>",
    "<|channel|>",
    "<minimax:tool_call>",
)
"""Calls as XML elements and other forms that no parser here reads."""


def find_family(template: str, *, uses_tools: bool, control_id: ControlId) -> ToolFamily:
    """The family of a template, by the marks that it writes or explains.

    ``uses_tools``: the template shows declared tools to the model.
    """
    family = (_family_of(template) if uses_tools else None) or GENERIC
    marks = [family.trigger, family.closing]
    if family.syntax is Syntax.NAMED:
        marks += [ARGUMENTS_MARK, CALL_ID_MARK]
    return replace(family, control_ids=_ids(marks, control_id))


def find_reasoning(
    template: str, *, control_id: ControlId, has_token: Callable[[str], bool]
) -> ReasoningMarks | None:
    """The reasoning marks that a template writes or that the vocabulary has as whole tokens, if any."""
    for opening, closing in _REASONING:
        if closing in template or (has_token(opening) and has_token(closing)):
            return ReasoningMarks(opening, closing, _ids((opening, closing), control_id))
    return None


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How one model writes what is not plain text."""

    family: ToolFamily
    reasoning: ReasoningMarks | None

    @property
    def shown_ids(self) -> frozenset[int]:
        """Control tokens whose text the answer's text must hold for the parsers to see."""
        marked = self.family.control_ids + (self.reasoning.control_ids if self.reasoning else ())
        return frozenset(token for _, token in marked)


def find_format(template: ChatTemplate, tokenizer: Tokenizer) -> AnswerFormat:
    """How the model of this template and vocabulary writes calls and reasoning."""
    ids = tokenizer.vocabulary.ids

    def control_id(text: str) -> int | None:
        token = ids.get(text)
        return token if token is not None and tokenizer.is_control(token) else None

    return AnswerFormat(
        find_family(template.tool_text, uses_tools=template.uses_tools, control_id=control_id),
        find_reasoning(template.text, control_id=control_id, has_token=ids.__contains__),
    )


def _family_of(template: str) -> ToolFamily | None:
    if any(mark in template for mark in _NOT_OURS):
        return None
    if "[TOOL_CALLS]" in template:
        return MISTRAL_NAMED if ARGUMENTS_MARK in template else MISTRAL
    if "<tool_call>" in template:
        return HERMES
    if "<|tool_call_start|>" in template:
        return PYTHONIC_MARKED
    if "<|python_tag|>" in template or ('"parameters"' in template and '"name"' in template):
        return LLAMA3
    return PYTHONIC if _PYTHONIC_EXAMPLE.search(template) else None


def _ids(marks: list[str] | tuple[str, ...], control_id: ControlId) -> tuple[tuple[str, int], ...]:
    found = ((mark, control_id(mark)) for mark in marks if mark)
    return tuple((mark, token) for mark, token in found if token is not None)
