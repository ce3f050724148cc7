"""Vocabularies of real models, as the grammar library sees them."""

import json
from pathlib import Path

import numpy as np
import pytest

from ferrite.gguf import open_gguf
from ferrite.grammar import GrammarCompiler
from ferrite.grammar.vocabulary import build_vocabulary
from ferrite.tokenizer import Tokenizer, load_tokenizer
from ferrite.tokenizer.bytelevel import BYTE_ALPHABET
from tests.grammar.support import tokenizer
from tests.tokenizer.metadata import CONTROL, NORMAL, bytelevel, kept_bytes

TEXTS = [
    '{"a": [1, "é🚀 x", {"b\\n": null}],\n  "tool": "<tool_call>  \\t"}',
    json.dumps({"k": "Grüße, 世界"}, ensure_ascii=False),
]


@pytest.fixture(params=["smollm2_path", "qwen_path", "gemma_path"])
def model_tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    path: Path = request.getfixturevalue(request.param)
    with open_gguf(path) as file:
        return load_tokenizer(file.metadata)


def check_bytes(model: Tokenizer) -> None:
    library = build_vocabulary(model).tree
    assert library.vocab_size == model.vocab_size
    assert set(library.eos_tokens) == model.end_ids
    for token in range(model.vocab_size):
        if model.is_control(token):
            assert library.is_special_token(token)
        else:
            text = model.token_bytes(token)
            # A token without text, or with a byte that no text has, is nothing but its number.
            shown = f"<[{token}]>".encode() if text in (b"", b"\xff") else text
            assert library.decode_bytes([token]) == shown


def test_each_token_has_the_bytes_of_its_text() -> None:
    check_bytes(tokenizer())


def test_the_library_s_copy_of_the_tokens_is_the_only_new_one() -> None:
    more = [f"token{number:05}" for number in range(20_000)]
    tokens = [*BYTE_ALPHABET.values(), "<|im_end|>", *more]
    model = bytelevel(
        tokens=tokens,
        token_type=[NORMAL] * 256 + [CONTROL] + [NORMAL] * len(more),
        merges=[],
        bos_token_id=None,
        eos_token_id=256,
    )
    # A byte a token says whether it has a bracket or a quote.
    assert kept_bytes(lambda: build_vocabulary(model)) < 2 * len(tokens)


@pytest.mark.model
def test_each_token_of_a_model_has_the_bytes_of_its_text(model_tokenizer: Tokenizer) -> None:
    check_bytes(model_tokenizer)


@pytest.mark.model
def test_the_models_own_tokens_follow_a_grammar(model_tokenizer: Tokenizer) -> None:
    compiler = GrammarCompiler(model_tokenizer)
    compiler.prepare()
    grammar = compiler.compile_json_object()
    words = np.zeros((model_tokenizer.vocab_size + 31) // 32, dtype=np.uint32)
    for text in TEXTS:
        constraint = grammar.constraint()
        tokens = model_tokenizer.encode(text, parse_special=False, add_bos=False)
        assert model_tokenizer.decode(tokens) == text
        for token in tokens:
            assert constraint.fill_mask(words)
            assert words[token // 32] >> token % 32 & 1
            constraint.accept(token)
        assert constraint.is_complete
        constraint.fill_mask(words)
        allowed = np.nonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))[0]
        assert set(allowed.tolist()) == model_tokenizer.end_ids
