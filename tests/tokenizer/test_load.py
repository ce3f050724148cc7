"""What metadata makes a tokenizer, and what is refused."""

import logging
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrite.gguf import GGUFError
from ferrite.tokenizer import TokenizerError, load_tokenizer
from ferrite.tokenizer.bytelevel import BYTE_ALPHABET
from tests.tokenizer.metadata import (
    BYTE,
    CONTROL,
    NORMAL,
    USER_DEFINED,
    FakeMetadata,
    bytelevel,
    bytelevel_values,
    kept_bytes,
    sentencepiece,
    sentencepiece_values,
)

LONG = "x" * 1000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "bert"}, "tokenizer.ggml.model 'bert' is not supported, expected 'gpt2' or 'llama'"),
        ({"model": "gpt2\n" + LONG}, "tokenizer.ggml.model 'gpt2"),
        ({"pre": "no-such-rule"}, "tokenizer.ggml.pre 'no-such-rule' is not a supported pre-tokenizer rule"),
        ({"tokens": []}, "tokenizer.ggml.tokens is empty"),
        ({"tokens": ["a", "b", "a"]}, r"tokenizer.ggml.tokens\[0\] and \[2\] are both 'a'"),
        ({"token_type": [1, 1]}, "tokenizer.ggml.token_type has 2 elements for 263 tokens"),
        ({"token_type": [1] * 262 + [7]}, r"tokenizer.ggml.token_type\[262\] is 7, expected 0 to 6"),
        ({"token_type": [-1] * 263}, r"tokenizer.ggml.token_type\[0\] is -1, expected 0 to 6"),
        ({"token_type": [BYTE] + [NORMAL] * 262}, r"tokenizer.ggml.tokens\[0\] is a byte token but reads "),
        ({"scores": [0.0]}, "tokenizer.ggml.scores has 1 elements for 263 tokens"),
        ({"merges": ["h e", "ll"]}, r"tokenizer.ggml.merges\[1\] is 'll', expected two pieces"),
        ({"merges": ["h e", "a b c"]}, r"tokenizer.ggml.merges\[1\] is 'a b c', expected two pieces"),
        ({"merges": ["h "]}, "tokenizer.ggml.merges joins 'h' and '', but '' is not a token"),
        ({"merges": ["h e", "h x"]}, "tokenizer.ggml.merges joins 'h' and 'x', but 'hx' is not a token"),
        ({"bos_token_id": 263}, "tokenizer.ggml.bos_token_id is 263, expected 0 to 262"),
        ({"eos_token_id": -1}, "tokenizer.ggml.eos_token_id is -1, expected 0 to 262"),
        ({"eot_token_id": 1 << 31}, "tokenizer.ggml.eot_token_id is 2147483648, expected 0 to 262"),
        ({"eom_token_id": 999}, "tokenizer.ggml.eom_token_id is 999, expected 0 to 262"),
        ({"unknown_token_id": 263}, "tokenizer.ggml.unknown_token_id is 263, expected 0 to 262"),
        (
            {"add_bos_token": True, "bos_token_id": None},
            "tokenizer.ggml.add_bos_token is true but tokenizer.ggml.bos_token_id is missing",
        ),
        (
            {"add_eos_token": True, "eos_token_id": None},
            "tokenizer.ggml.add_eos_token is true but tokenizer.ggml.eos_token_id is missing",
        ),
    ],
)
def test_bad_bytelevel_metadata_is_one_line(changes: dict[str, object], message: str) -> None:
    with pytest.raises(TokenizerError, match=f"^{message}") as caught:
        bytelevel(**changes)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": [0.0]}, "tokenizer.ggml.scores has 1 elements for 267 tokens"),
        ({"scores": [0.0] * 266 + [float("nan")]}, r"tokenizer.ggml.scores\[266\] is nan, expected a finite"),
        ({"scores": [float("inf")] * 267}, r"tokenizer.ggml.scores\[0\] is inf, expected a finite"),
        (
            {"tokens": [], "token_type": None, "scores": []},
            "tokenizer.ggml.tokens is empty",
        ),
        (
            {"tokens": ["a"], "token_type": None, "scores": [0.0], "unknown_token_id": None},
            "tokenizer.ggml.add_bos_token is true but tokenizer.ggml.bos_token_id is missing",
        ),
    ],
)
def test_bad_scored_metadata_is_one_line(changes: dict[str, object], message: str) -> None:
    with pytest.raises(TokenizerError, match=f"^{message}"):
        sentencepiece(**changes)


@pytest.mark.parametrize("key", ["model", "tokens", "merges"])
def test_a_missing_key_of_a_bytelevel_file_is_named(key: str) -> None:
    with pytest.raises(GGUFError, match=f"tokenizer.ggml.{key}"):
        bytelevel(**{key: None})


@pytest.mark.parametrize("key", ["model", "tokens", "scores"])
def test_a_missing_key_of_a_scored_file_is_named(key: str) -> None:
    with pytest.raises(GGUFError, match=f"tokenizer.ggml.{key}"):
        sentencepiece(**{key: None})


@pytest.mark.parametrize("key", [*sentencepiece_values(), "add_space_prefix", "add_bos_token"])
def test_a_value_of_another_type_is_named(key: str) -> None:
    with pytest.raises(GGUFError, match=f"tokenizer.ggml.{key}"):
        sentencepiece(**{key: b"?"})


@pytest.mark.parametrize(("pre", "seen"), [(None, "missing"), ("default", "'default'")])
def test_a_generic_rule_loads_with_one_warning(
    pre: str | None, seen: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        tokenizer = bytelevel(pre=pre)
    (record,) = caplog.records
    assert record.getMessage().startswith(
        f"tokenizer.ggml.pre is {seen}: text is split by the rule 'default'"
    )
    assert tokenizer.rule == "default"


def test_a_named_rule_loads_silently(caplog: pytest.LogCaptureFixture) -> None:
    assert bytelevel().rule == "gpt-2"
    assert sentencepiece(pre="default").rule == "sentencepiece"
    assert not caplog.records


def test_flags_follow_the_file_then_the_family() -> None:
    assert not bytelevel().add_bos
    assert bytelevel(pre="llama-bpe").add_bos
    assert not bytelevel(pre="llama-bpe", add_bos_token=False).add_bos
    assert bytelevel(add_eos_token=True).add_eos
    scored = sentencepiece()
    assert scored.add_bos
    assert not scored.add_eos
    assert scored.bos_id == 1
    assert scored.end_ids == {2}


def test_end_ids_are_the_files_and_the_turn_terminators() -> None:
    tokens = [*BYTE_ALPHABET.values(), "<|endoftext|>", "<|end|>", "<|eot_id|>", "</s>", "stop"]
    kinds = [NORMAL] * 256 + [CONTROL, USER_DEFINED, NORMAL, CONTROL, NORMAL]
    tokenizer = bytelevel(
        tokens=tokens, token_type=kinds, merges=[], bos_token_id=None, eos_token_id=260, eom_token_id=0
    )
    assert tokenizer.end_ids == {260, 0, 256, 257}
    assert tokenizer.is_control(257), "a message must not end its own turn"
    assert not tokenizer.is_control(258)


def test_a_message_end_is_no_turn_end_beside_return_and_call() -> None:
    tokens = [*BYTE_ALPHABET.values(), "<|return|>", "<|call|>", "<|end|>"]
    values = bytelevel_values(tokens=tokens, token_type=[NORMAL] * 256 + [CONTROL] * 3, merges=[])
    tokenizer = load_tokenizer(FakeMetadata(values | {"bos_token_id": None, "eos_token_id": 256}))
    assert tokenizer.end_ids == {256, 257}


def test_without_token_types_every_token_is_normal() -> None:
    tokenizer = bytelevel(token_type=None)
    assert not any(map(tokenizer.is_control, range(tokenizer.vocab_size)))


def test_empty_tokens_get_a_name() -> None:
    tokens = [*BYTE_ALPHABET.values(), ""]
    tokenizer = bytelevel(tokens=tokens, token_type=None, merges=[], bos_token_id=None, eos_token_id=None)
    assert tokenizer.token_text(256) == "[EMPTY_256]"
    assert tokenizer.vocab_size == 257


def test_bytes_without_a_token_are_left_out_and_keep_their_neighbours_apart() -> None:
    tokens = [character for byte, character in BYTE_ALPHABET.items() if byte != 1]
    tokens.append("!!")
    tokenizer = bytelevel(
        tokens=tokens, token_type=None, merges=["! !"], bos_token_id=None, eos_token_id=None
    )
    mark = tokenizer.vocabulary.ids["!"]
    assert tokenizer.encode("!\x01!", parse_special=False, add_bos=False) == [mark, mark]
    assert tokenizer.encode("!!", parse_special=False, add_bos=False) == [255]


def test_of_two_equal_merges_the_first_counts() -> None:
    tokens = [*BYTE_ALPHABET.values(), "ab", "bc"]
    tokenizer = bytelevel(
        tokens=tokens,
        token_type=None,
        merges=["a b", "b c", "a b"],
        bos_token_id=None,
        eos_token_id=None,
    )
    assert tokenizer.encode("abc", parse_special=False, add_bos=False) == [256, tokens.index("c")]


@pytest.mark.parametrize("family", [bytelevel_values, sentencepiece_values])
def test_a_vocabulary_is_kept_without_objects_for_its_tokens(
    family: Callable[..., dict[str, object]],
) -> None:
    values = family()
    few = {name: value for name, value in values.items() if isinstance(value, list)}
    more = [f"token{number:05}" for number in range(20_000)]
    fills: dict[str, list[object]] = {
        "tokens": [*more],
        "token_type": [NORMAL] * len(more),
        "scores": [-1.5] * len(more),
        "merges": [],
    }
    many = {name: value + fills[name] for name, value in few.items()}
    grown = kept_bytes(lambda: load_tokenizer(FakeMetadata(values | many))) - kept_bytes(
        lambda: load_tokenizer(FakeMetadata(values))
    )
    # Ten bytes and an offset of four, as text and as bytes; a score of eight where there is one. A string
    # object alone would take 59.
    assert grown < 40 * len(more)


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(),
    st.sampled_from(["gpt2", "llama", "qwen2", "default"]),
    st.text(max_size=4),
    st.lists(st.text(max_size=3), max_size=5),
    st.lists(st.integers(-2, 9), max_size=5),
    st.lists(st.floats(), max_size=5),
)
KEYS = st.sampled_from(
    [*bytelevel_values(), "scores", "add_bos_token", "add_eos_token", "add_space_prefix", "unknown_token_id"]
)


@pytest.mark.parametrize("values", [bytelevel_values(), sentencepiece_values()], ids=["gpt2", "llama"])
@given(changes=st.dictionaries(KEYS, JUNK, max_size=6), text=st.text(max_size=8))
def test_hostile_metadata_is_refused_or_works(
    values: dict[str, object], changes: dict[str, object], text: str
) -> None:
    problem = ""
    try:
        tokenizer = load_tokenizer(FakeMetadata(values | changes))
    except (GGUFError, TokenizerError) as error:
        problem = str(error)
    if problem:
        assert len(problem.splitlines()) == 1
        return
    tokens = tokenizer.encode(text, parse_special=True, add_bos=True)
    assert all(0 <= token < tokenizer.vocab_size for token in tokens)
    tokenizer.decode(tokens)
