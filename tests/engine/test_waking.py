"""When readers hear of what a step made: while the next one runs, or at once where none follows."""

import asyncio

import pytest

from ferrite.engine import Finished, GenerationFailed
from ferrite.kv import BlockAccountingError
from ferrite.program.step import StepBatch
from tests.engine.bench import Bench
from tests.engine.fakes import FakeRunner, expected_completion, request
from tests.engine.test_engine_async import Gate, collect, run, running


def test_readers_hear_when_the_next_step_has_begun() -> None:
    with Bench(FakeRunner()) as bench:
        heard: list[tuple[int, ...]] = []

        def listen(_: StepBatch) -> None:
            bench.spin()
            heard.append(reader.token_ids)

        reader = bench.submit(request(max_tokens=3))
        bench.runner.before_step = listen
        for _ in range(3):
            bench.engine.step()
        expected = expected_completion(reader.asked.prompt_tokens, 3)
        assert heard == [(), expected[:1], expected[:2]]
        bench.spin()
        assert reader.token_ids == expected, "no step follows the last one"
        assert reader.finished


def test_readers_hear_before_newcomers_are_started() -> None:
    with Bench(FakeRunner(), max_concurrent=2) as bench:
        first = bench.submit(request(max_tokens=9))
        bench.engine.step()
        bench.spin()
        assert first.token_ids == ()
        start = bench.engine._batch.start
        heard = []

        def late(*arguments: object) -> None:
            bench.spin()
            heard.append(len(first.token_ids))
            start(*arguments)  # type: ignore[arg-type]

        bench.engine._batch.start = late  # type: ignore[method-assign,assignment]
        bench.submit(request((5, 6), max_tokens=1))
        bench.engine.step()
        assert heard == [1]


def test_readers_hear_at_once_where_all_others_are_paused() -> None:
    with Bench(FakeRunner(), max_concurrent=2, event_queue=1) as bench:
        bench.submit(request(max_tokens=9), allowance=0)
        last = bench.submit(request((5, 6), max_tokens=1))
        bench.engine.step()
        bench.spin()
        assert last.finished


def test_a_step_without_rows_wakes_those_of_the_step_before() -> None:
    with Bench(FakeRunner()) as bench:
        reader = bench.submit(request(max_tokens=9))
        bench.engine.step()
        reader.generation.cancel()
        bench.engine.step()
        bench.spin()
        assert reader.outcome == "ended"
        bench.check_idle()


@pytest.mark.parametrize("death", [True, False])
def test_an_end_that_was_not_told_yet_is_told_when_the_engine_stops_or_dies(death: bool) -> None:
    async def test() -> None:
        gate = Gate()
        async with running(FakeRunner(before_step=gate), max_concurrent=2) as engine:
            going, ending = engine.submit_group(
                [request((1, 2), max_tokens=100), request((3,), max_tokens=1)]
            )
            reading = asyncio.create_task(collect(ending))
            await gate.entered()
            if death:

                def broken() -> None:
                    raise BlockAccountingError("planned")

                engine._batch._kv.return_freed = broken  # type: ignore[method-assign]
            else:
                stopping = asyncio.create_task(asyncio.to_thread(engine.stop))
                while not engine._stopping:
                    await asyncio.sleep(0)
            gate.open()
            if not death:
                await stopping
            events = await reading
            assert isinstance(events[-1], Finished)
            with pytest.raises(GenerationFailed):
                await collect(going)

    run(test)
