"""Drafts change the time of an answer and nothing else of it."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrite.engine import Delta, Finished, GenerationFailed, GenerationRequest, Usage
from ferrite.engine.speculation import MOST_ROWS, REMEMBERED_STEPS, StepTimes
from ferrite.kv import PrefixLimits
from ferrite.program.step import StepBatch
from tests.engine.bench import Bench, Reader
from tests.engine.fakes import RULES, FakeRunner, next_token, request

Sample = Callable[[tuple[int, ...]], int]
LOOP = tuple(b"the quick brown fox ")


def repeats(history: tuple[int, ...]) -> int:
    """The prompt over and over."""
    return history[-len(LOOP)]


def bench(sample: Sample = next_token, *, drafts: bool = True, **limits: Any) -> Bench:
    limits = {"max_concurrent": 4, "speculation": "ngram" if drafts else "off", **limits}
    runner = FakeRunner(sample=sample, context_length=128, n_blocks=4 * 32 + 40)
    return Bench(runner, drafts_are_free=drafts, prefill_chunk=40, **limits)


def decode_steps(made: Bench) -> int:
    return made.engine.batcher().decode_steps


def answers(made: Bench, groups: Sequence[Sequence[GenerationRequest]]) -> list[Reader]:
    """Serve each group of choices to its end before the next."""
    with made:
        for group in groups:
            made.submit_group(group)
            made.step(60)
        made.check_idle()
        return made.readers


def copies(period: int, every: int) -> Sample:
    """Copies what stands ``period`` tokens before, but says something new once in ``every`` tokens."""

    def sample(history: tuple[int, ...]) -> int:
        copied = history[-period] if len(history) >= period and len(history) % every else next_token(history)
        return copied % 256

    return sample


CHOICES = st.lists(
    st.fixed_dictionaries(
        {"max_tokens": st.integers(1, 30)},
        optional={
            "top_logprobs": st.sampled_from([0, 2]),
            "stop": st.sampled_from([("e",), ("ab", "zz"), ("he q",)]),
            "end_ids": st.sampled_from([frozenset(b"q"), frozenset(b"ax")]),
            "ignore_end": st.booleans(),
        },
    ),
    min_size=1,
    max_size=4,
)
ASKED = st.tuples(st.sampled_from([LOOP, LOOP * 2, (1, 2, 3), tuple(b"abcabcabcab")]), CHOICES)


@settings(max_examples=30)
@given(
    groups=st.lists(ASKED, min_size=1, max_size=3),
    sample=st.builds(copies, st.integers(1, 20), st.integers(2, 40)),
    caching=st.booleans(),
    queue=st.sampled_from([1, 3, 64]),
)
def test_events_are_those_without_drafts(
    groups: list[tuple[tuple[int, ...], list[dict[str, Any]]]], sample: Sample, caching: bool, queue: int
) -> None:
    prefix_cache = PrefixLimits(8, 1 << 40) if caching else None
    seen = []
    for drafts in (True, False):
        made = bench(sample, drafts=drafts, prefix_cache=prefix_cache, event_queue=queue)
        asked = [
            [request(prompt, cache_namespace="k", **choice) for choice in choices]
            for prompt, choices in groups
        ]
        seen.append([reader.events for reader in answers(made, asked)])
    assert seen[0] == seen[1]


def test_drafts_that_come_true_take_fewer_steps() -> None:
    with bench(repeats) as made:
        reader = made.submit(request(LOOP * 2, max_tokens=30))
        made.step(12)
        assert reader.token_ids == (*LOOP, *LOOP[:10])
        assert reader.finished is not None
        assert reader.finished.usage == Usage(40, 30)
        stats = made.engine.speculation_stats()
        assert stats is not None
        assert stats.drafted_tokens == sum(sum(batch.drafted) for batch in made.runner.batches)
        assert stats.accepted_tokens == 29 - decode_steps(made)
        assert len(made.runner.batches) < 10
        # One for each token but the first, whichever step it came with.
        assert made.engine.meters.inter_token_seconds.snapshot().count == 29
        made.check_idle()


def test_without_the_option_nothing_is_drafted_or_counted() -> None:
    with bench(repeats, drafts=False) as made:
        made.submit(request(LOOP * 2, max_tokens=30))
        made.step(30)
        assert not any(batch.drafted for batch in made.runner.batches)
        assert made.engine.speculation_stats() is None


def test_an_end_inside_a_run_drops_what_came_behind_it() -> None:
    end = ord("q")
    with bench(repeats) as made:
        reader = made.submit(request(LOOP * 2, max_tokens=30, end_ids=frozenset({end})))
        made.step(10)
        assert reader.finished is not None
        assert (reader.finished.reason, reader.text) == ("stop", "the ")
        assert reader.finished.usage == Usage(40, 5)
        assert any(batch.drafted for batch in made.runner.batches)
        stats = made.engine.speculation_stats()
        assert stats is not None
        assert stats.accepted_tokens == 4 - decode_steps(made)
        made.check_idle()


def test_a_stop_string_inside_a_run_ends_it() -> None:
    with bench(repeats) as made:
        reader = made.submit(request(LOOP * 2, max_tokens=30, stop=("k br",)))
        made.step(10)
        assert reader.text == "the quic"
        assert reader.finished is not None
        assert (reader.finished.stop_string, reader.finished.usage.completion_tokens) == ("k br", 12)
        made.check_idle()


def test_snapshots_hold_what_was_sampled_and_nothing_that_was_drafted() -> None:
    # Copies, but stops copying inside the last draft.
    def sample(history: tuple[int, ...]) -> int:
        return repeats(history) if len(history) < 52 else next_token(history)

    made = bench(sample, prefix_cache=PrefixLimits(8, 1 << 40))
    with made:
        first = made.submit(request(LOOP * 2, max_tokens=14, cache_namespace="k"))
        made.step(20)
        (cached,) = made.engine._batch._kv._prefixes._entries  # type: ignore[union-attr]
        computed = (*LOOP * 2, *first.token_ids[:-1])
        assert tuple(cached.tokens) == computed
        again = made.submit(request((*computed, 9), max_tokens=4, cache_namespace="k"))
        made.step(10)
        assert again.finished is not None
        assert again.finished.usage.cached_tokens == len(computed)
        history = [*computed, 9]
        for token in again.token_ids:
            assert token == sample(tuple(history))
            history.append(token)
        made.check_idle()


def test_drafts_stay_within_budget_blocks_and_rows() -> None:
    made = bench(repeats, max_concurrent=4)
    with made:
        for n in (1, 2, 7, 30):
            made.submit(request(LOOP * 2 + LOOP[:4], max_tokens=n))
        for _ in range(40):
            made.step()
            for sequence in made.engine._batch._active:
                positions = sequence.prompt_length + sequence.ticket.request.max_tokens
                assert len(sequence.table) <= -(-positions // made.runner.block_tokens)
        assert [len(reader.token_ids) for reader in made.readers] == [1, 2, 7, 30]
        for batch in made.runner.batches:
            if batch.drafted:
                assert len(batch.token_ids) <= MOST_ROWS
        made.check_idle()


def test_a_step_with_prompt_rows_has_no_drafts() -> None:
    with bench(repeats) as made:
        made.submit(request(LOOP * 2, max_tokens=60))
        made.step(3)
        made.submit(request(tuple(range(1, 100)), max_tokens=3))
        made.step(2)
        for batch in made.runner.batches:
            prompts = len(batch.token_ids) - len(batch.block_tables) - sum(batch.drafted)
            assert not (batch.drafted and prompts)
        assert made.runner.batches[-2].drafted == () or len(made.runner.batches[-2].block_tables) == 1


def test_scored_and_constrained_requests_are_not_drafted() -> None:
    with bench(repeats) as made:
        made.submit(request(LOOP * 2, max_tokens=20, prompt_logprobs=True))
        made.submit(request(LOOP * 2, max_tokens=20, constraint=RULES["endless"]()))
        made.step(60)
        assert not any(batch.drafted for batch in made.runner.batches)


def test_a_reader_that_leaves_inside_a_run_gets_nothing_and_frees_everything() -> None:
    with bench(repeats) as made:
        reader = made.submit(request(LOOP * 2, max_tokens=80))
        made.step(2)
        before = len(reader.events)
        made.runner.before_step = lambda batch: reader.generation.cancel()
        made.step(2)
        assert any(batch.drafted for batch in made.runner.batches)
        assert len(reader.events) == before
        made.check_idle()


def test_a_failure_inside_a_run_comes_behind_the_tokens_before_it() -> None:
    # The detokenizer has no text for it.
    tokens = [*LOOP[:6], 999]
    with bench(lambda history: tokens[len(history) - 40] if len(history) - 40 < 7 else 0) as made:
        made.runner.vocab_size = 1000
        reader = made.submit(request(LOOP * 2, max_tokens=30))
        made.step(10)
        assert reader.token_ids == LOOP[:6]
        assert isinstance(reader.outcome, GenerationFailed)
        made.check_idle()


def machine_time(
    sample: Sample, prompt: tuple[int, ...], streams: int, tokens: int, *, drafts: bool
) -> float:
    """Return the seconds of decoding on a machine where a row more costs a quarter of a step."""
    runner = FakeRunner(sample=sample, n_blocks=2000)
    with Bench(runner, max_concurrent=streams, speculation="ngram" if drafts else "off") as made:

        def pass_time(batch: StepBatch) -> None:
            if len(batch.token_ids) <= MOST_ROWS:
                made.clock.now += 0.03 + 0.01 * len(batch.token_ids)

        runner.before_step = pass_time
        for n in range(streams):
            made.submit(request((n, *prompt), max_tokens=tokens))
        started = made.clock.now
        while made.engine._batch.n_active or not made.runner.batches:
            made.step()
        assert all(len(reader.token_ids) == tokens for reader in made.readers)
        return made.clock.now - started


def noise(history: tuple[int, ...]) -> int:
    """Few letters, so that pairs and triples come again and say nothing."""
    state = 7
    for token in history[-40:]:
        state = (state * 31 + token + 1) % 1_000_003
    return ord("a") + state // 7 % 6


@pytest.mark.parametrize("streams", [1, 4])
def test_it_costs_next_to_nothing_where_nothing_repeats(streams: int) -> None:
    plain, drafted = (machine_time(noise, LOOP, streams, 128, drafts=drafts) for drafts in (False, True))
    assert plain / drafted >= 0.97


@pytest.mark.parametrize(("streams", "gain"), [(1, 1.8), (4, 1.0)])
def test_it_pays_where_the_answer_repeats_the_prompt(streams: int, gain: float) -> None:
    prompt = tuple((7 * n * n + n // 3) % 200 for n in range(128))

    def edits(history: tuple[int, ...]) -> int:
        """The prompt with a change once in 24 tokens."""
        return history[-128] if len(history) % 24 else 201 + history[-1] % 40

    plain, drafted = (machine_time(edits, prompt, streams, 120, drafts=drafts) for drafts in (False, True))
    assert plain / drafted >= gain


def test_times_are_learned_and_forgotten() -> None:
    times = StepTimes()
    assert not times.knows(1)
    guess = times.ratio(1, 8)
    for _ in range(5):
        times.observe(1, 1, 0.1)
        times.observe(1, 8, 0.9)
    assert times.knows(1)
    assert times.ratio(1, 8) == pytest.approx(9.0)
    # Of a number that was never measured the nearest one tells.
    assert 9.0 < times.ratio(1, 12) < 18.0
    assert times.ratio(2, 8) < 9.0
    times.observe(1, 8, 0.2)
    assert times.ratio(1, 8) == pytest.approx(7.25)
    # A step that was held up says little.
    times.observe(1, 8, 50.0)
    assert times.ratio(1, 8) == pytest.approx(7.25 + 7.25 / 8)
    for _ in range(REMEMBERED_STEPS):
        times.observe(1, 1, 0.1)
    assert times.ratio(1, 8) == guess


def test_events_of_a_run_are_those_of_single_tokens() -> None:
    with bench(repeats) as made:
        reader = made.submit(request(LOOP * 2, max_tokens=20))
        made.step(20)
        *deltas, end = reader.events
        assert isinstance(end, Finished)
        assert [len(delta.token_ids) for delta in deltas if isinstance(delta, Delta)] == [1] * 20
        assert reader.token_ids == LOOP
