"""A tokenizer's vocabulary as grammars need it: a prefix tree of bytes, control tokens, end tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

from llguidance import LLTokenizer, TokenizerWrapper

from ferrite.grammar.nesting import NestingLimit
from ferrite.tokenizer import Tokenizer

SPECIAL = b"\xff"
"""The library's first byte of special tokens; no text has it, so tokens that begin with it count as empty."""

TEXT = r'[^"\\\x00-\x1F\x7F]'
"""What stands for itself in a JSON string"""
SLICES = tuple(f"{TEXT}{{1,{most}}}" for most in (4, 8, 16))
"""Groups of tokens that are allowed or not as one, each a part of the next longer one.

They are for strings with a ``maxLength``; longer texts than the last are so few (15 of Gemma's 262,144, 692 of
Qwen's 151,936) that free strings need no group of their own. Each group costs three prefix trees, 9 MB each
for 262,144 tokens.
"""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What all grammars of a model share."""

    tree: LLTokenizer
    tokens: Sequence[bytes]
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
    tokens = list(map(tokenizer.token_bytes, range(tokenizer.vocab_size)))
    wrapper = TokenizerWrapper(_TokenBytes(tokenizer, tokens))
    tree = LLTokenizer(wrapper, eos_token=sorted(tokenizer.end_ids), slices=list(SLICES))
    return Vocabulary(tree, tokens, tokenizer.end_ids, NestingLimit(tokens))


class _TokenBytes:
    """What ``TokenizerWrapper`` takes."""

    bos_token_id: int | None = None

    def __init__(self, tokenizer: Tokenizer, tokens: Sequence[bytes]) -> None:
        shown = list(tokens)
        for token in compress(range(len(tokens)), map(SPECIAL.__le__, tokens)):
            shown[token] = b""
        self.tokens: Sequence[bytes] = shown
        self.special_token_ids = list(filter(tokenizer.is_control, range(len(tokens))))
        self.eos_token_id = min(tokenizer.end_ids)

    def __call__(self, text: str) -> list[int]:
        # Asked for where a grammar forces tokens; ours never do: the model splits text as it likes.
        raise NotImplementedError("a grammar must not force tokens")
