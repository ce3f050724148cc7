"""From generation events to answers: what every builder of answers does, and the parts it is made of."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from msgspec import UNSET

from ferrite.api.answers import Answer, CacheTraceAnswer, UsageAnswer, cache_trace_answer, usage_answer
from ferrite.api.errors import ApiError
from ferrite.api.streams import Sent
from ferrite.engine.events import CacheTrace, Delta, Event, Finished, TokenLogprob, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyOptions:
    """What a builder needs to know of its request."""

    unique: str
    """A part of the answer's id that no other answer has."""
    request_id: str
    model_id: str
    prompts: tuple[tuple[int, ...], ...]
    """Token ids of each prompt."""
    n: int
    """Choices of one prompt: choice ``i`` of prompt ``p`` has the index ``p * n + i``."""
    stream: bool
    include_usage: bool
    include_obfuscation: bool
    token_ids: bool
    """Add the token ids of text and choices."""
    logprobs: int | None
    """Tell how likely each token was, and as many of the likeliest tokens; None to tell nothing."""
    cache_trace: bool
    """Tell what the prefix cache did."""
    cache_key_given: bool
    """The request has a ``prompt_cache_key``."""


class Builder(Protocol):
    """Builds the events and the whole answer of one request from the same generation events."""

    done_mark: bool
    """``data: [DONE]`` ends the stream."""

    @property
    def usages(self) -> list[Usage]:
        """Token counts, one entry for each prompt with a generation that has ended."""

    @property
    def finish_reasons(self) -> list[str]:
        """Why the generations that have ended did so, as the answer says it."""

    def opening(self) -> list[Sent]:
        """Return the events to send as soon as the request is admitted."""

    def add(self, index: int, event: Event) -> list[Sent]:
        """Take an event of generation ``index``; return the events that it makes.

        Each generation ends with ``Finished``, also one that was cancelled because ``ended`` said so.
        """

    def ended(self, index: int) -> bool:
        """Return whether nothing more can come out of a running generation: it may stop."""

    def closing(self) -> list[Sent]:
        """Return the events behind the last finish."""

    def failure(self, error: ApiError) -> list[Sent]:
        """Return the events by which a stream that has begun says that it failed."""

    def whole(self) -> msgspec.Struct:
        """Return the whole answer; every generation must have ended."""


@dataclass(slots=True)
class Outcome:
    """What one generation has produced so far."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    """How likely the prompt's tokens were; None before that is known, and unless asked for."""
    finished: Finished | None = None

    @property
    def cache(self) -> CacheTrace | None:
        """What the prefix cache did; None when nothing was evaluated, or not yet."""
        end = self.finished
        if end is None or not (end.usage.completion_tokens or end.prompt_logprobs):
            return None
        return end.cache


class Outcomes:
    """The generations of one request by their index: prompt by prompt, choice by choice."""

    def __init__(self, options: ReplyOptions) -> None:
        self._n = options.n
        self.all = [Outcome() for _ in range(len(options.prompts) * options.n)]

    def add(self, index: int, event: Event) -> None:
        """Take the next event of generation ``index``."""
        outcome = self.all[index]
        outcome.prompt_logprobs = event.prompt_logprobs or outcome.prompt_logprobs
        if isinstance(event, Delta):
            outcome.text.append(event.text)
            outcome.token_ids.extend(event.token_ids)
        else:
            outcome.finished = event

    @property
    def usages(self) -> list[Usage]:
        """Token counts of each prompt with an ended generation; its own tokens count once."""
        groups = (self.all[first : first + self._n] for first in range(0, len(self.all), self._n))
        ended = ([outcome.finished.usage for outcome in group if outcome.finished] for group in groups)
        return [_joined(usages) for usages in ended if usages]


class AnswerFrame:
    """What stands around the choices of chat and text completions, in chunks and in the whole answer."""

    def __init__(self, id_prefix: str, whole_object: str, chunk_object: str, options: ReplyOptions) -> None:
        """``whole_object`` and ``chunk_object``: values of the field ``object``."""
        self._whole_object = whole_object
        self._chunk_object = chunk_object
        self._options = options
        self._id = f"{id_prefix}-{options.unique}"
        self._created = int(time.time())
        self._request_id_sent = False

    def chunk(self, choice: Any) -> Answer:
        """Return the chunk of one choice."""
        chunk = self._answer(self._chunk_object, [choice])
        chunk.usage = None if self._options.include_usage else UNSET
        return chunk

    def usage_chunks(self, usage: UsageAnswer) -> list[Sent]:
        """Return the chunk behind the last choice, for a client that wants it."""
        if not self._options.include_usage:
            return []
        chunk = self._answer(self._chunk_object, [])
        chunk.usage = usage
        return [Sent(chunk)]

    def whole(self, choices: list[Any], usage: UsageAnswer) -> Answer:
        """Return the whole answer."""
        answer = self._answer(self._whole_object, choices)
        answer.usage = usage
        return answer

    def add_trace(self, answer: Answer, outcomes: Sequence[Outcome]) -> None:
        """Tell in ``answer`` what the prefix cache did for ``outcomes``, if the client asked."""
        if not self._options.cache_trace:
            return
        traces = [self._trace(outcome) for outcome in outcomes]
        answer.ferrite_cache_trace = traces if len(traces) > 1 else traces[0]

    def _trace(self, outcome: Outcome) -> CacheTraceAnswer | None:
        if outcome.cache is None:
            return None
        return cache_trace_answer(outcome.cache, key_given=self._options.cache_key_given)

    def _answer(self, object_name: str, choices: list[Any]) -> Answer:
        answer = Answer(self._id, object_name, self._created, self._options.model_id, choices)
        if self._options.stream and not self._request_id_sent:
            answer.request_id = self._options.request_id
            self._request_id_sent = True
        return answer


def usage_of(builder: Builder) -> UsageAnswer | None:
    """Return the token counts of what has ended; None when nothing has."""
    return usage_answer(builder.usages) if builder.usages else None


def _joined(usages: Sequence[Usage]) -> Usage:
    """Return the counts of the choices of one prompt together."""
    completion = sum(usage.completion_tokens for usage in usages)
    return Usage(usages[0].prompt_tokens, completion, usages[0].cached_tokens)
