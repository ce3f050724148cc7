"""A small vocabulary, and walks through a grammar with it."""

import random
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from ferrite.grammar import Constraint, Grammar, GrammarCompiler
from ferrite.tokenizer import Tokenizer
from ferrite.tokenizer.bytelevel import BYTE_ALPHABET
from tests.tokenizer.metadata import CONTROL, NORMAL, UNUSED, USER_DEFINED, bytelevel

WORDS = (
    '{"',
    '":',
    '",',
    '"}',
    '["',
    "[[",
    "]]",
    "[[[[",
    '{"a":{',
    "  ",
    "    ",
    "\n  ",
    ': "',
    ", ",
    "true",
    "null",
    "12",
    "ab",
    "é",
    'x"',
    "\\u00",
)
"""Tokens of more than one byte, with borders inside and across those of JSON"""


@cache
def tokenizer() -> Tokenizer:
    """Load 256 bytes, ``WORDS`` and a few special tokens."""
    words = ["".join(BYTE_ALPHABET[byte] for byte in word.encode()) for word in WORDS]
    special = {"<|end|>": CONTROL, "<|im_end|>": CONTROL, "<tool>": USER_DEFINED, "[unused]": UNUSED}
    return bytelevel(
        tokens=[*BYTE_ALPHABET.values(), *words, *special],
        token_type=[NORMAL] * (256 + len(words)) + list(special.values()),
        merges=[],
        bos_token_id=None,
        eos_token_id=256 + len(words),
    )


@cache
def compiler() -> GrammarCompiler:
    """Return the compiler of the small vocabulary."""
    return GrammarCompiler(tokenizer())


def of_schema(schema: Mapping[str, Any], *, strict: bool = True) -> Grammar:
    """Compile a schema for the small vocabulary."""
    return compiler().compile_json_schema(schema, strict=strict)


def next_tokens(constraint: Constraint) -> list[int]:
    """Return the tokens that may come next."""
    words = np.zeros((tokenizer().vocab_size + 31) // 32, dtype=np.uint32)
    constraint.fill_mask(words)
    return np.nonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))[0].tolist()


def spelt(text: str) -> list[int]:
    """Return the text byte by byte; the small vocabulary begins with the 256 bytes, in order."""
    return list(text.encode())


def follows(grammar: Grammar, tokens: Sequence[int]) -> bool:
    """Whether ``tokens`` are a beginning of the grammar."""
    constraint = grammar.constraint()
    for token in tokens:
        if token not in next_tokens(constraint):
            return False
        constraint.accept(token)
    return True


def allows(grammar: Grammar, text: str) -> bool:
    """Whether ``text`` is an answer: each token allowed, and an end token after them."""
    constraint = grammar.constraint()
    for token in spelt(text):
        if token not in next_tokens(constraint):
            return False
        constraint.accept(token)
    ends = not tokenizer().end_ids.isdisjoint(next_tokens(constraint))
    assert ends == constraint.is_accepting
    return ends


def generate(grammar: Grammar, seed: int, *, wander: int = 60, most: int = 3000) -> str:
    """Return an answer of random tokens; after ``wander`` of them it looks for its end."""
    source = random.Random(seed)
    constraint = grammar.constraint()
    tokens: list[int] = []
    while not constraint.is_complete:
        assert len(tokens) < most, tokenizer().decode(tokens)[:500]
        possible = next_tokens(constraint)
        assert possible, tokenizer().decode(tokens)
        wanted = closing(tokenizer().decode(tokens)) if len(tokens) >= wander else []
        token = next((token for token in wanted if token in possible), None)
        tokens.append(source.choice(possible) if token is None else token)
        constraint.accept(tokens[-1])
    return tokenizer().decode(tokens)


def closing(text: str) -> list[int]:
    """Return what may end an unfinished JSON text soonest, the best first."""
    inside = len(re.findall(r'\\.|(")', text, re.DOTALL)) - len(re.findall(r"\\.", text, re.DOTALL))
    return list(b'"') if inside % 2 else [*sorted(tokenizer().end_ids), *b'}]",:0']
