"""Grammars for calls, in the Lark dialect of llguidance: a family's syntax, declared names, their schemas.

A grammar writes what the family's template writes, one form of each call; how the JSON of the arguments
is written, the source of the schemas decides. Marks that are control tokens are named by their id;
all others are text, so the vocabulary that the grammar is compiled for must give user-defined
tokens their text.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from ferrite.toolcalls.call_state import MAX_CALLS
from ferrite.toolcalls.definitions import Function
from ferrite.toolcalls.families import (
    ARGUMENTS_MARK,
    FENCE,
    FENCE_LANGUAGES,
    GENERIC,
    ReasoningMarks,
    Syntax,
    ToolFamily,
)

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BLANKS = r"[ \t\r\n]*"
_GAP = r"( |\n[ \t]*)?"
"""Between the parts of a call that the model spaces itself: nothing, a space, a line break and indentation.

More forms would make the automaton, and with it the first mask of each answer, several times as large.
"""
_ANY_TEXT = r"(.|\n)*"
_ROOT_KEYWORDS = frozenset(
    (
        *("type", "properties", "required", "additionalProperties", "$defs", "definitions"),
        *("$schema", "title", "description"),
    )
)


class SchemaSource(Protocol):
    """Writes a JSON Schema as what follows ``%json`` (``ferrite.grammar.GrammarCompiler.schema_source``)."""

    def __call__(self, schema: Mapping[str, Any], /, *, strict: bool) -> str:
        """Raises ``ValueError`` for a schema that cannot be enforced."""


class CallGrammarError(ValueError):
    """A function whose arguments cannot be made to follow its schema, and why."""

    def __init__(self, message: str, function: str) -> None:
        self.function = function
        """The function's name."""
        super().__init__(message)


def call_grammar(
    family: ToolFamily,
    functions: Sequence[Function],
    *,
    choice: Literal["auto", "required"],
    parallel: bool,
    schema_source: SchemaSource,
    follow: Literal["possible", "strict"] = "possible",
    content: str | None = None,
    marks: ReasoningMarks | None = None,
    opened: bool = False,
) -> str:
    """Return the grammar of an answer.

    ``functions``: those that may be called, at least one. ``choice``: with ``required`` the answer is one
    call or more; with ``auto`` it is free text, or text as the family allows it and then calls. ``parallel``
    false: one call at most. ``follow``: the arguments of ``strict`` functions follow their schema, those of
    the others too where that is ``possible``; else they are any object. ``content``: what is no call is not
    free but JSON of this source, with no text around it (``family`` is then ``without_bare``). ``marks``:
    the answer may begin with a reasoning section; ``opened``: it begins inside one.

    Raises ``CallGrammarError`` for a strict function whose schema ``schema_source`` or the family's syntax
    cannot express.
    """
    writer = _Writer(family, functions, schema_source, follow=follow)
    writer.add_calls(1 if not parallel else MAX_CALLS)
    if choice == "required":
        writer.rule("answer", "calls")
    elif content is not None:
        writer.rule("answer", "content | calls")
        writer.rule("content", f"%json {content}")
    else:
        writer.add_free_answer(marks, opened=opened)
    writer.add_start(marks, opened=opened)
    return writer.text()


def content_grammar(content: str, marks: ReasoningMarks, *, opened: bool) -> str:
    """Return the grammar of an answer that is JSON of the source ``content``, behind a reasoning section.

    The section may be missing unless it is ``opened``.
    """
    writer = _Writer(GENERIC, (), _no_schema, follow="strict")
    writer.rule("answer", f"%json {content}")
    writer.add_start(marks, opened=opened)
    return writer.text()


class _Writer:
    def __init__(
        self,
        family: ToolFamily,
        functions: Sequence[Function],
        schema_source: SchemaSource,
        *,
        follow: Literal["possible", "strict"],
    ) -> None:
        self._family = family
        self._functions = functions
        self._schema_source = schema_source
        self._follow = follow
        self._rules: list[str] = []

    def text(self) -> str:
        return "\n".join([*reversed(self._rules), ""])

    def rule(self, name: str, *body: str) -> None:
        self._rules.append(f"{name}: {' '.join(part for part in body if part)}")

    def add_calls(self, most: int) -> None:
        family = self._family
        for index, function in enumerate(self._functions):
            self._add_function(index, function)
        self.rule("call", " | ".join(f"call_{index}" for index in range(len(self._functions))))
        more = f"{{0,{most - 1}}}" if most > 1 else ""
        another = f"({_literal(family.between)} call){more}" if more else ""
        trigger = _mark(family, family.trigger) if family.writes_trigger else ""
        gap = _literal(family.opening_gap)
        match family.syntax:
            case Syntax.OBJECT if family.closing:
                self.rule("section", gap, "call", _literal(family.closing_gap), _mark(family, family.closing))
                again = f"({_literal(family.between)} {trigger} section){more}" if more else ""
                self.rule("body", "section", again)
            case Syntax.OBJECT:
                self.rule("body", "call", another)
            case Syntax.NAMED:
                self.rule("body", "call", f"({trigger} call){more}" if more else "")
            case Syntax.ARRAY:
                self.rule("body", '"["', "call", another, '"]"')
            case Syntax.PYTHON:
                # One literal up to the parenthesis, for the reason that `_add_bare_objects` has.
                firsts = (
                    f'{_literal(f"[{function.name}(")} arguments_{index} ")"'
                    for index, function in enumerate(self._functions)
                )
                self.rule("first", " | ".join(firsts))
                closing = _mark(family, family.closing) if family.closing else ""
                self.rule("body", "first", another, '"]"', closing)
        self.rule("calls", trigger, "body")
        if family.bare and family.syntax is Syntax.PYTHON:
            self.rule("bare", "body")
        elif family.bare:
            self._add_bare_objects(most)

    def add_free_answer(self, marks: ReasoningMarks | None, *, opened: bool) -> None:
        """Free text that is no call, or a call; the text in front of one ends at its trigger."""
        family = self._family
        refused = []
        trigger_id = family.control_id(family.trigger)
        if family.trigger and trigger_id is None:
            refused.append(f"{_ANY_TEXT}{_regex(family.trigger)}{_ANY_TEXT}")
        if marks is not None and not opened:
            refused.append(f"{_BLANKS}{_regex(marks.opening)}{_ANY_TEXT}")
        if family.bare:
            refused.append(f"{_BLANKS}{self._bare_beginning()}{_ANY_TEXT}")
        self.rule("TEXT", f"/{_ANY_TEXT}/", *(f"& ~/{regex}/" for regex in refused))
        forms = ["TEXT"]
        if family.bare:
            forms.append("bare")
        if trigger_id is not None:
            forms.append(f"TEXT <[{trigger_id}]> body")
        elif family.trigger:
            forms.append("head body")
            self.rule("head[lazy]", "TEXT", _literal(family.trigger))
        self.rule("answer", " | ".join(forms))

    def add_start(self, marks: ReasoningMarks | None, *, opened: bool) -> None:
        if marks is None:
            self.rule("start", "answer")
            return
        ids = dict(marks.control_ids)
        closing = f"<[{ids[marks.closing]}]>" if marks.closing in ids else _literal(marks.closing)
        opening = f"<[{ids[marks.opening]}]>" if marks.opening in ids else _literal(marks.opening)
        self.rule("ANY", f"/{_ANY_TEXT}/")
        self.rule("thought" if marks.closing in ids else "thought[lazy]", "ANY", closing)
        self.rule("GAP", r"/\n{1,2}/")
        section = "thought GAP?"
        self.rule("start", section if opened else f"({opening} {section})?", "answer")

    def _add_bare_objects(self, most: int) -> None:
        """Calls that begin the answer, spaced as the model likes, since its free text cannot begin so.

        Each is one token of the grammar up to its arguments, else free text would win over it.
        """
        self._add_leads("PLAIN", _GAP)
        self._add_leads("FENCED", f"{FENCE}({'|'.join(FENCE_LANGUAGES)})\\n{_GAP}")
        self.rule("TAIL", rf"/{_GAP}\}}/")
        self.rule("SEPARATOR", f"/{_GAP}[,;]/")
        self.rule("FENCE", f"/{_GAP}{FENCE}/")
        more = f"{{0,{most - 1}}}" if most > 1 else ""
        next_plain, next_fenced = more and f"(SEPARATOR? plain){more}", more and f"plain{more}"
        self.rule("bare", "plain", next_plain, "| fenced", next_fenced, "FENCE")

    def _add_leads(self, name: str, before: str) -> None:
        """A call as an object behind ``before``; one rule for each function, and one for all."""
        colon, comma = f"{_GAP}:{_GAP}", f"{_GAP},{_GAP}"
        forms = []
        for index, function in enumerate(self._functions):
            keys = rf'("type"{colon}"function"{comma})?"(name|function)"{colon}"{function.name}"{comma}'
            lead = rf'{before}\{{{_GAP}{keys}"(arguments|parameters)"{colon}'
            self.rule(f"{name}_{index}", f"/{lead}/")
            forms.append(f"{name}_{index} arguments_{index} TAIL")
        self.rule(name.lower(), " | ".join(forms))

    def _opening(self, function: Function) -> str:
        return f'{{"name": {json.dumps(function.name)}, {json.dumps(self._family.arguments_key)}: '

    def _bare_beginning(self) -> str:
        """What no text may begin with, since the parser would take it for a call."""
        names = "|".join(function.name for function in self._functions)
        if self._family.syntax is Syntax.OBJECT:
            colon = f"{_BLANKS}:{_BLANKS}"
            first_keys = (
                rf'"(name|function)"{colon}"({names})"',
                rf'"type"{colon}"function"',
                rf'"(arguments|parameters)"{colon}[\{{"]',
            )
            return rf"(```(json)?\n{_BLANKS})?\{{{_BLANKS}({'|'.join(first_keys)})"
        return rf"\[{_BLANKS}({names})\("

    def _add_function(self, index: int, function: Function) -> None:
        arguments = f"arguments_{index}"
        if self._family.syntax is Syntax.PYTHON:
            self._add_keywords(index, function)
            self.rule(f"call_{index}", _literal(f"{function.name}("), arguments, '")"')
            return
        schema = {**function.parameters, "type": "object"}
        self.rule(arguments, self._json(schema, function, otherwise={"type": "object"}))
        if self._family.syntax is Syntax.NAMED:
            self.rule(
                f"call_{index}", _literal(function.name), _mark(self._family, ARGUMENTS_MARK), arguments
            )
            return
        self.rule(f"call_{index}", _literal(self._opening(function)), arguments, '"}"')

    def _json(self, schema: Mapping[str, Any], function: Function, *, otherwise: Mapping[str, Any]) -> str:
        """What ``schema`` allows, or ``otherwise`` where it need not or cannot be followed."""
        if function.strict or self._follow == "possible":
            try:
                return f"%json {self._schema_source(schema, strict=function.strict)}"
            except ValueError as error:
                if function.strict:
                    raise CallGrammarError(str(error), function.name) from error
        return f"%json {self._schema_source(otherwise, strict=False)}"

    def _add_keywords(self, index: int, function: Function) -> None:
        """Keyword arguments in the order of the schema; what is not required may be left out."""
        properties, required = _keywords(function)
        shared = {
            key: function.parameters[key] for key in ("$defs", "definitions") if key in function.parameters
        }
        rest, first = f"rest_{index}_{len(properties)}", f"lead_{index}_{len(properties)}"
        self.rule(rest, '""')
        self.rule(first, '""')
        for position, (name, schema) in reversed(list(enumerate(properties.items()))):
            value = f"value_{index}_{position}"
            described = {**shared, **schema} if isinstance(schema, Mapping) else {}
            self.rule(value, self._json(described, function, otherwise={}))
            key, after = _literal(f"{name}="), rest
            rest, skipped, first = f"rest_{index}_{position}", first, f"lead_{index}_{position}"
            needed = name in required
            self.rule(rest, f'", " {key} {value} {after}' if needed else f'(", " {key} {value})? {after}')
            self.rule(first, f"{key} {value} {after}", "" if needed else f"| {skipped}")
        self.rule(f"arguments_{index}", first)


def _keywords(function: Function) -> tuple[Mapping[str, Any], frozenset[str]]:
    """The schema of each parameter that may be given, and the names of those that must be.

    Of a function that is not strict, what Python's syntax cannot express is left out.
    """
    properties = function.parameters.get("properties", {})
    required = function.parameters.get("required", [])
    named = isinstance(required, list) and all(isinstance(name, str) for name in required)
    if function.strict:
        _check_keywords(function, properties, required if named else None)
    needed = required if named else []
    allowed = {**dict.fromkeys(needed, True), **(properties if isinstance(properties, Mapping) else {})}
    return {name: schema for name, schema in allowed.items() if _IDENTIFIER.fullmatch(name)}, frozenset(
        needed
    )


def _check_keywords(function: Function, properties: object, required: Sequence[str] | None) -> None:
    for keyword in function.parameters:
        if keyword not in _ROOT_KEYWORDS:
            message = f"The model writes calls as Python, which cannot follow `{keyword}` of all parameters."
            raise CallGrammarError(message, function.name)
    if not isinstance(properties, Mapping):
        raise CallGrammarError("`properties` must be an object.", function.name)
    if required is None:
        raise CallGrammarError("`required` must be a list of strings.", function.name)
    for name in (*required, *properties):
        if not _IDENTIFIER.fullmatch(name):
            message = f"The model writes calls as Python, where no parameter can be named {name[:64]!r}."
            raise CallGrammarError(message, function.name)


def _no_schema(schema: Mapping[str, Any], /, *, strict: bool) -> str:
    raise ValueError("no function, no schema")


def _literal(text: str) -> str:
    return json.dumps(text) if text else ""


def _mark(family: ToolFamily, mark: str) -> str:
    token = family.control_id(mark)
    return _literal(mark) if token is None else f"<[{token}]>"


def _regex(text: str) -> str:
    return re.sub(r"([^A-Za-z0-9_<>])", r"\\\1", text)
