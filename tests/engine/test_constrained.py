"""Answers that follow a grammar: masks made beside the step, ends without an end token, and their faults."""

import json
import threading
from collections.abc import Iterator, Sequence

import pytest

from ferrite.engine import GenerationFailed, GenerationRequest
from ferrite.grammar import ConstraintError
from ferrite.kv import PrefixLimits
from ferrite.program.step import StepBatch, StepError
from tests.engine.bench import Bench
from tests.engine.fakes import (
    FakeConstraint,
    FakeMaskSlot,
    FakeRunner,
    PieceDetokenizer,
    expected_completion,
    next_token,
    request,
    scripted,
    vowels,
)
from tests.grammar.support import compiler

PROMPT = tuple(range(20))


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench(FakeRunner(n_blocks=8 * 64, context_length=256), max_concurrent=8, prefill_chunk=8) as made:
        yield made


def digits(tokens: tuple[int, ...]) -> bytes:
    return b"0123456789" if len(tokens) % 2 else b"tfn"


def constrained(
    prompt: Sequence[int], constraint: FakeConstraint, max_tokens: int = 6, **changes: object
) -> GenerationRequest:
    return request(prompt, max_tokens, "c", constraint=constraint, **changes)


def answer(prompt: Sequence[int], constraint: FakeConstraint, count: int) -> tuple[int, ...]:
    """What a constrained request alone must generate."""
    history = tuple(prompt)
    for _ in range(count):
        allowed = set(constraint._allowed(history[len(prompt) :]))
        token = next_token(history)
        history += (token if token in allowed else min(allowed),)
    return history[len(prompt) :]


def mask_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ferrite-masks")]


def test_constrained_and_free_requests_share_steps(bench: Bench) -> None:
    constraints = [FakeConstraint(vowels), FakeConstraint(digits)]
    bound = [bench.submit(constrained((n, *PROMPT), one)) for n, one in enumerate(constraints)]
    free = [bench.submit(request((n, 9, 9), 6)) for n in range(2)]
    bench.step(16)
    for reader, one in zip(bound, constraints, strict=True):
        assert reader.token_ids == answer(reader.asked.prompt_tokens, one, 6) == one.tokens
        assert reader.finished is not None
        assert reader.finished.reason == "length"
    for reader in free:
        assert reader.token_ids == expected_completion(reader.asked.prompt_tokens, 6)
    bench.check_idle()


def test_each_follower_has_its_own_masks_from_the_first_token_on(bench: Bench) -> None:
    rules = [vowels, digits, vowels]
    readers = [bench.submit(constrained(PROMPT, FakeConstraint(rule))) for rule in rules]
    readers.append(bench.submit(request(PROMPT, 6)))
    bench.step(10)
    for reader, rule in zip(readers, rules, strict=False):
        assert reader.token_ids == answer(PROMPT, FakeConstraint(rule), 6)
    assert readers[3].token_ids == expected_completion(PROMPT, 6)
    assert bench.engine.batcher().prefill_tokens == len(PROMPT)
    bench.check_idle()


def test_follower_that_inherits_the_prompt_keeps_its_masks(bench: Bench) -> None:
    leader = bench.submit(constrained(PROMPT, FakeConstraint(digits)))
    heir = bench.submit(constrained(PROMPT, FakeConstraint(vowels)))
    bench.step()
    leader.generation.cancel()
    bench.step(10)
    assert heir.token_ids == answer(PROMPT, FakeConstraint(vowels), 6)
    assert bench.engine.batcher().prefill_tokens == len(PROMPT)
    bench.check_idle()


def test_cached_prefix_serves_a_constrained_request() -> None:
    runner = FakeRunner(n_blocks=64)
    limits = PrefixLimits(4, 1 << 40)
    with Bench(runner, prefix_cache=limits, session_positions=64) as bench:
        bench.submit(request(PROMPT, 3, cache_namespace="k"))
        bench.step(8)
        reader = bench.submit(constrained(PROMPT, FakeConstraint(vowels), cache_namespace="k"))
        bench.step(8)
        assert reader.finished is not None
        assert reader.finished.usage.cached_tokens == len(PROMPT) - 1
        assert reader.token_ids == answer(PROMPT, FakeConstraint(vowels), 6)


@pytest.mark.parametrize("max_tokens", [4, 9])
def test_complete_answer_stops_without_an_end_token(bench: Bench, max_tokens: int) -> None:
    reader = bench.submit(constrained(PROMPT, FakeConstraint(vowels, length=4), max_tokens))
    bench.step(12)
    assert reader.finished is not None
    assert (reader.finished.reason, reader.finished.usage.completion_tokens) == ("stop", 4)
    assert reader.finished.token_ids == reader.token_ids == answer(PROMPT, FakeConstraint(vowels), 4)
    bench.check_idle()


def test_complete_answer_brings_out_held_text() -> None:
    pieces = PieceDetokenizer(["re", "d", "x"])
    with Bench(FakeRunner(sample=scripted(3, [0, 1])), detokenizer=lambda: pieces) as bench:
        rule = FakeConstraint(lambda tokens: [0, 1], length=2)
        reader = bench.submit(constrained((1, 2, 3), rule, stop=("redx",)))
        bench.step(4)
        assert (reader.text, reader.token_ids) == ("red", (0, 1))


@pytest.mark.parametrize("ignore_end", [False, True])
def test_end_token_that_the_grammar_allows_ends(ignore_end: bool) -> None:
    end = 9
    with Bench(FakeRunner(sample=scripted(3, [97, end]))) as bench:
        rule = FakeConstraint(lambda tokens: [97, end], length=2)
        reader = bench.submit(constrained((1, 2, 3), rule, end_ids=frozenset([end]), ignore_end=ignore_end))
        bench.step(4)
        assert reader.finished is not None
        assert (reader.finished.reason, reader.text) == ("stop", "a")
        assert reader.token_ids == ((97, end) if ignore_end else (97,))
        assert reader.finished.usage.completion_tokens == 2


def test_reached_bound_ends_with_length_and_what_there_is(bench: Bench) -> None:
    rule = FakeConstraint(lambda tokens: b"z" if len(tokens) < 3 else b"")
    bound = bench.submit(constrained(PROMPT, rule, 50, stop=("zzzz",)))
    free = bench.submit(request((1, 2), 8))
    bench.step(12)
    assert bound.finished is not None
    assert (bound.finished.reason, bound.finished.usage.completion_tokens) == ("length", 3)
    assert (bound.text, bound.token_ids) == ("zzz", tuple(b"zzz"))
    assert bound.finished.timings.decode_seconds == 0.0
    assert free.token_ids == expected_completion((1, 2), 8)
    bench.check_idle()


def test_mask_that_cannot_be_made_fails_its_request_only(bench: Bench) -> None:
    def rule(tokens: tuple[int, ...]) -> bytes:
        if len(tokens) == 2:
            raise ConstraintError("too complex")
        return b"abc"

    bad = bench.submit(constrained(PROMPT, FakeConstraint(rule), 50))
    others = [bench.submit(constrained((1,), FakeConstraint(vowels))), bench.submit(request((1, 2), 6))]
    bench.step(12)
    assert str(bad.outcome) == "the grammar of the answer could not be followed"
    assert len(bad.token_ids) == 2
    assert others[0].token_ids == answer((1,), FakeConstraint(vowels), 6)
    assert others[1].token_ids == expected_completion((1, 2), 6)
    bench.check_idle()


def test_token_that_the_grammar_refuses_fails_its_request_only(bench: Bench) -> None:
    class Picky(FakeConstraint):
        def accept(self, token: int) -> None:
            raise ConstraintError(f"token {token} is not of the grammar")

    bad, good = bench.submit(constrained(PROMPT, Picky(vowels))), bench.submit(request((1, 2), 6))
    bench.step(12)
    assert "is not of the grammar" in str(bad.outcome)
    assert bad.token_ids == ()
    assert good.token_ids == expected_completion((1, 2), 6)
    bench.check_idle()


def test_non_finite_logits_are_told_from_a_failed_mask(bench: Bench) -> None:
    bench.runner.sample = lambda history: -1
    reader = bench.submit(constrained(PROMPT, FakeConstraint(vowels)))
    bench.step(5)
    assert str(reader.outcome) == "the model produced non-finite logits"
    bench.check_idle()


def test_request_that_leaves_during_a_step_leaves_its_constraint_alone(bench: Bench) -> None:
    """Its mask is still being made when the step ends without it: by a worker, in memory that stays."""
    filling, leave = threading.Event(), threading.Event()
    filled: list[int] = []

    def rule(tokens: tuple[int, ...]) -> bytes:
        if len(tokens) == 1:
            filling.set()
            assert leave.wait(timeout=30)
            filled.append(len(tokens))
        return b"ab"

    def fail(batch: StepBatch) -> None:
        if constraint.tokens:
            assert filling.wait(timeout=30)
            raise StepError("planned")

    constraint = FakeConstraint(rule)
    bench.runner.before_step = fail
    reader = bench.submit(constrained((1, 2), constraint))
    bench.step(2)
    assert isinstance(reader.outcome, GenerationFailed)
    assert filled == []
    bench.runner.before_step = lambda batch: None
    leave.set()
    good = bench.submit(constrained((1, 2), FakeConstraint(vowels)))
    bench.step(8)
    assert good.token_ids == answer((1, 2), FakeConstraint(vowels), 6)
    bench.engine.stop()
    assert filled == [1]
    assert constraint.tokens in ((97,), (98,))
    bench.check_idle()


def test_masks_begin_before_the_step_and_only_for_rows_that_are_sampled(bench: Bench) -> None:
    states: list[list[str]] = []

    def look(batch: StepBatch) -> None:
        slots = [s.mask for s in bench.runner.samplers if isinstance(s.mask, FakeMaskSlot)]
        states.append(["empty" if slot.state == "empty" else "begun" for slot in slots])

    bench.runner.before_step = look
    bench.submit(constrained(PROMPT, FakeConstraint(vowels), 2))
    bench.step(4)
    assert states == [["empty"], ["empty"], ["begun"], ["begun"]]


def test_workers_start_with_the_first_constraint_and_end_with_the_engine() -> None:
    before = mask_threads()
    bench = Bench()
    bench.submit(request((1,), 2))
    bench.step(3)
    assert mask_threads() == before
    bench.submit(constrained((1,), FakeConstraint(vowels), 2))
    bench.step(3)
    assert len(mask_threads()) > len(before)
    bench.engine.stop()
    bench.engine.stop()
    assert mask_threads() == before
    bench.close()


def test_real_grammar(bench: Bench) -> None:
    """The model would write another number and never end; the masks leave it blanks, then the value."""
    grammar = compiler().compile_json_schema({"const": {"yes": [1, 2]}}, strict=True)
    bench.runner.sample = scripted(len(PROMPT), list(b'{"yes": [1, 333'))
    reader = bench.submit(request(PROMPT, 200, constraint=grammar.constraint()))
    bench.step(210)
    assert reader.finished is not None
    assert (reader.finished.reason, json.loads(reader.text)) == ("stop", {"yes": [1, 2]})
    bench.check_idle()
