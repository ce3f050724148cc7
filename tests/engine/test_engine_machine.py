"""Every interleaving of clients, steps and time, on the engine without its thread."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ferrite.engine import EngineBusy, Finished, GenerationFailed, RequestTooLarge
from ferrite.kv import blocks_for
from ferrite.program.step import StepBatch, StepError
from tests.engine.bench import Bench
from tests.engine.fakes import FakeRunner, expected_completion, request

PROMPTS = st.lists(st.integers(0, 255), min_size=1, max_size=12).map(tuple)


class EngineMachine(RuleBasedStateMachine):
    """Clients come, read, stall and leave, steps fail, time passes."""

    @initialize(
        permits=st.integers(1, 4),
        wait=st.sampled_from([0.0, 5.0, float("inf")]),
        chunk=st.integers(4, 9),
        queue=st.integers(1, 4),
        blocks=st.integers(6, 16),
    )
    def build(self, permits: int, wait: float, chunk: int, queue: int, blocks: int) -> None:
        self.bench = Bench(
            FakeRunner(n_blocks=blocks),
            max_concurrent=permits,
            inference_wait_seconds=wait,
            prefill_chunk=chunk,
            event_queue=queue,
            waiting_limit=3,
        )
        self.permits, self.queue, self.blocks = permits, queue, blocks
        self.cancelled: set[int] = set()
        self.fail_next = False
        self.bench.runner.before_step = self.maybe_fail

    def maybe_fail(self, batch: StepBatch) -> None:
        if self.fail_next:
            self.fail_next = False
            raise StepError("planned")

    @property
    def open(self) -> list[int]:
        return [n for n, reader in enumerate(self.bench.readers) if reader.outcome is None]

    @rule(prompt=PROMPTS, max_tokens=st.integers(1, 16), allowance=st.sampled_from([0, 1, 99]))
    def submit(self, prompt: tuple[int, ...], max_tokens: int, allowance: int) -> None:
        asked = request(prompt, max_tokens, request_id=str(len(self.bench.readers)))
        needed = blocks_for(len(prompt) + max_tokens, 4)
        try:
            self.bench.submit(asked, allowance=allowance)
        except RequestTooLarge:
            assert needed > self.blocks
        except EngineBusy:
            assert needed <= self.blocks
            assert self.bench.engine._admission.n_holding > 0

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        self.bench.step(count)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), count=st.integers(1, 4))
    def read(self, data: st.DataObject, count: int) -> None:
        self.bench.readers[data.draw(st.sampled_from(self.open))].allow(count)
        self.bench.spin()

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        index = data.draw(st.sampled_from(self.open))
        self.bench.readers[index].generation.cancel()
        self.cancelled.add(index)
        self.bench.spin()

    @rule(seconds=st.sampled_from([1.0, 3.0]))
    def pass_time(self, seconds: float) -> None:
        self.bench.clock.now += seconds
        self.bench.expire()

    @rule()
    def plan_failure(self) -> None:
        self.fail_next = True

    @invariant()
    def limits_hold(self) -> None:
        engine = self.bench.engine
        tables = [sequence.table.blocks for sequence in engine._active]
        engine._pool.audit(tables)
        assert engine._admission.n_holding <= self.permits
        assert engine._admission.n_waiting <= 3
        assert sum(map(len, tables)) <= engine._admission.reserved_blocks <= self.blocks
        for sequence in engine._active:
            reserved = blocks_for(sequence.prompt_length + sequence.ticket.request.max_tokens, 4)
            assert len(sequence.table.blocks) <= reserved
            assert 0 <= sequence.computed < sequence.total
            assert len(sequence.channel._events) <= self.queue
            assert sequence.ticket in engine._unfinished

    @invariant()
    def order_is_kept(self) -> None:
        order = [int(s.ticket.request.request_id) for s in self.bench.engine._active]
        assert order == sorted(order)
        admitted = [n for n, reader in enumerate(self.bench.readers) if reader.admitted]
        waiting = [
            n
            for n, reader in enumerate(self.bench.readers)
            if not reader.admitted and reader.outcome is None and n not in self.cancelled
        ]
        assert not admitted or not waiting or max(admitted) < min(waiting)

    @invariant()
    def tokens_are_those_of_the_request_alone(self) -> None:
        for reader in self.bench.readers:
            asked = reader.asked
            expected = expected_completion(asked.prompt_tokens, asked.max_tokens)
            assert reader.token_ids == expected[: len(reader.token_ids)]
            if reader.finished:
                assert reader.token_ids == expected
            assert sum(isinstance(event, Finished) for event in reader.events) <= 1

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        self.fail_next = False
        for reader in self.bench.readers:
            reader.allow(99)
        self.bench.spin()
        for _ in range(400):
            if not self.open:
                break
            self.bench.step()
        for index, reader in enumerate(self.bench.readers):
            ways = [
                reader.finished is not None,
                isinstance(reader.outcome, (EngineBusy, GenerationFailed)),
                index in self.cancelled and reader.finished is None and reader.outcome == "ended",
            ]
            assert sum(ways) == 1, (index, reader.outcome, reader.events)
        self.bench.step()
        self.bench.check_idle()
        self.bench.close()


TestEngine = EngineMachine.TestCase
