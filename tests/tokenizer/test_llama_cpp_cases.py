"""Token ids equal to llama.cpp's, on stored cases (recipe: ``make_cases.py``)."""

from pathlib import Path

import pytest

from ferrite.gguf import open_gguf
from ferrite.tokenizer import Tokenizer, load_tokenizer
from ferrite.tokenizer.pretokenizers import DEFAULT_RULE, RULES
from tests.tokenizer.metadata import FakeMetadata, stored

BYTELEVEL = stored("tiny_bytelevel")
SENTENCEPIECE = stored("tiny_sentencepiece")
TAGS = {tag: rule["ids"] for rule in BYTELEVEL["rules"] for tag in rule["tags"]}


def ids(tokenizer: Tokenizer, text: str, *, special: bool = False) -> list[int]:
    return tokenizer.encode(text, parse_special=special, add_bos=False)


def check_real_model(name: str, path: Path) -> None:
    with open_gguf(path) as file:
        tokenizer = load_tokenizer(file.metadata)
    cases = stored(name)["texts"]
    assert len(cases) >= 60
    for case in cases:
        assert ids(tokenizer, case["text"]) == case["literal"], case["text"]
        assert ids(tokenizer, case["text"], special=True) == case["special"], case["text"]


@pytest.mark.model
def test_smollm2(smollm2_path: Path) -> None:
    check_real_model("smollm2", smollm2_path)


@pytest.mark.model
def test_qwen(qwen_path: Path) -> None:
    check_real_model("qwen", qwen_path)


@pytest.mark.model
def test_gemma(gemma_path: Path) -> None:
    check_real_model("gemma", gemma_path)


def test_every_accepted_tag_has_cases() -> None:
    assert TAGS.keys() == RULES.keys() | {DEFAULT_RULE.name}


@pytest.mark.parametrize("tag", TAGS)
def test_every_rule_on_a_small_vocabulary(tag: str) -> None:
    end = len(BYTELEVEL["tokens"]) - 2
    values = {key: BYTELEVEL[key] for key in ("tokens", "token_type", "merges")}
    values |= {"model": "gpt2", "pre": tag, "bos_token_id": end, "eos_token_id": end}
    tokenizer = load_tokenizer(FakeMetadata(values))
    for text, literal, special in zip(
        BYTELEVEL["texts"], TAGS[tag]["texts"], TAGS[tag]["special"], strict=True
    ):
        assert ids(tokenizer, text) == literal, text
        assert ids(tokenizer, text, special=True) == special, text
        assert tokenizer.decode(literal) == text


@pytest.mark.parametrize(
    "variant", SENTENCEPIECE["variants"], ids=lambda v: f"prefix={v['add_space_prefix']}"
)
def test_scored_merges_on_a_small_vocabulary(variant: dict[str, list[list[int]]]) -> None:
    values = {key: SENTENCEPIECE[key] for key in ("tokens", "token_type", "scores")}
    values |= {"model": "llama", "add_space_prefix": variant["add_space_prefix"]}
    tokenizer = load_tokenizer(FakeMetadata(values))
    for text, literal, special in zip(
        SENTENCEPIECE["texts"], variant["texts"], variant["special"], strict=True
    ):
        assert ids(tokenizer, text) == literal, text
        assert ids(tokenizer, text, special=True) == special, text
