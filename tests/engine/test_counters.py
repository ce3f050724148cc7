"""Each counter and gauge of the engine, and what is refused before it costs anything."""

from collections.abc import Iterator
from typing import Any

import pytest

from ferrite.engine import EngineBusy, GenerationFailed, RequestTooLarge
from ferrite.program.step import StepBatch
from ferrite.telemetry import BatcherSnapshot, Histogram
from tests.engine.bench import Bench
from tests.engine.fakes import FakeRunner, request

FAR = float("inf")


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(**getattr(request, "param", {}))
    yield made
    made.close()


def bounded(**limits: Any) -> Bench:
    """Two sessions of 32 positions in blocks of 4; the model's context is longer."""
    runner = FakeRunner(n_blocks=16 + 5, context_length=1000)
    return Bench(
        runner,
        **{"max_concurrent": 2, "inference_wait_seconds": FAR, "session_positions": 32, **limits},
    )


def test_snapshot_of_a_small_run() -> None:
    with bounded(prefill_chunk=8, waiting_limit=1) as bench:
        assert bench.engine.batcher() == BatcherSnapshot(
            prefill_chunks=0,
            prefill_tokens=0,
            decode_steps=0,
            queue_depth=0,
            queue_rejected=0,
            kv_blocks_total=16,
            kv_blocks_free=16,
            kv_block_size=4,
            kv_rejected_too_large=0,
            kv_rejected_context_length=0,
            kv_blocks_peak=0,
            aborted=0,
        )
        bench.submit(request(range(20), 3))
        bench.submit(request(range(50, 60), 9))
        bench.submit(request((1,), 2))
        with pytest.raises(EngineBusy):
            bench.submit(request())
        bench.step(2)
        during = bench.engine.batcher()
        assert (during.queue_depth, during.queue_rejected) == (1, 1)
        assert (during.kv_blocks_free, bench.engine.active, bench.engine.waiting) == (16 - 6 - 5, 2, 1)
        assert (during.prefill_chunks, during.prefill_tokens, during.decode_steps) == (4, 16, 0)
        bench.step(40)
        after = bench.engine.batcher()
        assert (after.queue_depth, after.kv_blocks_free, after.prefill_tokens) == (0, 16, 31)
        assert after.kv_blocks_peak == 6 + 3
        bench.check_idle()


def test_without_a_kv_budget_none_is_reported(bench: Bench) -> None:
    bench.submit(request())
    snapshot = bench.engine.batcher()
    assert (snapshot.kv_blocks_total, snapshot.kv_blocks_free, snapshot.kv_block_size) == (0, 0, 4)


def test_decode_steps_count_steps_and_not_rows() -> None:
    with bounded() as bench:
        for token in (1, 2):
            bench.submit(request((token,), 4))
        bench.step(4)
        assert bench.engine.batcher().decode_steps == 3


@pytest.mark.parametrize(
    ("positions", "bound", "needed", "limit"),
    [
        (1001, "context", 1001, 1000),
        (1000, "store", 250, 16),
        (65, "store", 17, 16),
        (64, "session", 64, 32),
        (33, "session", 33, 32),
    ],
)
def test_what_can_never_fit_is_refused_by_the_limit_it_passes(
    positions: int, bound: str, needed: int, limit: int
) -> None:
    with bounded() as bench:
        for check in (
            lambda: bench.engine.check_size(positions),
            lambda: bench.submit(request(range(10), positions - 10)),
        ):
            with pytest.raises(RequestTooLarge, match=rf"needs {needed} .* {limit}$") as caught:
                check()
            assert (caught.value.bound, caught.value.needed, caught.value.limit) == (bound, needed, limit)
        snapshot = bench.engine.batcher()
        assert snapshot.kv_rejected_too_large == 2 * (bound == "store")
        assert snapshot.kv_rejected_context_length == 2 * (bound != "store")
        assert (snapshot.queue_rejected, snapshot.prefill_tokens) == (0, 0)
        assert bench.runner.samplers == []


def test_exact_fit_of_a_session_runs() -> None:
    with bounded() as bench:
        bench.engine.check_size(32)
        reader = bench.submit(request(range(10), 22))
        bench.step(22)
        assert reader.finished
        assert bench.engine.batcher().kv_blocks_peak == 8


def test_room_is_asked_for_before_the_work_and_counted_when_there_is_none() -> None:
    with bounded(waiting_limit=1) as bench:
        for _ in range(3):
            bench.engine.check_room()
            bench.submit(request())
        with pytest.raises(EngineBusy) as caught:
            bench.engine.check_room()
        assert caught.value.retry_after_seconds >= 1
        assert bench.engine.batcher().queue_rejected == 1
        bench.step(4)
        bench.engine.check_room()


@pytest.mark.parametrize("bench", [{"inference_wait_seconds": 5.0, "waiting_limit": 1}], indirect=True)
def test_room_is_there_again_when_a_wait_is_over(bench: Bench) -> None:
    bench.submit(request())
    late = bench.submit(request())
    bench.clock.now += 5.0
    bench.engine.check_room()
    bench.spin()
    assert isinstance(late.outcome, EngineBusy)
    assert bench.engine.batcher().queue_rejected == 1


def test_work_that_continues_is_never_refused_and_goes_first() -> None:
    with bounded(max_concurrent=1, waiting_limit=1) as bench:
        first = bench.submit(request(max_tokens=1))
        bench.submit(request(max_tokens=1))
        with pytest.raises(EngineBusy):
            bench.submit(request())
        second_prompt = bench.submit(request((7,), max_tokens=1), continues=True)
        bench.step()
        assert first.finished
        assert second_prompt.admitted
        bench.step(2)
        assert second_prompt.finished
        bench.step()
        bench.check_idle()


def test_work_that_continues_waits_where_others_may_not(bench: Bench) -> None:
    bench.submit(request(max_tokens=2))
    follow_up = bench.submit(request(max_tokens=1), continues=True)
    bench.clock.now += 1e6
    bench.expire()
    bench.step(3)
    assert follow_up.finished


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_cancelled_ones_count_once_they_were_admitted(steps: int) -> None:
    with bounded(max_concurrent=1, prefill_chunk=4) as bench:
        running = bench.submit(request(range(8), 20))
        waiting = bench.submit(request())
        bench.step(steps)
        for reader in (waiting, running):
            reader.generation.cancel()
            reader.generation.cancel()
        assert isinstance(waiting.outcome, GenerationFailed | None)
        bench.step(2)
        assert bench.engine.batcher().aborted == 1
        bench.check_idle()


def test_cancelled_before_its_first_step_evaluates_nothing(bench: Bench) -> None:
    reader = bench.submit(request())
    reader.generation.cancel()
    bench.step()
    assert (bench.runner.samplers, bench.runner.batches) == ([], [])
    bench.check_idle()


def test_cancel_after_the_end_is_not_an_abort(bench: Bench) -> None:
    reader = bench.submit(request(max_tokens=1))
    bench.step()
    assert reader.finished
    reader.generation.cancel()
    bench.step()
    assert bench.engine.batcher().aborted == 0


def test_peak_of_blocks_shows_what_a_broken_ledger_hides() -> None:
    with bounded(max_concurrent=2) as bench:
        # The planted bug: whoever comes is granted a permit and blocks, whatever is left.
        bench.engine._admission._fits = lambda blocks: True  # type: ignore[method-assign]
        for token in range(3):
            bench.submit(request((token,), 31))
        bench.step(28)
        snapshot = bench.engine.batcher()
        assert snapshot.kv_blocks_free == 0
        assert snapshot.kv_blocks_peak == 21 > snapshot.kv_blocks_total


def test_peak_of_blocks_counts_paused_streams() -> None:
    with bounded(event_queue=1) as bench:
        bench.submit(request(range(8), 4), allowance=0)
        bench.step()
        bench.submit(request((9,), 4))
        bench.step(4)
        assert bench.engine.batcher().kv_blocks_peak == 2 + 1


def total(histogram: Histogram) -> tuple[int, float]:
    snapshot = histogram.snapshot()
    return snapshot.count, snapshot.sum


def test_times_are_metered_when_they_happen() -> None:
    with bounded(max_concurrent=1) as bench:
        durations = iter([3.0, 0.5, 0.25, 2.0])

        def last(batch: StepBatch) -> None:
            bench.clock.now += next(durations)

        bench.runner.before_step = last
        bench.submit(request(max_tokens=3))
        bench.submit(request(max_tokens=1))
        bench.step(4)
        meters = bench.engine.meters
        assert total(meters.queue_wait_seconds) == (2, 3.75)
        assert total(meters.ttft_seconds) == (2, 3.0 + 5.75)
        assert total(meters.inter_token_seconds) == (2, 0.75)
        assert total(meters.step_seconds) == (4, 5.75)


def test_memory_that_cannot_be_returned_is_no_request_s_fault(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(blocks: object) -> None:
        raise OSError("no advice\ntaken")

    bench.runner.return_blocks = broken  # type: ignore[method-assign]
    reader = bench.submit(request(max_tokens=1))
    bench.step()
    assert reader.finished
    assert "1 free KV blocks were not returned: no advice taken" in caplog.text
    bench.check_idle()


def window(arrivals: list[float], permits: int) -> list[tuple[float, int]]:
    """When each step of an idle engine that waits up to 0.5 s began, and how many sequences it had."""
    with Bench(max_concurrent=permits, inference_wait_seconds=FAR, arrival_window_seconds=0.5) as bench:
        start = bench.clock.now
        steps: list[tuple[float, int]] = []
        pending = [start + arrival for arrival in arrivals]

        def wait(timeout: float | None = None) -> bool:
            """Let time pass to the next arrival or to the end of the wait."""
            until = FAR if timeout is None else bench.clock.now + timeout
            if pending and pending[0] < until:
                bench.clock.now = pending.pop(0)
                bench.submit(request((len(pending),), max_tokens=1))
            elif until < FAR:
                bench.clock.now = until
            else:
                bench.engine._stopping = True
            return True

        bench.engine._work.wait = wait  # type: ignore[method-assign]
        while bench.engine._wait_for_work():
            bench.step()
            steps.append((bench.clock.now - start, len(bench.runner.batches[-1].block_tables)))
    return steps


def test_idle_engine_lets_those_that_arrive_together_start_together() -> None:
    assert window([0.0, 0.25, 0.375], permits=8) == [(0.5, 3)]
    assert window([0.0, 0.75], permits=8) == [(0.5, 1), (1.25, 1)]


def test_idle_engine_does_not_wait_for_whom_it_has_no_permit() -> None:
    assert window([0.0], permits=1) == [(0.0, 1)]
    assert window([0.0, 0.25, 0.375], permits=2) == [(0.25, 2), (0.875, 1)]
