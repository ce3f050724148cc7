"""Log-probabilities of what was generated and of the prompt: one for each id, whatever else runs."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from ferrite.engine import CacheTrace, Delta, GenerationRequest, TokenLogprob
from ferrite.engine.scheduler import MOST_SCORED_ROWS
from ferrite.kv import PrefixLimits
from ferrite.program.step import StepBatch
from tests.engine.bench import Bench, Reader
from tests.engine.fakes import (
    FakeRunner,
    FakeScorer,
    PieceDetokenizer,
    expected_completion,
    logprobs_after,
    request,
    scripted,
)

PROMPT = tuple(range(40))


@pytest.fixture
def bench() -> Iterator[Bench]:
    with make_bench() as made:
        yield made


def make_bench(**limits: Any) -> Bench:
    runner = FakeRunner(n_blocks=8 * 64, context_length=256)
    return Bench(runner, **{"max_concurrent": 8, "prefill_chunk": 32, **limits})


def entry(history: Sequence[int], token: int, top: int) -> TokenLogprob:
    logprob, likeliest = logprobs_after(history, token, top)
    return TokenLogprob(token, logprob, tuple(likeliest))


def generated(asked: GenerationRequest) -> tuple[TokenLogprob, ...]:
    """What the request alone must report."""
    prompt, top = asked.prompt_tokens, asked.top_logprobs
    assert top is not None
    completion = expected_completion(prompt, asked.max_tokens)
    return tuple(entry(prompt + completion[:n], token, top) for n, token in enumerate(completion))


def of_prompt(prompt: Sequence[int], top: int) -> tuple[TokenLogprob | None, ...]:
    return (None, *(entry(prompt[:n], prompt[n], top) for n in range(1, len(prompt))))


def reported(reader: Reader) -> tuple[TokenLogprob, ...]:
    deltas = [event for event in reader.events if isinstance(event, Delta)]
    for delta in deltas:
        assert delta.logprobs is not None
        assert tuple(one.token for one in delta.logprobs) == delta.token_ids
    return tuple(one for delta in deltas for one in delta.logprobs or ())


def check_logprobs(reader: Reader) -> None:
    """What a reader was told so far is what its request alone would have been told."""
    asked, finished = reader.asked, reader.finished
    top = asked.top_logprobs
    if top is None:
        assert all(event.logprobs is None for event in reader.events if isinstance(event, Delta))
    else:
        history = asked.prompt_tokens
        for one in reported(reader):
            assert one == entry(history, one.token, top)
            history += (one.token,)
        assert history == asked.prompt_tokens + reader.token_ids
    if finished is not None:
        scores = of_prompt(asked.prompt_tokens, top or 0) if asked.prompt_logprobs else None
        assert finished.prompt_logprobs == scores


def test_each_token_has_its_own_beside_requests_that_ask_for_none(bench: Bench) -> None:
    asked = [request((n, *PROMPT), 5, top_logprobs=top) for n, top in enumerate([0, 3, 20])]
    readers = [bench.submit(one) for one in asked]
    plain = bench.submit(request((9, 9), 5))
    bench.step(12)
    for reader in readers:
        assert reported(reader) == generated(reader.asked)
        assert reader.finished is not None
        assert reader.finished.prompt_logprobs is None
    deltas = [event for event in plain.events if isinstance(event, Delta)]
    assert [delta.logprobs for delta in deltas] == [None] * 5
    assert [sampler.top_logprobs for sampler in bench.runner.samplers] == [0, 3, 20, None]


def test_they_are_the_same_shared_and_on_a_prefix_hit() -> None:
    with make_bench(prefix_cache=PrefixLimits(4, 1 << 40), session_positions=64) as bench:
        bench.runner.n_blocks = 600
        asked = request(PROMPT, 5, top_logprobs=2, cache_namespace="k")
        together = [bench.submit(asked) for _ in range(3)]
        bench.step(12)
        cached = bench.submit(asked)
        bench.step(12)
        for reader in [*together, cached]:
            assert reported(reader) == generated(asked)


def test_those_of_held_text_come_with_it_and_the_end_token_has_none() -> None:
    pieces = PieceDetokenizer(["a", "b", "c", ""])
    with Bench(FakeRunner(sample=scripted(3, [0, 1, 3, 2, 9])), detokenizer=lambda: pieces) as bench:
        asked = request((1, 2, 3), 9, top_logprobs=1, stop=("abd",), end_ids=frozenset([9]))
        reader = bench.submit(asked)
        bench.step(6)
        assert [event.token_ids for event in reader.events if isinstance(event, Delta)] == [(0, 1, 3, 2)]
        history = (1, 2, 3, 0, 1, 3)
        assert reported(reader)[3] == entry(history, 2, 1)


@pytest.mark.parametrize("max_tokens", [0, 1, 5])
@pytest.mark.parametrize("length", [1, 2, 16, 17, 40])
@pytest.mark.parametrize("top", [None, 2])
def test_prompt_is_scored(bench: Bench, length: int, max_tokens: int, top: int | None) -> None:
    prompt = PROMPT[:length]
    reader = bench.submit(request(prompt, max_tokens, prompt_logprobs=True, top_logprobs=top))
    bench.step(length // MOST_SCORED_ROWS + 7)
    finished = reader.finished
    assert finished is not None
    assert finished.prompt_logprobs == of_prompt(prompt, top or 0)
    assert (finished.reason, finished.usage.prompt_tokens) == ("length", length)
    assert reader.token_ids == finished.token_ids == expected_completion(prompt, max_tokens)
    assert finished.usage.completion_tokens == max_tokens
    assert finished.timings.decode_seconds == 0.0
    if top is not None and max_tokens:
        assert reported(reader) == generated(reader.asked)
    rows = [len(batch.token_ids) for batch in bench.runner.batches[: -max_tokens or None]]
    assert max(rows, default=1) <= MOST_SCORED_ROWS
    bench.check_idle()


def test_scored_prompts_run_beside_others_and_share_the_rows_that_keep_logits(bench: Bench) -> None:
    scored = [bench.submit(request((n, *PROMPT), 2, prompt_logprobs=True)) for n in range(3)]
    free = [bench.submit(request((n, *PROMPT), 3)) for n in range(2)]
    bench.step(1)
    assert [len(reader.token_ids) for reader in free] == [0, 0]
    scorers = [scorer for _, scorer in bench.runner.batches[0].scored]
    assert [len(scorer.tokens) for scorer in scorers if isinstance(scorer, FakeScorer)] == [5, 5, 5]
    bench.step(60)
    for reader in scored:
        assert reader.finished is not None
        assert reader.finished.prompt_logprobs == of_prompt(reader.asked.prompt_tokens, 0)
    for reader in [*scored, *free]:
        assert reader.token_ids == expected_completion(reader.asked.prompt_tokens, reader.asked.max_tokens)
    for batch in bench.runner.batches:
        rows = [len(scorer.tokens) for _, scorer in batch.scored if isinstance(scorer, FakeScorer)]
        assert sum(rows) <= MOST_SCORED_ROWS
    bench.check_idle()


def test_every_row_of_a_scored_prompt_is_evaluated_and_nothing_is_stored() -> None:
    runner = FakeRunner(n_blocks=600, context_length=256)
    limits = PrefixLimits(4, 1 << 40)
    with Bench(runner, max_concurrent=8, prefix_cache=limits, session_positions=64) as bench:
        first = bench.submit(request(PROMPT, 2, cache_namespace="k"))
        bench.step(4)
        assert first.finished
        asked = request(PROMPT, 2, cache_namespace="k", prompt_logprobs=True)
        scored = [bench.submit(asked) for _ in range(2)]
        bench.step(12)
        for reader in scored:
            assert reader.finished is not None
            assert reader.finished.prompt_logprobs == of_prompt(PROMPT, 0)
            assert reader.finished.cache == CacheTrace()
        assert bench.engine.batcher().prefill_tokens == 3 * len(PROMPT)
        stats = bench.engine.prefix_stats()
        assert stats is not None
        assert (stats.hits, stats.misses) == (0, 1)


def test_nobody_waits_for_the_slow_evaluation_of_a_scored_prompt(bench: Bench) -> None:
    scored = bench.submit(request(PROMPT, 2, prompt_logprobs=True))
    bench.step()
    plain = bench.submit(request(PROMPT, 2))
    bench.step(12)
    assert scored.finished is not None
    assert plain.finished is not None
    assert not plain.finished.cache.shared
    assert bench.engine.batcher().prefill_tokens == 2 * len(PROMPT)


def test_prompt_that_cannot_be_scored_fails_its_request_only(bench: Bench) -> None:
    def lose(batch: StepBatch) -> None:
        for _, scorer in batch.scored:
            if isinstance(scorer, FakeScorer) and 7 in scorer.tokens:
                scorer.logprobs = [None] * len(scorer.tokens)
                scorer.tokens = ()

    bench.runner.before_step = lose
    bad = bench.submit(request(PROMPT, 0, prompt_logprobs=True))
    good = bench.submit(request((100, 101, 102), 0, prompt_logprobs=True))
    bench.step(8)
    assert str(bad.outcome) == "the model produced non-finite logits"
    assert good.finished is not None
    assert good.finished.prompt_logprobs == of_prompt((100, 101, 102), 0)
    bench.check_idle()


def test_cancelled_scored_prompt_leaves_nothing(bench: Bench) -> None:
    reader = bench.submit(request(PROMPT, 0, prompt_logprobs=True))
    bench.step()
    reader.generation.cancel()
    bench.step()
    assert bench.engine.batcher().aborted == 1
    bench.check_idle()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"top_logprobs": 21}, "top_logprobs is 21, must be between 0 and 20"),
        ({"top_logprobs": -1}, "top_logprobs is -1, must be between 0 and 20"),
        ({"max_tokens": 0}, "max_tokens is 0, must be at least 1"),
        ({"max_tokens": -1, "prompt_logprobs": True}, "max_tokens is -1, must be at least 0"),
    ],
)
def test_bad_fields_are_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        request(**changes)  # type: ignore[arg-type]
