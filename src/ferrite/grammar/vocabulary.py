"""A tokenizer's vocabulary as grammars need it: a prefix tree of bytes, control tokens, end tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from llguidance import LLTokenizer, TokenizerWrapper

from ferrite.gguf import PackedBytes
from ferrite.grammar.nesting import NestingLimit
from ferrite.tokenizer import Tokenizer

SPECIAL = 0xFF
"""The library's first byte of special tokens; no text has it, so tokens that begin with it count as empty."""

TEXT = r'[^"\\\x00-\x1F\x7F]'
"""What stands for itself in a JSON string"""
SLICES = tuple(f"{TEXT}{{1,{most}}}" for most in (4, 8, 16))
"""Groups of tokens that are allowed or not as one, each a part of the next longer one.

They are for strings with a ``maxLength``. Few tokens are longer than the last (15 of Gemma's 262,144, 692 of
Qwen's 151,936), so free strings need no group of their own. Each group costs three prefix trees, up to 9 MB
each for 262,144 tokens.
"""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What all grammars of a model share."""

    tree: LLTokenizer
    tokens: PackedBytes
    """bytes of each token, those of control tokens too"""
    end_ids: frozenset[int]
    nesting: NestingLimit


def build_vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """Return the vocabulary; half a second or so for 151,936 tokens, with the GIL held.

    Control and unknown tokens are marked, so that no grammar takes their spelling for text. Every token of
    ``end_ids`` ends an answer. Raises ``ValueError`` for a tokenizer that has none.
    """
    if not tokenizer.end_ids:
        raise ValueError("the model has no token that ends a generation, so no grammar can end one")
    tokens = tokenizer.pieces
    # Before the tree, on top of which its passing arrays would come.
    nesting = NestingLimit(tokens)
    source = _TokenBytes(tokenizer)
    wrapper = TokenizerWrapper(source)
    tree = LLTokenizer(wrapper, eos_token=sorted(tokenizer.end_ids), slices=list(SLICES))
    # The tree has a copy of them, and keeps the wrapper.
    wrapper.tokens = source.tokens = ()
    return Vocabulary(tree, tokens, tokenizer.end_ids, nesting)


class _TokenBytes:
    """What ``TokenizerWrapper`` takes."""

    bos_token_id: int | None = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokens = tokenizer.pieces
        begins = np.frombuffer(tokens.data + b"\0", np.uint8)[tokens.offsets[:-1]]
        special = np.nonzero((begins == SPECIAL) & (tokens.lengths() > 0))[0]
        self.tokens: Sequence[bytes] = tokens.replaced(dict.fromkeys(special.tolist(), b""))
        self.special_token_ids = tokenizer.control_ids
        self.eos_token_id = min(tokenizer.end_ids)

    def __call__(self, text: str) -> list[int]:
        # Asked for where a grammar forces tokens; ours never do: the model splits text as it likes.
        raise NotImplementedError("a grammar must not force tokens")
