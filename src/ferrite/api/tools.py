"""Tools: what a request declares and wants, what its answer must follow, and how the answer is read."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from ferrite.api.errors import ApiError, invalid
from ferrite.api.structured import Grammars, JsonForm, schema_refusal
from ferrite.chat import Segments
from ferrite.grammar import Constraint, Grammar, GrammarError
from ferrite.toolcalls import (
    MAX_CALLS,
    AnswerFormat,
    AnswerStream,
    CallGrammarError,
    CallSyntax,
    Function,
    ReasoningMarks,
    ToolChoice,
    ToolFamily,
    call_grammar,
    call_ids,
    content_grammar,
    prompt_opens,
    read_choice,
    read_functions,
)
from ferrite.toolcalls.definitions import Problem

MAX_COMPILE_SECONDS = 5.0
"""For the schemas of one request's functions; looked at before each of them.

A usual one takes milliseconds, overlapping alternatives of ``oneOf`` made to be slow a second or two.
"""

T = TypeVar("T")

_NO_CHOICE = ToolChoice("none", ())


@dataclass(frozen=True, slots=True)
class Tools:
    """The functions of a request, and what the model may do with them."""

    functions: tuple[Function, ...] = ()
    """Those declared, in the order of ``tools``."""
    choice: ToolChoice = _NO_CHOICE
    parallel: bool = True
    flat: bool = False
    """The request has the form of ``/v1/responses``."""

    def declarations(self) -> list[dict[str, Any]] | None:
        """Return what the chat template shows to the model: nothing where no call is wanted.

        All functions where some are chosen, so that a choice leaves the beginning of the prompt as it is.
        """
        if self.choice.mode == "none":
            return None
        return [function.as_template_sees() for function in self.functions]

    def param(self, name: str) -> str:
        """Return where the client wrote the parameters of a function."""
        index = next(index for index, function in enumerate(self.functions) if function.name == name)
        return f"tools[{index}].parameters" if self.flat else f"tools[{index}].function.parameters"


def read_tools(
    tools: Sequence[object] | None, choice: object, *, parallel: bool | None, flat: bool = False
) -> Tools:
    """Check ``tools``, ``tool_choice`` and ``parallel_tool_calls``, as JSON values; raises 400.

    ``flat``: the form of ``/v1/responses``.
    """
    functions = _checked(read_functions(tools or [], flat=flat))
    chosen = _checked(read_choice(choice, functions, flat=flat))
    return Tools(functions, chosen, parallel is not False, flat)


@dataclass(frozen=True, slots=True)
class AnswerRules:
    """What one answer must follow, and how it is read."""

    grammar: Grammar | None = None
    """None: it is free text."""
    family: ToolFamily | None = None
    """How calls are written; None: none is looked for."""
    names: frozenset[str] = field(default_factory=frozenset)
    """The functions that may be called."""
    max_calls: int = MAX_CALLS
    text_allowed: bool = True
    marks: ReasoningMarks | None = None
    opened: bool = False
    """The prompt ends inside a reasoning section."""

    @property
    def constraint(self) -> Callable[[], Constraint] | None:
        """Makes what one generation must follow; None for free text."""
        return None if self.grammar is None else self.grammar.constraint

    def stream(self, unique: str) -> AnswerStream:
        """Return the reader of one answer. ``unique``: what the ids of its calls are made of."""
        calls = None
        if self.family is not None:
            calls = CallSyntax(
                self.family,
                self.names,
                call_ids(unique),
                max_calls=self.max_calls,
                text_allowed=self.text_allowed,
                guided=self.grammar is not None,
            )
        return AnswerStream(calls=calls, marks=self.marks, opened=self.opened)


def answer_rules(
    tools: Tools,
    form: JsonForm | None,
    *,
    grammars: Grammars,
    answer_format: AnswerFormat,
    prompt: Segments,
    token_text: Callable[[int], str],
    clock: Callable[[], float] = time.monotonic,
) -> AnswerRules:
    """Return the rules of an answer to a rendered prompt; raises 400 for a schema that cannot be enforced.

    Where calls may be made, the answer always follows a grammar: what begins as a call is one, of a function
    that may be called, with arguments that are an object. ``form`` is that of the content, which calls
    stand in for. Compiles; not for the event loop.
    """
    marks = answer_format.reasoning
    opened = marks is not None and prompt_opens(marks, prompt, token_text)
    if tools.choice.mode == "none":
        grammar = None if form is None else _json_grammar(form, grammars, marks, opened=opened)
        return AnswerRules(grammar, marks=marks, opened=opened)
    family = answer_format.family if form is None else answer_format.family.without_bare()
    return AnswerRules(
        _call_grammar(tools, form, family, grammars, marks, opened=opened, clock=clock),
        family,
        frozenset(function.name for function in tools.choice.functions),
        max_calls=MAX_CALLS if tools.parallel else 1,
        text_allowed=tools.choice.mode == "auto",
        marks=marks,
        opened=opened,
    )


def _json_grammar(
    form: JsonForm, grammars: Grammars, marks: ReasoningMarks | None, *, opened: bool
) -> Grammar:
    if marks is None:
        return form.grammar(grammars)
    try:
        return grammars.compile_lark(content_grammar(form.source(grammars), marks, opened=opened))
    except GrammarError as error:
        raise schema_refusal(error, form.schema, form.param) from error


def _call_grammar(
    tools: Tools,
    form: JsonForm | None,
    family: ToolFamily,
    grammars: Grammars,
    marks: ReasoningMarks | None,
    *,
    opened: bool,
    clock: Callable[[], float],
) -> Grammar:
    content = None if form is None else form.source(grammars)
    mode: Literal["auto", "required"] = "auto" if tools.choice.mode == "auto" else "required"
    deadline = clock() + MAX_COMPILE_SECONDS

    def schema_source(schema: Mapping[str, Any], /, *, strict: bool) -> str:
        if clock() > deadline:
            message = f"The functions' schemas take more than {MAX_COMPILE_SECONDS:.0f} seconds to compile."
            raise invalid(message, "tools", "unsupported_schema")
        return grammars.schema_source(schema, strict=strict)

    def compiled(follow: Literal["possible", "strict"]) -> Grammar:
        text = call_grammar(
            family,
            tools.choice.functions,
            choice=mode,
            parallel=tools.parallel,
            schema_source=schema_source,
            follow=follow,
            content=content,
            marks=marks,
            opened=opened,
        )
        return grammars.compile_lark(text)

    try:
        try:
            return compiled("possible")
        except GrammarError:
            # All the schemas together are too much; those of strict functions must be followed all the same.
            return compiled("strict")
    except CallGrammarError as error:
        raise _function_refusal(error, tools) from error
    except GrammarError as error:
        raise invalid(
            f"The functions' schemas together are too complex: {error.reason}.", "tools", "unsupported_schema"
        ) from error


def _function_refusal(error: CallGrammarError, tools: Tools) -> ApiError:
    param = tools.param(error.function)
    cause = error.__cause__
    if isinstance(cause, GrammarError):
        function = next(function for function in tools.functions if function.name == error.function)
        return schema_refusal(cause, function.parameters, param)
    return invalid(str(error), param, "unsupported_schema")


def _checked(read: T | Problem) -> T:
    if isinstance(read, Problem):
        raise invalid(read.message, read.param)
    return read
