import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrite.engine.events import CacheTrace
from ferrite.engine.generation import Channel
from ferrite.engine.scheduler import plan_step
from ferrite.engine.sequence import Sequence, Ticket
from ferrite.engine.step_batch import build_step_batch
from ferrite.engine.text import TextStream, compile_stops
from ferrite.kv import BlockPool, BlockTable
from ferrite.sampling import SamplingParams
from tests.engine.fakes import ByteDetokenizer, FakeSampler, request


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def sequence(
    loop: asyncio.AbstractEventLoop, prompt: int, computed: int, sampled: int, pool: BlockPool | None = None
) -> Sequence:
    """``prompt`` tokens counted up from 100 and ``sampled`` ones from 200, the first ``computed`` done."""
    one = Sequence(
        ticket=Ticket(request(range(100, 100 + prompt)), Channel(loop, 1, lambda: None), 0.0),
        sampler=FakeSampler(SamplingParams(), (), 0),
        table=BlockTable(pool or BlockPool(1), 4),
        text=TextStream(ByteDetokenizer(), compile_stops(())),
        granted_at=0.0,
        cache=CacheTrace(),
    )
    one.tokens += range(200, 200 + sampled)
    if computed:
        one.advance(computed)
    return one


prefills = st.integers(1, 40).flatmap(
    lambda prompt: st.tuples(st.just(prompt), st.integers(0, prompt - 1), st.just(0))
)
decodes = st.tuples(st.integers(1, 40), st.integers(1, 9)).map(lambda t: (t[0], t[0] + t[1] - 1, t[1]))


@given(states=st.lists(prefills | decodes, max_size=8), budget=st.integers(0, 40))
def test_plan(loop: asyncio.AbstractEventLoop, states: list[tuple[int, int, int]], budget: int) -> None:
    sequences = [sequence(loop, *state) for state in states]
    decoding = [s for s in sequences if not s.is_prefilling]
    prefilling = [s for s in sequences if s.is_prefilling]
    asked: list[int] = []

    def prefill_rows(count: int) -> int:
        asked.append(count)
        return budget

    plan = plan_step(sequences, prefill_rows)

    assert asked == [len(decoding)] * bool(prefilling)
    assert plan.decode_rows == len(decoding)
    decode_chunks, prompt_chunks = plan.chunks[: len(decoding)], plan.chunks[len(decoding) :]
    assert [chunk.sequence for chunk in decode_chunks] == decoding
    assert all(chunk.count == 1 and chunk.samples for chunk in decode_chunks)
    # The oldest always advances; the others as far as the rows go.
    assert [chunk.sequence for chunk in prompt_chunks] == prefilling[: min(budget, len(prefilling))]
    for chunk in plan.chunks:
        assert chunk.start == chunk.sequence.computed
        assert 1 <= chunk.count <= chunk.sequence.pending
        assert chunk.samples == (chunk.stop == chunk.sequence.total)
    assert plan.prefill_rows == sum(chunk.count for chunk in prompt_chunks)
    assert plan.prefill_rows == min(budget, sum(s.pending for s in prefilling))
    assert plan.sampled() == [chunk.sequence for chunk in plan.chunks if chunk.samples]


def counts(loop: asyncio.AbstractEventLoop, budget: int, prompts: list[int]) -> list[int]:
    plan = plan_step([sequence(loop, prompt, 0, 0) for prompt in prompts], lambda decoding: budget)
    return [chunk.count for chunk in plan.chunks]


def test_long_prompt_is_chunked_and_the_oldest_gets_the_most(loop: asyncio.AbstractEventLoop) -> None:
    assert counts(loop, 512, [2000]) == [512]
    assert counts(loop, 512, [2000, 2000, 2000, 2000]) == [320, 64, 64, 64]
    assert counts(loop, 512, [100, 2000, 10]) == [100, 402, 10]
    assert counts(loop, 8, [9] * 8) == [1] * 8
    assert counts(loop, 8, [9] * 12) == [1] * 8


def test_step_batch_lays_out_decode_rows_then_prompts(loop: asyncio.AbstractEventLoop) -> None:
    pool = BlockPool(8)
    first, second, third, fourth = (
        sequence(loop, 6, 2, 0, pool),
        sequence(loop, 3, 4, 2, pool),
        sequence(loop, 1, 0, 0, pool),
        sequence(loop, 1, 0, 0, pool),
    )
    fourth.follow(third)
    plan = plan_step([first, second, third], lambda decoding: 4)
    for chunk in plan.chunks:
        chunk.sequence.table.prepare_write(0, chunk.stop)
    sampled = plan.sampled()
    batch = build_step_batch(plan, sampled)
    assert batch.token_ids.tolist() == [201, 102, 103, 104, 100]
    assert batch.positions.tolist() == [4, 2, 3, 4, 0]
    assert batch.sequences.tolist() == [0, 1, 1, 1, 2]
    assert [table.tolist() for table in map(np.asarray, batch.block_tables)] == [[0, 1], [2, 3], [4]]
    assert batch.sample_rows.tolist() == [0, 4, 4]
    assert sampled == [second, third, fourth]
    assert batch.samplers == (second.sampler, third.sampler, fourth.sampler)


def test_batch_without_sampled_rows_has_empty_int32_rows(loop: asyncio.AbstractEventLoop) -> None:
    long = sequence(loop, 6, 0, 0, BlockPool(2))
    plan = plan_step([long], lambda decoding: 4)
    long.table.prepare_write(0, 4)
    batch = build_step_batch(plan, plan.sampled())
    assert batch.sample_rows.tolist() == []
    assert np.asarray(batch.sample_rows).dtype == np.int32
    assert batch.samplers == ()


def test_computed_never_passes_total(loop: asyncio.AbstractEventLoop) -> None:
    with pytest.raises(ValueError, match="7 rows computed, 6 pending"):
        sequence(loop, 6, 0, 0).advance(7)
