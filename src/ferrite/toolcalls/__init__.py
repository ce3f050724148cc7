"""Calls and reasoning in what a model writes: definitions, families, streams of events, grammars."""

from ferrite.toolcalls.answer import AnswerStream, Call, WholeAnswer, call_ids, whole
from ferrite.toolcalls.call_state import MAX_ARGUMENT_BYTES, MAX_CALLS, CallSyntax
from ferrite.toolcalls.definitions import Function, Problem, ToolChoice, read_choice, read_functions
from ferrite.toolcalls.events import AnswerEvent, CallArguments, CallEnd, CallStart, Reasoning, Text
from ferrite.toolcalls.families import AnswerFormat, ReasoningMarks, ToolFamily, find_format
from ferrite.toolcalls.grammar import CallGrammarError, SchemaSource, call_grammar, content_grammar
from ferrite.toolcalls.reasoning import prompt_opens

__all__ = [
    "MAX_ARGUMENT_BYTES",
    "MAX_CALLS",
    "AnswerEvent",
    "AnswerFormat",
    "AnswerStream",
    "Call",
    "CallArguments",
    "CallEnd",
    "CallGrammarError",
    "CallStart",
    "CallSyntax",
    "Function",
    "Problem",
    "Reasoning",
    "ReasoningMarks",
    "SchemaSource",
    "Text",
    "ToolChoice",
    "ToolFamily",
    "WholeAnswer",
    "call_grammar",
    "call_ids",
    "content_grammar",
    "find_format",
    "prompt_opens",
    "read_choice",
    "read_functions",
    "whole",
]
