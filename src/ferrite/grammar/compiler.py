"""From a JSON Schema or a Lark text to a grammar that a model's tokens can follow."""

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from llguidance import LLMatcher

from ferrite.grammar.alternatives import join_alternatives
from ferrite.grammar.combined import check_combined
from ferrite.grammar.constraint import Constraint, one_line
from ferrite.grammar.culprit import find_culprit
from ferrite.grammar.errors import ConstraintError, GrammarError
from ferrite.grammar.limits import MAX_LARK_BYTES, WHITESPACE, parser_limits
from ferrite.grammar.lowering import lower_keywords
from ferrite.grammar.reader import Node
from ferrite.grammar.recursion import check_depth, cut_endless
from ferrite.grammar.schema import CheckedSchema, check_schema
from ferrite.grammar.vocabulary import Vocabulary, build_vocabulary
from ferrite.tokenizer import Tokenizer

NO_FORCING = '%llguidance {"no_forcing": true}\n'
"""Where only one text can follow, the model still chooses its tokens: no mask asks a tokenizer for them."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar that compiles. Shared by any number of constraints and threads."""

    source: str
    """Lark, in llguidance's dialect"""
    is_json: bool
    """the whole answer is one JSON value"""
    _vocabulary: Vocabulary = field(repr=False, compare=False)

    def constraint(self) -> Constraint:
        """Start a generation: milliseconds, most of them without the GIL; not for the engine's thread."""
        vocabulary = self._vocabulary
        matcher = LLMatcher(vocabulary.tree, self.source, log_level=0, limits=parser_limits())
        if matcher.is_error():
            raise GrammarError(one_line(matcher.get_error()))
        nesting = vocabulary.nesting if self.is_json else None
        return Constraint(matcher, vocabulary.tokens, vocabulary.end_ids, nesting)


class GrammarCompiler:
    """Compiles grammars for one model. Its methods may be called from any threads but the engine's."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._vocabulary: Vocabulary | None = None

    def prepare(self) -> None:
        """Build the model's vocabulary, which the first grammar would do otherwise: a second or two, once."""
        self._prepared()

    def compile_json_object(self) -> Grammar:
        """Return the grammar of any JSON object."""
        return self._compile(json_source({"type": "object"}), is_json=True)

    def compile_json_schema(self, schema: Mapping[str, object], *, strict: bool) -> Grammar:
        """Return the grammar of the JSON values that ``schema`` has.

        What cannot be enforced is refused, ``strict`` or not, with a ``GrammarError`` that names the keyword
        and its place; ``strict`` also refuses a ``format`` that is only an annotation.
        """
        checked = checked_schema(schema, strict=strict)
        try:
            return self._compile(json_source(document(checked)), is_json=True)
        except GrammarError as error:
            raise find_culprit(checked, error, _refuses) from error

    def compile_lark(self, text: str) -> Grammar:
        """Return the grammar of a Lark text in llguidance's dialect, such as one for tool calls.

        Schemas in it come from ``schema_source``.
        """
        if len(text) > MAX_LARK_BYTES:
            raise GrammarError(f"the grammar has {len(text)} characters, the limit is {MAX_LARK_BYTES}")
        return self._compile(NO_FORCING + text, is_json=False)

    def schema_source(self, schema: Mapping[str, object], *, strict: bool) -> str:
        """Return ``schema`` as what follows ``%json`` in a Lark text; raises like ``compile_json_schema``."""
        checked = checked_schema(schema, strict=strict)
        refusal = _refuses(document(checked))
        if refusal is not None:
            raise find_culprit(checked, GrammarError(refusal), _refuses)
        return json_body(document(checked))

    def _compile(self, source: str, *, is_json: bool) -> Grammar:
        vocabulary = self._prepared()
        grammar = Grammar(source, is_json, vocabulary)
        words = np.zeros((len(vocabulary.tokens) + 31) // 32, dtype=np.uint32)
        try:
            possible = grammar.constraint().fill_mask(words)
        except ConstraintError as error:
            raise GrammarError(str(error)) from error
        if not possible:
            raise GrammarError("no value satisfies it")
        return grammar

    def _prepared(self) -> Vocabulary:
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = build_vocabulary(self._tokenizer)
            return self._vocabulary


def checked_schema(schema: Mapping[str, object], *, strict: bool) -> CheckedSchema:
    """Return the schema in the compiler's form; raises ``GrammarError``."""
    checked = check_schema(schema, strict=strict)
    join_alternatives(checked)
    lower_keywords(checked)
    check_depth(checked)
    check_combined(checked)
    cut_endless(checked)
    join_alternatives(checked)
    return checked


def document(checked: CheckedSchema, root: Node | None = None) -> Node:
    """Return one JSON document: the schema's root, or another of its nodes, and the definitions."""
    node = checked.root if root is None else root
    return {**node, "$defs": checked.definitions} if checked.definitions else node


def json_body(schema: Node) -> str:
    """Return a checked schema as what follows ``%json``, with our whitespace between JSON tokens."""
    return json.dumps({**schema, "x-guidance": {"whitespace_pattern": WHITESPACE}})


def json_source(schema: Node) -> str:
    """Return the Lark text of a checked schema."""
    return f"{NO_FORCING}start: %json {json_body(schema)}"


def _refuses(schema: Node) -> str | None:
    """Return why the library cannot compile a checked schema."""
    message = LLMatcher.validate_grammar(json_source(schema), None, limits=parser_limits())
    return None if not message or message.startswith("WARNING: ") else one_line(message)
