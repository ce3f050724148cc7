"""Grammars that a model's answer must follow: JSON, JSON Schema and Lark, as masks over its tokens."""

from ferrite.grammar.compiler import Grammar, GrammarCompiler
from ferrite.grammar.constraint import Constraint, MaskTarget
from ferrite.grammar.errors import ConstraintError, GrammarError
from ferrite.grammar.masks import MaskWorkers

__all__ = [
    "Constraint",
    "ConstraintError",
    "Grammar",
    "GrammarCompiler",
    "GrammarError",
    "MaskTarget",
    "MaskWorkers",
]
