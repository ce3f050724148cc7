import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ferrite.engine import CacheTrace, Delta, Finished, GenerationRequest, Timings, Usage
from ferrite.engine.generation import Channel
from ferrite.engine.sequence import Sequence, Ticket
from ferrite.engine.text import TextStream, compile_stops
from ferrite.kv import BlockPool, BlockTable
from ferrite.sampling import SamplingParams
from tests.engine.fakes import ByteDetokenizer, FakeSampler, request

END = 3


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def sequence(loop: asyncio.AbstractEventLoop, asked: GenerationRequest) -> Sequence:
    return Sequence(
        ticket=Ticket(asked, Channel(loop, 1, lambda: None), 10.0),
        sampler=FakeSampler(SamplingParams(), (), 0),
        table=BlockTable(BlockPool(1), 4),
        text=TextStream(ByteDetokenizer(), compile_stops(asked.stop)),
        granted_at=11.0,
        cache=CacheTrace("miss"),
    )


def run(loop: asyncio.AbstractEventLoop, tokens: bytes, **changes: object) -> tuple[list[Delta], Finished]:
    """Feed ``tokens`` one per second until the generation ends; it must end within them."""
    one = sequence(loop, request(**{"end_ids": frozenset([END]), **changes}))  # type: ignore[arg-type]
    deltas = []
    for second, token in enumerate(tokens):
        deltas.append(one.accept(token, 13.0 + second))
        if one.reason is not None:
            break
    return [delta for delta in deltas if delta is not None], one.finished(99.0)


def test_length(loop: asyncio.AbstractEventLoop) -> None:
    deltas, finished = run(loop, b"abcdef", max_tokens=3)
    assert deltas == [Delta("a", (97,)), Delta("b", (98,)), Delta("c", (99,))]
    timings = Timings(1.0, 2.0, 2.0)
    assert finished == Finished("length", Usage(3, 3), timings, (97, 98, 99), None, CacheTrace("miss"))


def test_end_token_counts_and_is_neither_text_nor_token(loop: asyncio.AbstractEventLoop) -> None:
    deltas, finished = run(loop, bytes([97, END]), max_tokens=2)
    assert deltas == [Delta("a", (97,))]
    assert (finished.reason, finished.usage.completion_tokens) == ("stop", 2)
    assert finished.token_ids == (97,)


def test_end_token_first_gives_no_delta(loop: asyncio.AbstractEventLoop) -> None:
    deltas, finished = run(loop, bytes([END]))
    assert (deltas, finished.usage, finished.token_ids) == ([], Usage(3, 1), ())


def test_ignored_end_token_is_a_token_without_text(loop: asyncio.AbstractEventLoop) -> None:
    deltas, finished = run(loop, bytes([97, END, 98]), max_tokens=3, ignore_end=True)
    assert deltas == [Delta("a", (97,)), Delta("b", (END, 98))]
    assert finished.reason == "length"


def test_stop_string_ends_at_its_token(loop: asyncio.AbstractEventLoop) -> None:
    deltas, finished = run(loop, b"green blue black", max_tokens=16, stop=("n b",))
    assert "".join(delta.text for delta in deltas) == "gree"
    assert (finished.reason, finished.stop_string, finished.usage.completion_tokens) == ("stop", "n b", 7)


@pytest.mark.parametrize("tokens", [b"ab", bytes([97, 98, END])])
def test_held_text_comes_out_before_the_end(loop: asyncio.AbstractEventLoop, tokens: bytes) -> None:
    deltas, finished = run(loop, tokens, max_tokens=len(tokens), stop=("abc",))
    assert deltas == [Delta("ab", (97, 98))]
    assert finished.stop_string is None


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4])
def test_budget_is_kept_inside_a_character(loop: asyncio.AbstractEventLoop, max_tokens: int) -> None:
    emoji = "👩".encode()
    deltas, finished = run(loop, emoji, max_tokens=max_tokens)
    assert finished.usage.completion_tokens == max_tokens
    assert deltas == [Delta("👩" if max_tokens == 4 else "\ufffd", tuple(emoji[:max_tokens]))]


@given(
    tokens=st.lists(st.integers(0, 255), min_size=1, max_size=30),
    stop=st.lists(st.text(alphabet="ab\ufffd", min_size=1, max_size=3), max_size=2),
    end=st.booleans(),
    ignore=st.booleans(),
)
@example(tokens=[194, ord("b")], stop=["\ufffd"], end=True, ignore=False)  # the end completes the stop string
def test_events_agree(
    loop: asyncio.AbstractEventLoop, tokens: list[int], stop: list[str], end: bool, ignore: bool
) -> None:
    end_ids = frozenset([END, ord("b")] if end else [])
    deltas, finished = run(
        loop,
        bytes(tokens),
        max_tokens=len(tokens),
        stop=tuple(stop),
        end_ids=end_ids,
        ignore_end=ignore,
    )
    assert tuple(token for delta in deltas for token in delta.token_ids) == finished.token_ids
    assert all(delta.text or delta.token_ids for delta in deltas)
    ended = not ignore and tokens[finished.usage.completion_tokens - 1] in end_ids
    assert ended or finished.reason == "length" or finished.stop_string is not None
    assert finished.reason == "stop" or not ended
    assert finished.usage.completion_tokens == len(finished.token_ids) + ended <= len(tokens)
    assert finished.token_ids == tuple(tokens[: len(finished.token_ids)])
    text = "".join(delta.text for delta in deltas)
    assert not any(one in text for one in stop)
