"""From the exchanges of a load to its numbers. What nothing has measured is None, never 0."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from ferrite.operations.answers import TokenCounts
from ferrite.operations.client import Exchange
from ferrite.operations.distribution import Distribution, distribution
from ferrite.operations.load import LoadResult, Sample

Verdict = Literal["stable", "unstable", "unknown"]


@dataclass(frozen=True, slots=True)
class UsageSums:
    """Token counts over all answers; a count is None where any answer lacks it."""

    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None


@dataclass(frozen=True, slots=True)
class Stability:
    """Whether every answer to one prompt and budget had the same token ids."""

    prompt: int
    """Index of the prompt."""
    max_tokens: int
    answers: int
    verdict: Verdict
    """``unknown`` without ids, or with fewer than two answers to compare."""
    ids_digest: str | None
    """The first half of the SHA-256 of the ids, to compare runs with; None unless stable."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The numbers of one load."""

    seconds: float
    requests: int
    succeeded: int
    failed: int
    requests_per_second: float | None
    """Answered requests over the time of the whole load."""
    statuses: dict[str, int]
    """Requests by the HTTP status of their last answer; ``none`` where no answer came."""
    errors: dict[str, int]
    busy_answers: int
    busy_seconds: float
    latency_ms: Distribution | None
    ttft_ms: Distribution | None
    inter_token_ms: Distribution | None
    """Between two chunks with content of one stream."""
    stream_tokens_per_second: Distribution | None
    """Of each stream: tokens behind the first, over the time behind the first."""
    completion_tokens_per_second: float | None
    """All streams together, over the time of the whole load."""
    usage: UsageSums
    finish_reasons: dict[str, int]
    stability: tuple[Stability, ...]


def summarise(result: LoadResult) -> Summary:
    """Compute the numbers of a load."""
    samples = result.samples
    good = [sample for sample in samples if sample.exchange.ok]
    exchanges = [sample.exchange for sample in good]
    completion = _sum(completion_tokens(exchange) for exchange in exchanges)
    streams = [exchange for exchange in exchanges if exchange.content_times is not None]
    measured = result.seconds > 0 and bool(good)
    return Summary(
        seconds=result.seconds,
        requests=len(samples),
        succeeded=len(good),
        failed=len(samples) - len(good),
        requests_per_second=len(good) / result.seconds if measured else None,
        statuses=_counts(str(sample.exchange.status or "none") for sample in samples),
        errors=_counts(sample.exchange.failure for sample in samples if sample.exchange.failure),
        busy_answers=sum(sample.busy_answers for sample in samples),
        busy_seconds=sum(sample.busy_seconds for sample in samples),
        latency_ms=distribution([exchange.seconds * 1000 for exchange in exchanges]),
        ttft_ms=distribution([times[0] * 1000 for times in _content_times(streams) if times]),
        inter_token_ms=distribution(
            [
                (later - earlier) * 1000
                for times in _content_times(streams)
                for earlier, later in pairwise(times)
            ]
        ),
        stream_tokens_per_second=distribution(
            [rate for exchange in streams if (rate := stream_rate(exchange)) is not None]
        ),
        completion_tokens_per_second=(
            completion / result.seconds if measured and completion is not None else None
        ),
        usage=UsageSums(
            _sum(_count(exchange, "prompt") for exchange in exchanges),
            _sum(_count(exchange, "cached") for exchange in exchanges),
            completion,
        ),
        finish_reasons=_counts(exchange.answer.finish_reason or "none" for exchange in exchanges),
        stability=stability(good),
    )


def completion_tokens(exchange: Exchange) -> int | None:
    """Return how many tokens were generated: what usage says, else the ids, which leave out the end token."""
    counted = _count(exchange, "completion")
    if counted is not None:
        return counted
    ids = exchange.answer.token_ids
    return None if ids is None else len(ids)


def stream_rate(exchange: Exchange) -> float | None:
    """Return a stream's tokens per second behind its first; None with fewer than two tokens."""
    tokens, finished = completion_tokens(exchange), exchange.finish_time
    if not exchange.content_times or finished is None or tokens is None or tokens < 2:
        return None
    seconds = finished - exchange.content_times[0]
    return (tokens - 1) / seconds if seconds > 0 else None


def stability(samples: Sequence[Sample]) -> tuple[Stability, ...]:
    """Compare the token ids of the answers to each prompt and budget."""
    groups: dict[tuple[int, int], list[tuple[int, ...] | None]] = {}
    for sample in samples:
        key = (sample.prompt_index, sample.max_tokens)
        groups.setdefault(key, []).append(sample.exchange.answer.token_ids)
    return tuple(_stability(*key, ids) for key, ids in sorted(groups.items()))


def ids_digest(ids: Sequence[int]) -> str:
    """Return the first half of the SHA-256 of token ids written in decimal with commas."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()[:32]


def _stability(prompt: int, max_tokens: int, answers: list[tuple[int, ...] | None]) -> Stability:
    different = {ids for ids in answers if ids is not None}
    verdict: Verdict = "unknown"
    if len(different) > 1:
        verdict = "unstable"
    elif len(answers) > 1 and None not in answers:
        verdict = "stable"
    digest = ids_digest(next(iter(different))) if verdict == "stable" else None
    return Stability(prompt, max_tokens, len(answers), verdict, digest)


def _content_times(streams: Iterable[Exchange]) -> Iterator[tuple[float, ...]]:
    return (exchange.content_times or () for exchange in streams)


def _count(exchange: Exchange, name: Literal["prompt", "completion", "cached"]) -> int | None:
    usage: TokenCounts | None = exchange.answer.usage
    value: int | None = None if usage is None else getattr(usage, name)
    return value


def _sum(counts: Iterable[int | None]) -> int | None:
    known = list(counts)
    return sum(count for count in known if count is not None) if known and None not in known else None


def _counts(words: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(words).items()))
