"""Drafts of one sequence: what is copied, from where, and how far it is believed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrite.engine.drafts import FIRST_RATES, Drafter

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def drafted(tokens: list[int], most: int = 8) -> list[int]:
    return Drafter(tokens).draft(most)[0]


def test_what_came_behind_the_same_tokens_is_drafted() -> None:
    assert drafted([5, 6, 7, 8, 9, 1, 5, 6, 7]) == [8, 9, 1]
    assert drafted([5, 6, 7, 8, 9, 1, 5, 6, 7], most=2) == [8, 9]


def test_the_longest_match_wins_and_then_the_latest() -> None:
    assert drafted([1, 2, 3, 10, 7, 2, 3, 11, 1, 2, 3], most=1) == [10]
    assert drafted([2, 3, 10, 2, 3, 11, 2, 3], most=1) == [11]


def test_what_repeats_itself_goes_on_beyond_what_is_known() -> None:
    tokens = [1, 2, 3] * 8
    assert drafted(tokens) == [1, 2, 3, 1, 2, 3, 1, 2]


def test_without_a_match_there_is_no_draft() -> None:
    for tokens in ([1], [1, 2], [1, 2, 3, 2, 1], [4, 4]):
        assert Drafter(tokens).draft(8) == ([], [])


def test_chances_fall_along_a_draft_and_rise_with_the_match() -> None:
    _, short = Drafter([5, 6, 7, 8, 9, 1, 5, 6]).draft(8)
    _, long = Drafter([*range(20), 40, *range(12)]).draft(8)
    assert short == sorted(short, reverse=True)
    assert short[0] == FIRST_RATES[0]
    assert long == pytest.approx([FIRST_RATES[-1] ** n for n in range(1, 9)])


def test_hits_and_misses_are_learned_without_a_draft() -> None:
    tokens = [*range(12), 50, *range(8)]
    drafter = Drafter(tokens)
    _, before = drafter.draft(1)
    tokens += [8, 9]
    _, after = drafter.draft(1)
    assert after > before
    tokens += [77, *range(8), 88, *range(8), 99, *range(8)]
    _, less = drafter.draft(1)
    assert less < before


def test_behind_a_token_that_differs_the_copy_goes_on() -> None:
    tokens = [*range(40), 99, *range(20)]
    drafter = Drafter(tokens)
    assert drafter.draft(2)[0] == [20, 21]
    tokens.append(77)
    assert drafter.draft(2)[0] == [21, 22]
    tokens += [78, 79]
    assert drafter.draft(2)[0] == []


@given(TOKENS, TOKENS, st.data())
def test_a_draft_does_not_depend_on_when_it_is_asked_for(
    prompt: list[int], more: list[int], data: st.DataObject
) -> None:
    tokens = list(prompt)
    drafter, often = Drafter(tokens), Drafter(tokens)
    for token in more:
        assert len(often.draft(4)[0]) == len(often.draft(4)[1]) <= 4
        if data.draw(st.booleans()):
            assert drafter.draft(8) == often.draft(8)
        tokens.append(token)
    assert drafter.draft(8) == often.draft(8)
    assert drafter.draft(8) == often.draft(8)
    assert len(drafter._latest) <= len(tokens)
    assert len(drafter._previous) == len(tokens) + 1
    if draft := drafter.draft(1)[0]:
        assert draft[0] == tokens[drafter._source]
