"""What the tokens of a vocabulary do to the nesting of a JSON text."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrite.gguf import PackedBytes
from ferrite.grammar.limits import MAX_OUTPUT_LEVELS
from ferrite.grammar.nesting import Nesting, NestingLimit

TOKENS = st.lists(st.text('[]{}"\\a ', max_size=5).map(str.encode), min_size=1, max_size=40)


@given(TOKENS, st.integers(0, 3), st.booleans(), st.booleans())
def test_a_token_s_effect_is_that_of_its_bytes(
    tokens: list[bytes], level: int, in_string: bool, escaped: bool
) -> None:
    limit = NestingLimit(PackedBytes.of(tokens))
    nesting = Nesting(level, in_string, escaped)
    assert [limit.after(nesting, token) for token in range(len(tokens))] == list(map(nesting.after, tokens))


@given(TOKENS, st.integers(0, 3), st.booleans())
def test_only_tokens_that_nest_too_deep_are_taken_out(
    tokens: list[bytes], below: int, in_string: bool
) -> None:
    nesting = Nesting(MAX_OUTPUT_LEVELS - below, in_string)
    words = np.full((len(tokens) + 31) // 32, 0xFFFFFFFF, np.uint32)
    found = NestingLimit(PackedBytes.of(tokens)).apply(nesting, words)
    taken = [not words[token // 32] >> token % 32 & 1 for token in range(len(tokens))]
    assert taken == [nesting.highest(token) > MAX_OUTPUT_LEVELS for token in tokens]
    assert found == any(taken)


@pytest.mark.parametrize("tokens", [[], [b""]])
def test_a_vocabulary_may_have_no_bytes(tokens: list[bytes]) -> None:
    assert not NestingLimit(PackedBytes.of(tokens)).apply(Nesting(MAX_OUTPUT_LEVELS), np.zeros(1, np.uint32))
