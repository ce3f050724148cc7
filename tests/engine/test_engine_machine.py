"""Every interleaving of clients, steps, faults and time, on the engine without its thread."""

from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ferrite.engine import EngineBusy, Finished, GenerationFailed, RequestTooLarge
from ferrite.kv import PrefixLimits, blocks_for
from ferrite.program.step import StepBatch, StepError
from tests.engine.bench import Bench, Reader
from tests.engine.fakes import RULES, FakeRunner, FakeSampler, expected_answer, next_token, request
from tests.engine.test_logprobs import check_logprobs

BLOCK_TOKENS = 4
WAITING = 3
# Few and alike, so that prompts are often equal or begin alike.
PROMPTS = st.tuples(st.sampled_from([0, 3, 8, 9]), st.sampled_from([(), (7,), (7, 7, 5)])).map(
    lambda parts: (1, *range(2, 2 + parts[0]), *parts[1])
)
FAULTS = ["step", "copy_block", "sampler", "mask_slot", "scorer", "return_blocks", "logits", "text"]
NAMESPACES = st.sampled_from(["", "a", "b"])
ALLOWANCES = st.sampled_from([0, 1, 99, 99])
WHETHER_TO_CONTINUE = st.sampled_from([False, False, False, True])
GRAMMARS = st.sampled_from([None, None, *RULES])
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "cache_namespace": NAMESPACES,
        "top_logprobs": st.sampled_from([0, 3]),
    },
)
SCORED = st.sampled_from(["none", "none", "first", "all"])


class EngineMachine(RuleBasedStateMachine):
    """Clients come, read, stall and leave; steps, samplers and copies fail; time passes."""

    @initialize(
        permits=st.integers(1, 4),
        wait=st.sampled_from([0.0, 5.0, float("inf")]),
        chunk=st.integers(1, 9),
        queue=st.integers(1, 4),
        session=st.sampled_from([24, 32, None]),
        spare=st.integers(0, 9),
        entries=st.integers(0, 3),
        speculates=st.booleans(),
    )
    def build(
        self,
        permits: int,
        wait: float,
        chunk: int,
        queue: int,
        session: int | None,
        spare: int,
        entries: int,
        speculates: bool,
    ) -> None:
        self.session_blocks = permits * blocks_for(session or 32, BLOCK_TOKENS)
        runner = FakeRunner(n_blocks=self.session_blocks + spare, block_bytes=100, context_length=32)
        limits: dict[str, Any] = {
            "max_concurrent": permits,
            "inference_wait_seconds": wait,
            "prefill_chunk": chunk,
            "event_queue": queue,
            "waiting_limit": WAITING,
            "session_positions": session,
            # More than the spare blocks: the engine must not believe it.
            "prefix_cache": PrefixLimits(entries, 10_000) if entries else None,
            "speculation": "ngram" if speculates else "off",
        }
        self.bench = Bench(runner, drafts_are_free=speculates, **limits)
        self.runner = runner
        self.permits, self.queue, self.session, self.spare = permits, queue, session, spare
        self.cancelled: set[int] = set()
        self.stopped: set[int] = set()
        self.continuing: set[int] = set()
        self.grammars: list[str | None] = []
        self.failing: str | None = None
        self.cancel_inside: Reader | None = None
        self.most_blocks = self.prefill_chunks = self.prefill_rows = self.decode_steps = 0
        self.drafted_rows = 0
        runner.before_step = self.before_step
        for name in ("sampler", "mask_slot", "scorer", "copy_block", "return_blocks"):
            setattr(runner, name, partial(self.guard, name, getattr(runner, name)))
        runner.sample = self.sample

    def guard(self, name: str, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        self.maybe_fail(name)
        return call(*arguments, **named)

    def maybe_fail(self, where: str) -> None:
        if self.failing == where:
            self.failing = None
            raise MemoryError if where == "sampler" else StepError("planned")

    def sample(self, history: tuple[int, ...]) -> int:
        bad = {"logits": -1, "text": 999}.get(self.failing or "")
        if bad is None:
            return next_token(history)
        self.failing = None
        return bad

    def before_step(self, batch: StepBatch) -> None:
        """The time a step takes, what may go wrong in it, and what the counters must make of it."""
        self.bench.clock.now += 0.01 + 0.001 * len(batch.token_ids)
        tables = [sequence.table.blocks for sequence in self.bench.engine._batch._active]
        self.most_blocks = max(self.most_blocks, len({block for table in tables for block in table}))
        if self.cancel_inside is not None:
            self.cancel_inside.generation.cancel()
        self.maybe_fail("step")
        decoding = sum(
            isinstance(sampler, FakeSampler) and int(batch.positions[row]) >= len(sampler.prompt)
            for row, sampler in zip(batch.sample_rows.tolist(), batch.samplers, strict=True)
        )
        self.prefill_chunks += len(batch.block_tables) - decoding
        self.prefill_rows += len(batch.token_ids) - decoding - sum(batch.drafted)
        self.drafted_rows += sum(batch.drafted)
        self.decode_steps += decoding > 0

    @property
    def open(self) -> list[int]:
        return [n for n, reader in enumerate(self.bench.readers) if reader.outcome is None]

    @rule(
        prompt=PROMPTS,
        max_tokens=st.integers(0, 20),
        grammars=st.lists(GRAMMARS, min_size=1, max_size=3),
        options=OPTIONS,
        scored=SCORED,
        allowance=ALLOWANCES,
        continues=WHETHER_TO_CONTINUE,
    )
    def submit(
        self,
        prompt: tuple[int, ...],
        max_tokens: int,
        grammars: list[str | None],
        options: dict[str, Any],
        scored: str,
        allowance: int,
        continues: bool,
    ) -> None:
        """A group of one prompt's choices, each with a grammar of its own."""
        max_tokens = max(max_tokens, 0 if scored == "all" else 1)
        too_large = len(prompt) + max_tokens > min(32, self.session or 32)
        first = len(self.bench.readers)
        group = [
            request(
                prompt,
                max_tokens,
                str(first + n),
                constraint=RULES[grammar]() if grammar else None,
                prompt_logprobs=scored == "all" or (scored == "first" and n == 0),
                **options,
            )
            for n, grammar in enumerate(grammars)
        ]
        try:
            self.bench.submit_group(group, allowance=allowance, continues=continues)
        except ValueError:
            assert len(group) > self.permits
            return
        except RequestTooLarge:
            assert too_large
            return
        except EngineBusy:
            assert not continues
            assert self.bench.engine.active > 0 or self.bench.engine.waiting > 0
            return
        assert not too_large
        self.grammars += grammars
        if continues:
            self.continuing |= set(range(first, len(self.bench.readers)))

    @rule(prompt=PROMPTS, count=st.integers(2, 4), namespace=st.sampled_from(["", "a"]))
    def submit_equals(self, prompt: tuple[int, ...], count: int, namespace: str) -> None:
        for _ in range(count):
            self.submit(prompt, 5, [None], {"cache_namespace": namespace}, "none", 99, False)

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        self.bench.step(count)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), count=st.integers(1, 4))
    def read(self, data: st.DataObject, count: int) -> None:
        self.bench.readers[data.draw(st.sampled_from(self.open))].allow(count)
        self.bench.spin()

    @precondition(lambda self: self.open)
    @rule(data=st.data(), inside=st.booleans())
    def cancel(self, data: st.DataObject, inside: bool) -> None:
        index = data.draw(st.sampled_from(self.open))
        self.cancelled.add(index)
        if inside:
            self.cancel_inside = self.bench.readers[index]
            self.bench.step()
            self.cancel_inside = None
        self.bench.readers[index].generation.cancel()
        self.bench.spin()

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        index = data.draw(st.sampled_from(self.open))
        self.stopped.add(index)
        self.bench.readers[index].generation.stop()

    @rule(seconds=st.sampled_from([1.0, 3.0]))
    def pass_time(self, seconds: float) -> None:
        self.bench.clock.now += seconds
        self.bench.expire()

    @rule(where=st.sampled_from(FAULTS))
    def plan_failure(self, where: str) -> None:
        self.failing = where

    @invariant()
    def limits_hold(self) -> None:
        engine, batch = self.bench.engine, self.bench.engine._batch
        batch.audit()
        kv = batch._kv
        tables = [sequence.table.blocks for sequence in batch._active]
        reserved = engine._admission.reserved_blocks
        assert engine.active <= self.permits
        assert engine.waiting <= WAITING + len(self.continuing)
        assert sum(map(len, tables)) <= reserved <= self.session_blocks
        cached = kv._prefixes.holders() if kv._prefixes else []
        assert sum(map(len, cached)) <= self.spare
        held = {block for blocks in [*tables, *cached] for block in blocks}
        assert kv._pool.n_free == self.runner.n_blocks - len(held) >= self.session_blocks - reserved
        for sequence in batch._active:
            positions = sequence.prompt_length + sequence.ticket.request.max_tokens
            assert len(sequence.table.blocks) <= blocks_for(positions, BLOCK_TOKENS)
            assert 0 <= sequence.computed < sequence.total
            # The scores of a prompt are told beside its first token, as an event of their own.
            beside = int(sequence.ticket.request.prompt_logprobs)
            assert len(sequence.channel._events) <= self.queue + beside
            assert sequence.ticket in engine._unfinished

    @invariant()
    def counters_tell_what_is(self) -> None:
        snapshot = self.bench.engine.batcher()
        budget = self.session_blocks if self.session else 0
        free = budget - self.bench.engine._admission.reserved_blocks if self.session else 0
        assert (snapshot.kv_blocks_total, snapshot.kv_blocks_free) == (budget, free)
        assert snapshot.queue_depth == self.bench.engine.waiting
        assert snapshot.kv_blocks_peak == self.most_blocks <= self.session_blocks
        assert snapshot.prefill_chunks == self.prefill_chunks
        assert snapshot.prefill_tokens == self.prefill_rows
        assert snapshot.decode_steps == self.decode_steps
        if (drafts := self.bench.engine.speculation_stats()) is not None:
            assert drafts.accepted_tokens <= drafts.drafted_tokens <= self.drafted_rows
        assert snapshot.aborted <= len(self.cancelled)

    @invariant()
    def groups_are_of_equals(self) -> None:
        for sequence in self.bench.engine._batch._active:
            asked = sequence.ticket.request
            for follower in sequence.followers:
                other = follower.ticket.request
                assert follower.leader is sequence
                assert sequence.leader is None
                assert sequence.is_prefilling
                assert (other.prompt_tokens, other.cache_namespace) == (
                    asked.prompt_tokens,
                    asked.cache_namespace,
                )
                assert not other.prompt_logprobs
                assert not asked.prompt_logprobs
                assert (follower.computed, len(follower.table)) == (0, 0)
            assert sequence.leader is None or sequence in sequence.leader.followers

    @invariant()
    def order_is_kept(self) -> None:
        readers = self.bench.readers
        order = [int(s.ticket.request.request_id) for s in self.bench.engine._batch._active]
        plain = [n for n in order if n not in self.continuing]
        assert plain == sorted(plain)
        admitted = [n for n, reader in enumerate(readers) if reader.admitted and n not in self.continuing]
        waiting = [
            n
            for n, reader in enumerate(readers)
            if not reader.admitted
            and reader.outcome is None
            and n not in self.cancelled
            and n not in self.continuing
        ]
        assert not admitted or not waiting or max(admitted) < min(waiting)

    @invariant()
    def tokens_are_those_of_the_request_alone(self) -> None:
        for index, (reader, grammar) in enumerate(zip(self.bench.readers, self.grammars, strict=True)):
            asked = reader.asked
            expected, reason = expected_answer(asked.prompt_tokens, asked.max_tokens, grammar)
            assert reader.token_ids == expected[: len(reader.token_ids)]
            assert sum(isinstance(event, Finished) for event in reader.events) <= 1
            if index not in self.stopped:
                check_logprobs(reader)
            if (finished := reader.finished) is not None:
                completion = len(reader.token_ids)
                assert finished.usage.completion_tokens == completion
                assert finished.token_ids == reader.token_ids
                if index not in self.stopped:
                    assert (reader.token_ids, finished.reason) == (expected, reason)
                assert finished.usage.prompt_tokens == len(asked.prompt_tokens)
                assert finished.usage.cached_tokens == finished.cache.cached_tokens
                assert finished.cache.cached_tokens < len(asked.prompt_tokens)
                assert (finished.cache.outcome == "hit") == (finished.cache.cached_tokens > 0)
                assert finished.cache.cached_tokens <= finished.cache.entry_tokens
                assert (finished.cache.outcome in ("hit", "miss")) == (
                    self.bench.engine.prefix_stats() is not None
                    and asked.cache_namespace != ""
                    and not asked.prompt_logprobs
                )

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        self.failing = None
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
