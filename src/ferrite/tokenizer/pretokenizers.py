"""The rules, named by ``tokenizer.ggml.pre``, that cut text into words before byte-level merging.

The patterns are those the published tokenizers carry, in the form llama.cpp gives them (contractions
match ASCII letters only). Each pattern of a rule is applied to what the one before it left.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split

_LAST_SPACE_JOINS_NEXT_WORD = r"\s+(?!\S)|\s+"
_ANY_CASE_CONTRACTION = r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
_DIGIT = r"\p{N}"
_GPT2_WORDS = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|" + _LAST_SPACE_JOINS_NEXT_WORD
_LLAMA3_WORDS = (
    _ANY_CASE_CONTRACTION
    + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    + _LAST_SPACE_JOINS_NEXT_WORD
)
_QWEN2_WORDS = _LLAMA3_WORDS.replace(r"\p{N}{1,3}", _DIGIT)


@dataclass(frozen=True, slots=True)
class Rule:
    """One way to cut text into words, and what else llama.cpp derives from the tag."""

    name: str
    patterns: tuple[str, ...]
    """matches and the text between them become words"""
    whole_words: bool = False
    """a word that is a token is that token, whatever the merges say"""
    add_bos: bool = False
    """what ``tokenizer.ggml.add_bos_token`` is when the file does not say"""

    def pre_tokenizer(self) -> PreTokenizer:
        """Build the rule's pre-tokenizer, which gives words in the byte-level alphabet."""
        splits: list[PreTokenizer] = [Split(Regex(pattern), "isolated") for pattern in self.patterns]
        return Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])


DEFAULT_RULE = Rule("default", (r"[\p{P}$+<=>^~|]+", _GPT2_WORDS, r"\p{N}+", "[0-9][0-9][0-9]"))
"""For files that do not name a rule. No published model was trained with it."""


def _tagged_rules() -> Iterator[tuple[str, Rule]]:
    gpt2 = Rule("gpt-2", (_GPT2_WORDS,))
    smollm = Rule("smollm", (_DIGIT, _GPT2_WORDS))
    llama_bpe = Rule("llama-bpe", (_LLAMA3_WORDS,), whole_words=True, add_bos=True)
    dbrx = Rule("dbrx", (_LLAMA3_WORDS,))
    glm4 = Rule("glm4", (_LLAMA3_WORDS,), whole_words=True)
    qwen2 = Rule("qwen2", (_QWEN2_WORDS,))
    for rule, tags in (
        (gpt2, "gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum"),
        (smollm, "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2"),
        (llama_bpe, "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2"),
        (dbrx, "dbrx smaug-bpe chatglm-bpe"),
        (glm4, "glm4"),
        (qwen2, "qwen2 stablelm2 megrez deepseek-r1-qwen hunyuan solar-open"),
    ):
        yield from ((tag, rule) for tag in tags.split())


RULES = dict(_tagged_rules())
"""Value of ``tokenizer.ggml.pre`` → rule; tags that llama.cpp treats alike share one"""
