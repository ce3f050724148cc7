"""The bounds of grammars and of what they generate, each with its reason."""

from llguidance import LLParserLimits

MAX_OUTPUT_BYTES = 1 << 20
MAX_OUTPUT_LEVELS = 64
"""Nested arrays and objects of a JSON answer"""

MAX_SCHEMA_BYTES = 64 << 10
MAX_SCHEMA_LEVELS = 64
"""Schemas within schemas, references apart"""
MAX_COMPILER_LEVELS = 512
"""The same with references followed where they are met first, as the compiler does: a third of its stack"""
MAX_SCHEMA_NODES = 4096
MAX_PROPERTIES = 512
"""Of one object. Every optional one may come next, with the rule for what follows it: four parser items."""
MAX_PATTERNS = 128
MAX_COMBINED_PATTERNS = 8
"""Of one text: eight that do not fit together take tenths of a second to find that out, twenty take many"""
MAX_PATTERN_CHARS = 2048
MAX_PATTERN_GROUPS = 64
"""Nested groups of a pattern"""
MAX_EXCLUDED_CHARS = 512
"""Of the texts that ``not`` excludes at one place: its pattern has that many alternatives, twice"""
MAX_EXCLUSIVE_ALTERNATIVES = 8
"""Of ``oneOf``, where they overlap: each is held against all others"""
MAX_DIVISOR = 4096
"""Part of ``multipleOf`` that is prime to 10, all of a schema taken together: the states of its automaton"""
MAX_LARK_BYTES = 1 << 20

WHITESPACE = r"\x20|\n[\x20\t]{0,20}"
"""Between JSON tokens: a space, or a line break and its indentation. A model cannot go on with blanks."""


def parser_limits() -> LLParserLimits:
    """Return the limits of one constraint; error texts stay free of what was generated."""
    return LLParserLimits(
        max_items_in_row=4096,
        initial_lexer_fuel=1_000_000,  # 20 ms
        step_lexer_fuel=200_000,  # 15 ms
        step_max_items=50_000,  # 3 ms
        max_lexer_states=100_000,  # 30 MiB; a string with a maxLength takes some six a character
        max_grammar_size=100_000,
        precompute_large_lexemes=True,
        verbose_errors=False,
    )
