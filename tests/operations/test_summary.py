"""The arithmetic of a load, without a network."""

from typing import Any

import pytest

from ferrite.operations.answers import Answer, TokenCounts
from ferrite.operations.client import Exchange, retry_after_seconds
from ferrite.operations.load import LoadPlan, LoadResult, Sample
from ferrite.operations.summary import ids_digest, stability, stream_rate, summarise

PLAN = LoadPlan(
    endpoint="chat",
    model_id="m",
    prompts=("a", "b"),
    max_tokens=(1, 2, 3),
    requests=6,
    concurrency=1,
    stream=False,
    stream_usage=False,
    token_ids=False,
    prompt_cache_key=None,
    temperature=None,
    seed=None,
    retry_busy=False,
    patience_seconds=1.0,
)


def exchange(**changes: Any) -> Exchange:
    answer: dict[str, Any] = {
        "text": "ab",
        "token_ids": (1, 2),
        "finish_reason": "length",
        "usage": TokenCounts(5, 2, 0, 7),
    }
    answer |= {name: changes.pop(name) for name in list(changes) if name in answer}
    usual: dict[str, Any] = {
        "status": 200,
        "headers": {},
        "failure": None,
        "error": None,
        "seconds": 0.5,
        "content_times": None,
        "finish_time": None,
    }
    return Exchange(answer=Answer(**answer), **{**usual, **changes})


def sample(prompt: int = 0, budget: int = 2, *, busy: int = 0, **changes: Any) -> Sample:
    return Sample(prompt, budget, exchange(**changes), busy, float(busy))


def test_a_streamed_load() -> None:
    first = sample(content_times=(0.1, 0.2, 0.4), finish_time=0.4, usage=TokenCounts(5, 4, 1, 9))
    second = sample(
        content_times=(0.3, 0.4), finish_time=0.5, usage=TokenCounts(6, 2, 2, 8), finish_reason="stop"
    )
    found = summarise(LoadResult((first, second), seconds=2.0))
    assert (found.requests, found.succeeded, found.failed) == (2, 2, 0)
    assert found.requests_per_second == 1.0
    assert found.completion_tokens_per_second == 3.0
    assert found.ttft_ms is not None
    assert found.ttft_ms.count == 2
    assert found.ttft_ms.p50 == pytest.approx(200.0)
    assert found.inter_token_ms is not None
    assert found.inter_token_ms.count == 3
    assert found.inter_token_ms.p50 == pytest.approx(100.0)
    assert found.stream_tokens_per_second is not None
    assert found.stream_tokens_per_second.max == pytest.approx(10.0)
    assert found.finish_reasons == {"length": 1, "stop": 1}
    usage = found.usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (11, 3, 6)


def test_what_was_not_streamed_has_no_token_times() -> None:
    found = summarise(LoadResult((sample(),), seconds=1.0))
    assert found.ttft_ms is found.inter_token_ms is found.stream_tokens_per_second is None
    assert found.latency_ms is not None
    assert found.completion_tokens_per_second == 2.0


def test_failures_are_counted_and_measure_nothing() -> None:
    lost = sample(status=None, failure="connection", usage=None, token_ids=None, finish_reason=None)
    busy = sample(busy=3, status=429, failure="rate_limit_exceeded", usage=None, token_ids=None)
    found = summarise(LoadResult((lost, busy), seconds=1.0))
    assert (found.succeeded, found.failed, found.busy_answers, found.busy_seconds) == (0, 2, 3, 3.0)
    assert found.statuses == {"429": 1, "none": 1}
    assert found.errors == {"connection": 1, "rate_limit_exceeded": 1}
    assert (found.requests_per_second, found.latency_ms, found.completion_tokens_per_second) == (
        None,
        None,
        None,
    )
    assert found.usage.prompt_tokens is found.usage.cached_tokens is found.usage.completion_tokens is None
    assert found.stability == ()


def test_a_sum_with_an_unknown_part_is_unknown() -> None:
    answers = (sample(), sample(usage=None), sample(usage=None, token_ids=None))
    assert summarise(LoadResult(answers[:2], 1.0)).usage.completion_tokens == 4
    assert summarise(LoadResult(answers[:2], 1.0)).usage.prompt_tokens is None
    assert summarise(LoadResult(answers, 1.0)).usage.completion_tokens is None


@pytest.mark.parametrize(
    "changes",
    [
        {"content_times": None},
        {"content_times": ()},
        {"content_times": (0.1,), "finish_time": None},
        {"content_times": (0.1,), "finish_time": 0.1},
        {"content_times": (0.1,), "finish_time": 0.2, "usage": TokenCounts(1, 1, 0, 2)},
        {"content_times": (0.1,), "finish_time": 0.2, "usage": None, "token_ids": None},
    ],
)
def test_a_rate_needs_two_tokens_and_some_time(changes: dict[str, Any]) -> None:
    assert stream_rate(exchange(**changes)) is None


def test_stability_is_judged_for_each_prompt_and_budget() -> None:
    rows = stability(
        [
            sample(0, 2),
            sample(0, 2),
            sample(0, 3, token_ids=(1, 2, 3)),
            sample(1, 2),
            sample(1, 2, token_ids=(1, 9)),
            sample(1, 2, token_ids=None),
            sample(2, 2),
            sample(2, 2, token_ids=None),
        ]
    )
    assert [(row.prompt, row.max_tokens, row.answers, row.verdict) for row in rows] == [
        (0, 2, 2, "stable"),
        (0, 3, 1, "unknown"),
        (1, 2, 3, "unstable"),
        (2, 2, 2, "unknown"),
    ]
    assert [row.ids_digest for row in rows] == [ids_digest((1, 2)), None, None, None]


def test_requests_take_prompts_and_budgets_in_turn() -> None:
    bodies = [PLAN.body(index) for index in range(PLAN.requests)]
    assert [body["messages"][0]["content"] for body in bodies] == ["a", "b", "a", "b", "a", "b"]
    assert [body["max_tokens"] for body in bodies] == [1, 2, 3, 1, 2, 3]
    assert bodies[0] == {"model": "m", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}


@pytest.mark.parametrize(
    ("written", "seconds"), [("3", 3.0), ("", 1.0), ("soon", 1.0), ("-1", 1.0), ("9" * 30, 60.0)]
)
def test_the_time_to_wait_is_bounded(written: str, seconds: float) -> None:
    assert retry_after_seconds({"retry-after": written} if written else {}) == seconds
