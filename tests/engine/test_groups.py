"""Requests that start together: the choices of one prompt."""

from collections.abc import Sequence
from typing import Any

import pytest

from ferrite.engine import EngineBusy, EngineStopped, GenerationFailed, GenerationRequest, RequestTooLarge
from ferrite.sampling import SamplingParams
from tests.engine.bench import Bench
from tests.engine.fakes import FakeRunner, expected_completion, request

PROMPT = tuple(range(30))


def choices(count: int, max_tokens: int = 6, prompt: Sequence[int] = PROMPT) -> list[GenerationRequest]:
    return [
        request(prompt, max_tokens, f"c{n}", sampling=SamplingParams(temperature=1.0, seed=n))
        for n in range(count)
    ]


def group_bench(**limits: Any) -> Bench:
    runner = FakeRunner(n_blocks=8 * 16, context_length=64)
    return Bench(runner, **{"max_concurrent": 4, "prefill_chunk": 8, **limits})


def test_choices_cost_one_prefill_and_speak_in_one_step() -> None:
    with group_bench() as bench:
        readers = bench.submit_group(choices(4))
        bench.step(4)
        assert [len(reader.token_ids) for reader in readers] == [1, 1, 1, 1]
        bench.step(10)
        for reader in readers:
            assert reader.token_ids == expected_completion(PROMPT, 6)
            assert reader.finished is not None
            assert reader.finished.cache.shared
        assert bench.engine.batcher().prefill_tokens == len(PROMPT)
        assert [sampler.params.seed for sampler in bench.runner.samplers] == [0, 1, 2, 3]
        bench.check_idle()


def test_group_waits_until_there_is_room_for_all_of_it() -> None:
    with group_bench(inference_wait_seconds=60.0) as bench:
        running = [bench.submit(request((n,), 2 + 2 * n)) for n in range(2)]
        group = bench.submit_group(choices(3))
        behind = bench.submit(request((7,), 2))
        assert (bench.engine.active, bench.engine.waiting) == (2, 2)
        bench.step(3)
        assert running[0].finished
        assert [reader.admitted for reader in group] == [True] * 3
        assert not behind.admitted
        bench.step(20)
        assert all(reader.finished for reader in [*running, *group, behind])
        bench.check_idle()


def test_each_of_a_group_ends_by_itself() -> None:
    with group_bench(inference_wait_seconds=60.0) as bench:
        short, long = choices(1, 1), choices(2, 9)
        first, cancelled, last = bench.submit_group([*short, *long])
        waiting = bench.submit_group(choices(3))
        bench.step(5)
        assert first.finished
        assert bench.engine.active == 2
        cancelled.generation.cancel()
        bench.step()
        assert bench.engine.active == 4
        bench.step(30)
        assert last.token_ids == expected_completion(PROMPT, 9)
        assert all(reader.finished for reader in waiting)
        assert bench.engine.batcher().aborted == 1
        bench.check_idle()


def test_one_that_leaves_the_line_makes_room_for_the_rest() -> None:
    with group_bench(inference_wait_seconds=60.0) as bench:
        running = bench.submit_group(choices(2, 20))
        waiting = bench.submit_group(choices(3))
        assert not waiting[1].admitted
        waiting[0].generation.cancel()
        bench.spin()
        assert [reader.admitted for reader in waiting] == [False, True, True]
        bench.step(40)
        assert all(reader.finished for reader in [*running, *waiting[1:]])
        assert isinstance(waiting[0].outcome, GenerationFailed)
        bench.check_idle()


def test_group_is_refused_as_one_and_late_as_one() -> None:
    with group_bench(inference_wait_seconds=2.0, waiting_limit=1) as bench:
        bench.submit_group(choices(2, 20))
        late = bench.submit_group(choices(3))
        with pytest.raises(EngineBusy):
            bench.submit_group(choices(1))
        assert bench.engine.batcher().queue_rejected == 1
        bench.clock.now += 2.0
        bench.expire()
        assert all(isinstance(reader.outcome, EngineBusy) for reader in late)
        assert bench.engine.batcher().queue_rejected == 2
        bench.step(30)
        bench.check_idle()


def test_group_that_continues_enters_first_and_while_draining() -> None:
    with group_bench(inference_wait_seconds=60.0) as bench:
        bench.submit_group(choices(4, 3))
        other = bench.submit(request((1,), 2))
        continuing = bench.submit_group(choices(2, 2, (5, 5)), continues=True)
        bench.engine._draining = True
        with pytest.raises(EngineStopped):
            bench.submit_group(choices(2))
        more = bench.submit_group(choices(2, 2, (6, 6)), continues=True)
        bench.step(8)
        assert all(reader.finished for reader in continuing)
        assert not other.finished
        bench.step(20)
        assert all(reader.finished for reader in [*more, other])
        bench.check_idle()


def test_group_that_can_never_start_is_refused_before_it_waits() -> None:
    with group_bench(inference_wait_seconds=60.0) as bench:
        for count in (0, 5):
            with pytest.raises(ValueError, match=f"a group of {count} requests, there are 4 permits"):
                bench.submit_group(choices(count))
        with pytest.raises(RequestTooLarge, match="needs 65 positions, the context has 64"):
            bench.submit_group([*choices(1), *choices(1, 35)])
        bench.check_idle()
    with Bench(FakeRunner(n_blocks=20, context_length=64), max_concurrent=4) as bench:
        with pytest.raises(
            RequestTooLarge, match="the requests need 27 KV blocks, the server has 20"
        ) as caught:
            bench.submit_group(choices(3))
        assert (caught.value.needed, caught.value.limit, caught.value.bound) == (27, 20, "store")
        assert bench.engine.batcher().kv_rejected_too_large == 1
        bench.submit_group(choices(2))
        bench.step(20)
        bench.check_idle()
