"""Equal prompts are evaluated once: the leader computes, the followers take its blocks and its logits."""

from collections.abc import Iterator
from typing import Any

import pytest

from ferrite.engine import GenerationFailed
from ferrite.kv import PrefixLimits
from ferrite.program.step import StepBatch, StepError
from ferrite.sampling import SamplingParams
from tests.engine.bench import Bench, Reader
from tests.engine.fakes import FakeRunner, FakeSampler, expected_completion, next_token, request

PROMPT = tuple(range(30))


def eight(**limits: Any) -> Bench:
    runner = FakeRunner(n_blocks=8 * 64, context_length=256)
    return Bench(runner, **{"max_concurrent": 8, "prefill_chunk": 8, **limits})


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = eight()
    yield made
    made.close()


def prefilled(bench: Bench) -> int:
    return bench.engine.batcher().prefill_tokens


def submit(bench: Bench, count: int, max_tokens: int = 6, **changes: object) -> list[Reader]:
    return [bench.submit(request(PROMPT, max_tokens, f"r{n}", **changes)) for n in range(count)]


def check_answers(bench: Bench, readers: list[Reader], steps: int = 80) -> None:
    bench.step(steps)
    for reader in readers:
        assert reader.token_ids == expected_completion(reader.asked.prompt_tokens, reader.asked.max_tokens)
    bench.check_idle()


@pytest.mark.parametrize(("namespaces", "prompts"), [([""], 1), (["a"], 1), (["a", "b"], 2)])
def test_eight_equal_prompts_cost_one_for_each_namespace(namespaces: list[str], prompts: int) -> None:
    with eight(prefix_cache=PrefixLimits(8, 1 << 40)) as bench:
        long = tuple(n % 256 for n in range(200))
        readers = [
            bench.submit(request(long, 9, str(n), cache_namespace=namespaces[n % len(namespaces)]))
            for n in range(8)
        ]
        check_answers(bench, readers)
        assert prefilled(bench) == prompts * len(long)
        assert [reader.finished and reader.finished.cache.shared for reader in readers] == [True] * 8
        assert {reader.finished and reader.finished.usage.cached_tokens for reader in readers} == {0}


def test_all_take_their_first_token_from_one_row_of_one_step(bench: Bench) -> None:
    readers = submit(bench, 3)
    bench.step(4)
    assert [len(reader.token_ids) for reader in readers] == [1, 1, 1]
    last = bench.runner.batches[-1]
    assert last.sample_rows.tolist() == [5, 5, 5]
    assert list(last.samplers) == bench.runner.samplers
    assert [len(batch.sample_rows) for batch in bench.runner.batches] == [0, 0, 0, 3]
    check_answers(bench, readers)


def test_each_keeps_its_own_sampling_budget_and_stop(bench: Bench) -> None:
    seeds = [1, 2, None]
    readers = [
        bench.submit(request(PROMPT, 3 + n, str(n), sampling=SamplingParams(temperature=1.0, seed=seed)))
        for n, seed in enumerate(seeds)
    ]
    check_answers(bench, readers)
    assert [sampler.params.seed for sampler in bench.runner.samplers] == seeds
    assert len({sampler.seed for sampler in bench.runner.samplers}) == 3
    assert prefilled(bench) == len(PROMPT)


def test_one_that_comes_during_the_prefill_joins_it(bench: Bench) -> None:
    readers = submit(bench, 1)
    bench.step(3)
    readers += submit(bench, 2)
    bench.step()
    assert [len(reader.token_ids) for reader in readers] == [1, 1, 1]
    assert prefilled(bench) == len(PROMPT)
    late = submit(bench, 1)
    check_answers(bench, readers + late)
    assert prefilled(bench) == 2 * len(PROMPT)
    assert late[0].finished is not None
    assert not late[0].finished.cache.shared


def test_shared_blocks_are_copied_by_whoever_writes_next_but_the_last(bench: Bench) -> None:
    copies: list[tuple[int, int]] = []
    copy = bench.runner.copy_block

    def noting(source: int, target: int) -> None:
        copies.append((source, target))
        copy(source, target)

    bench.runner.copy_block = noting  # type: ignore[method-assign]
    readers = submit(bench, 4)
    bench.step(4)
    assert copies == []
    bench.step(2)
    # Thirty positions: the eighth block is half full. Three get a copy, the fourth writes in place.
    assert [source for source, _ in copies] == [7, 7, 7]
    held = [sequence.table.blocks for sequence in bench.engine._batch._active]
    assert len({blocks[:7] for blocks in held}) == 1
    assert bench.engine.batcher().kv_blocks_peak == 7 + 4
    check_answers(bench, readers)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_follower_that_leaves_changes_nothing_for_the_others(bench: Bench, steps: int) -> None:
    leader, leaving, staying = submit(bench, 3)
    bench.step(steps)
    leaving.generation.cancel()
    check_answers(bench, [leader, staying])
    assert prefilled(bench) == len(PROMPT)
    assert bench.engine.batcher().aborted == 1
    assert leaving.events == []


@pytest.mark.parametrize("leave", [1, 2])
@pytest.mark.parametrize("steps", [1, 3])
def test_leader_that_leaves_hands_its_work_to_the_first_follower(
    bench: Bench, steps: int, leave: int
) -> None:
    readers = submit(bench, 4)
    bench.step(steps)
    for reader in readers[:leave]:
        reader.generation.cancel()
    bench.step()
    assert prefilled(bench) == min(8 * (steps + 1), len(PROMPT))
    check_answers(bench, readers[leave:])
    assert prefilled(bench) == len(PROMPT)
    assert bench.engine.batcher().aborted == leave


def test_followers_may_leave_a_group_whose_leader_left(bench: Bench) -> None:
    readers = submit(bench, 4)
    for reader in (readers[0], readers[2], readers[1]):
        bench.step()
        reader.generation.cancel()
    check_answers(bench, readers[3:])
    assert prefilled(bench) == len(PROMPT)


def test_leader_that_leaves_inside_its_last_step_leaves_the_followers_their_token(bench: Bench) -> None:
    readers = submit(bench, 3)
    bench.step(3)
    bench.runner.before_step = lambda batch: readers[0].generation.cancel()
    bench.step()
    assert [len(reader.token_ids) for reader in readers] == [0, 1, 1]
    check_answers(bench, readers[1:])
    assert prefilled(bench) == len(PROMPT)


def test_last_of_a_group_that_leaves_frees_everything(bench: Bench) -> None:
    readers = submit(bench, 3)
    bench.step(2)
    for reader in readers:
        reader.generation.cancel()
    bench.step()
    bench.check_idle()
    assert len(bench.runner.batches) == 2


@pytest.mark.parametrize("chunk", [1, 4])
def test_failing_step_fails_the_whole_group_and_nobody_else(chunk: int) -> None:
    with eight(event_queue=1) as bench:
        paused = bench.submit(request((1,), 3), allowance=0)
        bench.step()
        readers = submit(bench, 3)
        bench.step(chunk - 1)

        def fail(batch: StepBatch) -> None:
            raise StepError("planned")

        bench.runner.before_step = fail
        bench.step()
        assert all(isinstance(reader.outcome, GenerationFailed) for reader in readers)
        bench.runner.before_step = lambda batch: None
        paused.allow(99)
        bench.spin()
        check_answers(bench, [paused, *submit(bench, 2)])


def test_fault_of_one_sampler_stays_with_it(bench: Bench) -> None:
    make = bench.runner.sampler

    def faulty(params: SamplingParams, prompt: tuple[int, ...], seed: int, **options: Any) -> FakeSampler:
        if params.seed == 66:
            raise MemoryError
        return make(params, prompt, seed, **options)

    bench.runner.sampler = faulty  # type: ignore[method-assign,assignment]
    leader = submit(bench, 1)
    bad = bench.submit(request(PROMPT, sampling=SamplingParams(seed=66)))
    check_answers(bench, leader + submit(bench, 1))
    assert isinstance(bad.outcome, GenerationFailed)
    assert prefilled(bench) == len(PROMPT)


def test_non_finite_logits_of_the_shared_row_fail_the_group(bench: Bench) -> None:
    bench.runner.sample = lambda history: -1 if history == PROMPT else next_token(history)
    readers = submit(bench, 2)
    bench.step(4)
    assert [str(reader.outcome) for reader in readers] == ["the model produced non-finite logits"] * 2
    bench.check_idle()


def test_follower_needs_a_reservation_of_its_own() -> None:
    runner = FakeRunner(n_blocks=20, context_length=64)
    with Bench(runner, max_concurrent=3, inference_wait_seconds=60.0, prefill_chunk=8) as bench:
        readers = submit(bench, 3)
        bench.step(2)
        assert [reader.admitted for reader in readers] == [True, True, False]
        check_answers(bench, readers)
