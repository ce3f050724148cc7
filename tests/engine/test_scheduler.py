import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    )
    one.tokens += range(200, 200 + sampled)
    if computed:
        one.advance(computed)
    return one


prefills = st.integers(1, 40).flatmap(
    lambda prompt: st.tuples(st.just(prompt), st.integers(0, prompt - 1), st.just(0))
)
decodes = st.tuples(st.integers(1, 40), st.integers(1, 9)).map(lambda t: (t[0], t[0] + t[1] - 1, t[1]))


@given(states=st.lists(prefills | decodes, max_size=8), budget=st.integers(8, 40))
def test_plan(loop: asyncio.AbstractEventLoop, states: list[tuple[int, int, int]], budget: int) -> None:
    sequences = [sequence(loop, *state) for state in states]
    plan = plan_step(sequences, budget)
    decoding = [s for s in sequences if not s.is_prefilling]
    prefilling = [s for s in sequences if s.is_prefilling]

    assert [chunk.sequence for chunk in plan.chunks] == decoding + prefilling
    assert all(chunk.count == 1 and chunk.samples for chunk in plan.chunks[: len(decoding)])
    for chunk in plan.chunks:
        assert chunk.start == chunk.sequence.computed
        assert 1 <= chunk.count <= chunk.sequence.pending
        assert chunk.samples == (chunk.stop == chunk.sequence.total)
    rows = sum(chunk.count for chunk in plan.chunks[len(decoding) :])
    assert rows == min(budget, sum(s.pending for s in prefilling))
    assert plan.sampling == tuple(chunk for chunk in plan.chunks if chunk.samples)


def counts(loop: asyncio.AbstractEventLoop, budget: int, prompts: list[int]) -> list[int]:
    plan = plan_step([sequence(loop, prompt, 0, 0) for prompt in prompts], budget)
    return [chunk.count for chunk in plan.chunks]


def test_long_prompt_is_chunked_and_the_oldest_gets_the_most(loop: asyncio.AbstractEventLoop) -> None:
    assert counts(loop, 512, [2000]) == [512]
    assert counts(loop, 512, [2000, 2000, 2000, 2000]) == [320, 64, 64, 64]
    assert counts(loop, 512, [100, 2000, 10]) == [100, 402, 10]
    assert counts(loop, 8, [9] * 8) == [1] * 8


def test_step_batch_lays_out_decode_rows_then_prompts(loop: asyncio.AbstractEventLoop) -> None:
    pool = BlockPool(8)
    first, second, third = (
        sequence(loop, 6, 2, 0, pool),
        sequence(loop, 3, 4, 2, pool),
        sequence(loop, 2, 0, 0, pool),
    )
    plan = plan_step([first, second, third], 4)
    for chunk in plan.chunks:
        chunk.sequence.table.prepare_write(0, chunk.stop)
    batch = build_step_batch(plan)
    assert batch.token_ids.tolist() == [201, 102, 103, 104, 100]
    assert batch.positions.tolist() == [4, 2, 3, 4, 0]
    assert batch.sequences.tolist() == [0, 1, 1, 1, 2]
    assert batch.block_tables == ((0, 1), (2, 3), (4,))
    assert batch.sample_rows.tolist() == [0]
    assert batch.samplers == (second.sampler,)
    assert build_step_batch(plan).token_ids.tolist() == batch.token_ids.tolist()


def test_batch_without_sampled_rows_has_empty_int32_rows(loop: asyncio.AbstractEventLoop) -> None:
    long = sequence(loop, 6, 0, 0, BlockPool(2))
    plan = plan_step([long], 4)
    long.table.prepare_write(0, 4)
    batch = build_step_batch(plan)
    assert batch.sample_rows.shape == (0,)
    assert batch.sample_rows.dtype == batch.token_ids.dtype
    assert batch.samplers == ()


def test_computed_never_passes_total(loop: asyncio.AbstractEventLoop) -> None:
    with pytest.raises(ValueError, match="7 rows computed, 6 pending"):
        sequence(loop, 6, 0, 0).advance(7)
