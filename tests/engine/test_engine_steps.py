"""The engine without its thread, one step at a time."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from ferrite.engine import EngineBusy, GenerationFailed, RequestTooLarge, Usage
from ferrite.kv import BlockAccountingError
from ferrite.program.step import StepBatch, StepError
from ferrite.sampling import SamplingParams
from tests.engine.bench import Bench
from tests.engine.fakes import FakeRunner, expected_completion, next_token, request, scripted


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(**getattr(request, "param", {}))
    yield made
    made.close()


def test_a_request_alone(bench: Bench) -> None:
    reader = bench.submit(request((5, 6, 7), max_tokens=6))
    assert reader.admitted
    bench.step(6)
    assert reader.token_ids == expected_completion((5, 6, 7), 6)
    assert reader.text == bytes(reader.token_ids).decode()
    assert reader.finished is not None
    assert reader.finished.reason == "length"
    assert reader.outcome == "ended"
    assert [len(batch.token_ids) for batch in bench.runner.batches] == [3, 1, 1, 1, 1, 1]
    bench.check_idle()


@pytest.mark.parametrize("bench", [{"prefill_chunk": 4}], indirect=True)
def test_first_token_comes_with_the_last_chunk_of_the_prompt(bench: Bench) -> None:
    reader = bench.submit(request(range(10), max_tokens=2))
    bench.step(2)
    assert reader.events == []
    bench.step()
    assert reader.token_ids == expected_completion(range(10), 1)
    assert [batch.positions.tolist() for batch in bench.runner.batches] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
    ]
    assert [len(batch.sample_rows) for batch in bench.runner.batches] == [0, 0, 1]


@pytest.mark.parametrize("run_blocks", [1, 4])
def test_streams_have_runs_of_the_runner_s_length(run_blocks: int) -> None:
    with Bench(FakeRunner(run_blocks=run_blocks), max_concurrent=2) as bench:
        for first in (1, 2):
            bench.submit(request((first,), max_tokens=9))
        bench.step(9)
        tables = [[int(block) for block in table] for table in bench.runner.batches[-1].block_tables]
    assert tables == ([[0, 2, 4], [1, 3, 5]] if run_blocks == 1 else [[0, 1, 2], [4, 5, 6]])


def per_sequence(runner: FakeRunner, prompt: tuple[int, ...]) -> list[tuple[int, int]]:
    """``(position, token)`` rows the runner was asked for in the sequence that starts with ``prompt[0]``."""
    rows: list[tuple[int, int]] = []
    first: dict[int, int] = {}
    for batch in runner.batches:
        for position, token, index in zip(
            batch.positions.tolist(), batch.token_ids.tolist(), batch.sequences.tolist(), strict=True
        ):
            head = batch.block_tables[index][0]
            if position == 0:
                first[head] = token
            if first[head] == prompt[0]:
                rows.append((position, token))
    return rows


@pytest.mark.parametrize("chunk", [4, 7, 512])
def test_neighbours_and_chunking_change_nothing(chunk: int) -> None:
    prompts = [tuple(range(10 * n, 10 * n + 3 + 2 * n)) for n in range(1, 5)]
    alone = {}
    for prompt in prompts:
        bench = Bench()
        reader = bench.submit(request(prompt, max_tokens=9))
        bench.step(9)
        alone[prompt] = (reader.token_ids, per_sequence(bench.runner, prompt))
        bench.close()
    bench = Bench(max_concurrent=4, prefill_chunk=chunk)
    readers = []
    for prompt in prompts:
        readers.append(bench.submit(request(prompt, max_tokens=9)))
        bench.step()
    bench.step(40)
    for prompt, reader in zip(prompts, readers, strict=True):
        assert (reader.token_ids, per_sequence(bench.runner, prompt)) == alone[prompt]
    assert any(len(batch.block_tables) == 4 for batch in bench.runner.batches)
    bench.check_idle()
    bench.close()


@pytest.mark.parametrize("bench", [{"max_concurrent": 5, "prefill_chunk": 8}], indirect=True)
def test_long_prompts_do_not_stall_a_running_stream(bench: Bench) -> None:
    running = bench.submit(request((1,), max_tokens=30))
    bench.step()
    others = [bench.submit(request(range(n, n + 30), max_tokens=1)) for n in range(4)]
    for produced in range(2, 31):
        before = len(bench.runner.batches)
        bench.step()
        assert len(running.token_ids) == produced
        assert len(bench.runner.batches[before].token_ids) <= 1 + 8
    assert all(other.finished for other in others)


def test_without_waiting_time_the_second_is_refused_until_the_first_ends(bench: Bench) -> None:
    first = bench.submit(request(max_tokens=2))
    with pytest.raises(EngineBusy):
        bench.submit(request())
    bench.step(2)
    assert first.finished
    second = bench.submit(request(max_tokens=1))
    bench.step()
    assert second.finished


@pytest.mark.parametrize("failing", [False, True])
def test_permit_is_free_when_the_reader_hears_of_the_end(bench: Bench, failing: bool) -> None:
    reader = bench.submit(request(max_tokens=1))
    channel = reader.generation._channel
    held = []

    def watch(tell: Callable[[Any], None], what: Any) -> None:
        held.append(bench.engine._admission.n_holding)
        tell(what)

    channel.put = partial(watch, channel.put)  # type: ignore[method-assign]
    channel.fail = partial(watch, channel.fail)  # type: ignore[method-assign]
    bench.runner.sample = lambda history: -1 if failing else 97
    bench.step()
    assert reader.outcome is not None
    assert held == [0]


@pytest.mark.parametrize(
    "bench",
    [{"runner": FakeRunner(n_blocks=8), "max_concurrent": 2, "inference_wait_seconds": 60.0}],
    indirect=True,
)
def test_time_out_of_a_large_request_lets_the_next_in(bench: Bench) -> None:
    bench.submit(request(max_tokens=9))
    large = bench.submit(request(max_tokens=29))
    bench.clock.now += 30.0
    small = bench.submit(request(max_tokens=1))
    assert not small.admitted
    bench.clock.now += 30.0
    bench.expire()
    assert isinstance(large.outcome, EngineBusy)
    assert small.admitted


@pytest.mark.parametrize("bench", [{"inference_wait_seconds": 60.0}], indirect=True)
def test_waiting_requests_are_served_in_order_or_time_out(bench: Bench) -> None:
    first, second, third = (bench.submit(request(max_tokens=2)) for _ in range(3))
    bench.step(2)
    assert (first.finished is not None, second.admitted, third.admitted) == (True, True, False)
    bench.clock.now += 60.0
    bench.expire()
    assert isinstance(third.outcome, EngineBusy)
    assert third.outcome.retry_after_seconds >= 1
    bench.step(2)
    assert second.finished
    bench.check_idle()


@pytest.mark.parametrize("bench", [{"inference_wait_seconds": 60.0, "waiting_limit": 1}], indirect=True)
def test_line_is_not_full_of_requests_whose_time_is_over(bench: Bench) -> None:
    bench.submit(request())
    late = bench.submit(request())
    with pytest.raises(EngineBusy, match="1 requests wait"):
        bench.submit(request())
    bench.clock.now += 60.0
    bench.submit(request())
    assert isinstance(late.outcome, EngineBusy)


@pytest.mark.parametrize("bench", [{"inference_wait_seconds": 60.0}], indirect=True)
def test_timings_come_from_the_clock(bench: Bench) -> None:
    bench.submit(request(max_tokens=1))
    reader = bench.submit(request(max_tokens=2))
    for _ in range(3):
        bench.clock.now += 1.5
        bench.step()
    assert reader.finished is not None
    timings = reader.finished.timings
    assert (timings.queue_seconds, timings.prefill_seconds, timings.decode_seconds) == (1.5, 1.5, 1.5)


@pytest.mark.parametrize("bench", [{"runner": FakeRunner(n_blocks=4)}], indirect=True)
def test_impossible_requests_are_refused_before_any_step(bench: Bench) -> None:
    with pytest.raises(RequestTooLarge, match="needs 5 KV blocks, the server has 4"):
        bench.submit(request(range(10), max_tokens=7))
    with pytest.raises(RequestTooLarge, match="needs 4100 positions, the context has 4096"):
        bench.submit(request(range(100), max_tokens=4000))
    exact = bench.submit(request(range(10), max_tokens=6))
    bench.step(6)
    assert exact.finished
    bench.check_idle()


@pytest.mark.parametrize(
    "bench",
    [{"runner": FakeRunner(n_blocks=8), "max_concurrent": 4, "inference_wait_seconds": 60.0}],
    indirect=True,
)
def test_blocks_are_reserved_so_running_requests_never_lack_them(bench: Bench) -> None:
    readers = [bench.submit(request(range(4), max_tokens=12)) for _ in range(3)]
    assert [reader.admitted for reader in readers] == [True, True, False]
    bench.step(12)
    assert [reader.admitted for reader in readers] == [True, True, True]
    bench.step(12)
    assert all(reader.token_ids == expected_completion(range(4), 12) for reader in readers)
    bench.check_idle()


@pytest.mark.parametrize("bench", [{"max_concurrent": 2, "event_queue": 3}], indirect=True)
def test_slow_reader_pauses_only_itself(bench: Bench) -> None:
    slow = bench.submit(request((1, 2), max_tokens=20), allowance=0)
    fast = bench.submit(request((3, 4), max_tokens=20))
    bench.step(20)
    assert fast.finished
    assert len(slow.events) == 0
    rows = [len(batch.block_tables) for batch in bench.runner.batches]
    assert rows == [2] * 3 + [1] * 17
    slow.allow(1)
    bench.spin()
    bench.step(5)
    assert len(bench.runner.batches) == 21
    slow.allow(99)
    bench.spin()
    for _ in range(17):
        bench.step()
    assert slow.token_ids == expected_completion((1, 2), 20)
    bench.check_idle()


@pytest.mark.parametrize("bench", [{"prefill_chunk": 4, "inference_wait_seconds": 60.0}], indirect=True)
@pytest.mark.parametrize("steps", [0, 1, 2, 4])
def test_cancel_in_every_stage_frees_everything_within_one_step(bench: Bench, steps: int) -> None:
    reader = bench.submit(request(range(10), max_tokens=20))
    waiting = bench.submit(request((9,), max_tokens=1))
    bench.step(steps)
    reader.generation.cancel()
    reader.generation.cancel()
    rows = sum(len(batch.token_ids) for batch in bench.runner.batches)
    bench.step(2)
    assert reader.outcome == "ended"
    assert reader.finished is None
    assert waiting.finished
    assert sum(len(batch.token_ids) for batch in bench.runner.batches) == rows + 1
    bench.check_idle()


@pytest.mark.parametrize("bench", [{"inference_wait_seconds": 60.0}], indirect=True)
def test_cancel_while_waiting_leaves_the_line_at_once(bench: Bench) -> None:
    bench.submit(request(max_tokens=1))
    waiting = bench.submit(request())
    waiting.generation.cancel()
    bench.spin()
    assert isinstance(waiting.outcome, GenerationFailed)
    assert bench.engine._admission.n_waiting == 0
    bench.step()
    bench.check_idle()


def test_cancel_during_a_step_drops_its_token(bench: Bench) -> None:
    reader = bench.submit(request(max_tokens=5))
    bench.runner.before_step = lambda batch: reader.generation.cancel()
    bench.step()
    assert reader.events == []
    assert len(bench.runner.batches) == 1
    bench.check_idle()


@pytest.mark.parametrize("steps", range(6))
@pytest.mark.parametrize(
    "bench", [{"prefill_chunk": 4, "max_concurrent": 1, "inference_wait_seconds": 60.0}], indirect=True
)
def test_stop_in_every_stage_ends_within_one_step(bench: Bench, steps: int) -> None:
    reader = bench.submit(request(range(10), max_tokens=20))
    bench.step(steps)
    reader.generation.stop()
    reader.generation.stop()
    assert bench.engine._batch.is_ready is (steps > 0)
    bench.step()
    tokens = expected_completion(range(10), max(steps - 2, 0))
    assert len(bench.runner.batches) == steps
    assert reader.token_ids == tokens
    assert reader.outcome == "ended"
    assert reader.finished is not None
    assert (reader.finished.reason, reader.finished.token_ids) == ("stop", tokens)
    assert reader.finished.usage == Usage(10, len(tokens))
    assert bench.engine.batcher().aborted == 0
    bench.check_idle()


@pytest.mark.parametrize("bench", [{"inference_wait_seconds": 60.0}], indirect=True)
def test_stop_while_waiting_takes_no_step(bench: Bench) -> None:
    running, waiting = bench.submit(request(max_tokens=2)), bench.submit(request(max_tokens=9))
    waiting.generation.stop()
    bench.step(3)
    assert running.finished is not None
    assert waiting.finished is not None
    assert waiting.finished.usage == Usage(3, 0)
    assert len(bench.runner.batches) == 2
    bench.check_idle()


@pytest.mark.parametrize("bench", [{"event_queue": 1}], indirect=True)
def test_stop_ends_a_generation_whose_reader_has_fallen_behind(bench: Bench) -> None:
    reader = bench.submit(request(max_tokens=9), allowance=0)
    bench.step(3)
    assert not bench.engine._batch.is_ready
    reader.generation.stop()
    assert bench.engine._batch.is_ready
    bench.step()
    bench.check_idle()
    reader.allow(9)
    bench.spin()
    assert reader.finished is not None
    assert reader.finished.token_ids == reader.token_ids == expected_completion((1, 2, 3), 1)


def test_stop_during_a_step_keeps_its_token(bench: Bench) -> None:
    reader = bench.submit(request(max_tokens=5))
    bench.runner.before_step = lambda batch: reader.generation.stop()
    bench.step(2)
    assert len(bench.runner.batches) == 1
    assert reader.finished is not None
    assert reader.finished.usage == Usage(3, 1)
    bench.check_idle()


@pytest.mark.parametrize("bench", [{"max_concurrent": 2, "prefill_chunk": 4}], indirect=True)
def test_a_leader_that_is_stopped_hands_over_its_prompt(bench: Bench) -> None:
    leader, follower = (bench.submit(request(range(10), max_tokens=3)) for _ in range(2))
    bench.step(2)
    leader.generation.stop()
    bench.step(4)
    assert follower.token_ids == expected_completion(range(10), 3)
    assert bench.engine.batcher().prefill_tokens == 10
    bench.check_idle()


@pytest.mark.parametrize("error", [StepError("no memory for\nthe step"), MemoryError(), ValueError("bug")])
@pytest.mark.parametrize("bench", [{"max_concurrent": 3, "event_queue": 2}], indirect=True)
def test_failed_step_fails_its_own_requests_only(bench: Bench, error: Exception) -> None:
    paused = bench.submit(request((1,), max_tokens=4), allowance=0)
    bench.step(2)
    first, second = bench.submit(request((2,))), bench.submit(request((3,)))
    bench.step()

    def fail(batch: StepBatch) -> None:
        raise error

    bench.runner.before_step = fail
    bench.step()
    for reader in (first, second):
        assert len(reader.token_ids) == 1
        assert isinstance(reader.outcome, GenerationFailed)
        assert "\n" not in str(reader.outcome)
    bench.runner.before_step = lambda batch: None
    paused.allow(99)
    bench.spin()
    later = bench.submit(request((4,), max_tokens=1))
    bench.step(2)
    assert paused.token_ids == expected_completion((1,), 4)
    assert later.finished
    assert bench.engine.healthy
    bench.check_idle()


@pytest.mark.parametrize("bench", [{"max_concurrent": 2}], indirect=True)
def test_non_finite_logits_fail_only_their_request(bench: Bench) -> None:
    bench.runner.sample = lambda history: (
        -1 if history[0] == 66 and len(history) == 3 else next_token(history)
    )
    bad = bench.submit(request((66, 1), max_tokens=3))
    good = bench.submit(request((2, 1), max_tokens=3))
    bench.step(3)
    assert str(bad.outcome) == "the model produced non-finite logits"
    assert len(bad.token_ids) == 1
    assert good.token_ids == expected_completion((2, 1), 3)
    bench.check_idle()


@pytest.mark.parametrize("bench", [{"max_concurrent": 2}], indirect=True)
def test_faults_before_and_after_the_step_stay_with_their_request(bench: Bench) -> None:
    make_sampler = bench.runner.sampler

    def faulty(params: SamplingParams, prompt: tuple[int, ...], seed: int, **options: Any) -> object:
        if prompt == (66,):
            raise ValueError("no sampler")
        return make_sampler(params, prompt, seed, **options)

    bench.runner.sampler = faulty  # type: ignore[method-assign,assignment]
    bench.runner.sample = lambda history: 999 if history[0] == 67 else 97
    without_sampler = bench.submit(request((66,), max_tokens=2))
    bench.step()
    undecodable, good = bench.submit(request((67,), max_tokens=2)), bench.submit(request((3,), max_tokens=2))
    bench.step(2)
    assert str(without_sampler.outcome) == "an internal error ended the generation: ValueError"
    assert str(undecodable.outcome) == "an internal error ended the generation: ValueError"
    assert good.text == "aa"
    bench.check_idle()


def test_runner_that_samples_too_few_rows_fails_the_step(bench: Bench) -> None:
    step = bench.runner.step
    bench.runner.step = lambda batch: step(batch)[:0]  # type: ignore[method-assign]
    reader = bench.submit(request())
    bench.step()
    assert "1 rows were to be sampled, 0 were" in str(reader.outcome)


def test_sampler_gets_parameters_prompt_and_a_fresh_seed(bench: Bench) -> None:
    for _ in range(2):
        bench.submit(request((4, 5), max_tokens=1, sampling=SamplingParams(temperature=1.0, seed=7)))
        bench.step()
    first, second = bench.runner.samplers
    assert first.params == SamplingParams(temperature=1.0, seed=7)
    assert first.prompt == (4, 5)
    assert first.seed != second.seed


def test_stop_string_and_end_token_through_the_engine(bench: Bench) -> None:
    bench.runner.sample = scripted(3, b"red green blue black")
    stopped = bench.submit(request(max_tokens=20, stop=("green blue", "en")))
    bench.step(20)
    assert (stopped.text, stopped.finished and stopped.finished.usage.completion_tokens) == ("red gre", 9)
    bench.runner.sample = scripted(3, b"yes\x03")
    ended = bench.submit(request(max_tokens=20, end_ids=frozenset([3])))
    bench.step(20)
    assert (ended.text, ended.finished and ended.finished.usage.completion_tokens) == ("yes", 4)
    bench.check_idle()


def test_leaked_block_is_found_when_idle(bench: Bench) -> None:
    bench.submit(request(max_tokens=1))
    bench.engine._batch._kv._pool.allocate(1)
    with pytest.raises(BlockAccountingError, match="1 references and 0 holders"):
        bench.engine.step()
    bench.spin()


def test_leaked_permit_is_found_when_idle(bench: Bench) -> None:
    bench.submit(request((1, 2, 3), max_tokens=1))
    bench.engine._arrivals.clear()
    with pytest.raises(BlockAccountingError, match="1 permits and 1 KV blocks are taken by 0 requests"):
        bench.engine.step()
