"""From generation events to answers: one builder per route, for streamed and whole replies alike."""

import time
from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec import UNSET

from ferrite.api.answers import (
    Answer,
    AssistantAnswer,
    CacheTraceAnswer,
    ChatChoice,
    ChatChunkChoice,
    ChatDelta,
    CompletionChoice,
    FinishReason,
    cache_trace_answer,
    obfuscation,
    usage_answer,
)
from ferrite.engine.events import CacheTrace, Delta, Event, Finished, Usage


@dataclass(frozen=True, slots=True)
class ReplyOptions:
    """How the client wants its answer."""

    request_id: str
    model_id: str
    stream: bool
    include_usage: bool
    include_obfuscation: bool
    token_ids: bool
    """Add the token ids of text and choices."""
    cache_trace: bool
    """Tell what the prefix cache did."""
    cache_key_given: bool
    """The request has a ``prompt_cache_key``."""


@dataclass(slots=True)
class Choice:
    """What one generation has produced so far."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    cache: CacheTrace | None = None
    """None too when not one token was wanted: nothing was evaluated."""

    def add(self, event: Event) -> None:
        """Take the next event."""
        if isinstance(event, Delta):
            self.text.append(event.text)
            self.token_ids.extend(event.token_ids)
        else:
            self.finish_reason = event.reason
            self.usage = event.usage
            self.cache = event.cache if event.usage.completion_tokens else None


class Shape(Protocol):
    """What differs between the routes: names, and the form of a choice."""

    id_prefix: str
    whole_object: str
    chunk_object: str

    def opening(self, index: int) -> Any | None:
        """Return the first chunk's choice; None when the first text is the first chunk."""

    def chunk(self, index: int, text: str, finish_reason: FinishReason | None) -> Any:
        """Return a chunk's choice: some text, or the end."""

    def whole(self, index: int, text: str, finish_reason: FinishReason) -> Any:
        """Return the choice of a whole answer."""


class ChatShape:
    """``/v1/chat/completions``."""

    id_prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self, index: int) -> Any:
        """Return the chunk that names the role."""
        return ChatChunkChoice(index, ChatDelta(role="assistant", content=""))

    def chunk(self, index: int, text: str, finish_reason: FinishReason | None) -> Any:
        """Return a delta; the last one is empty."""
        delta = ChatDelta() if finish_reason is not None else ChatDelta(content=text)
        return ChatChunkChoice(index, delta, finish_reason)

    def whole(self, index: int, text: str, finish_reason: FinishReason) -> Any:
        """Return the message."""
        return ChatChoice(index, AssistantAnswer("assistant", text), finish_reason)


class CompletionShape:
    """``/v1/completions``."""

    id_prefix = "cmpl"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def opening(self, index: int) -> None:
        """Text completions open with their first text."""

    def chunk(self, index: int, text: str, finish_reason: FinishReason | None) -> Any:
        """Return some text; the last one is empty."""
        return CompletionChoice(index, text, finish_reason)

    def whole(self, index: int, text: str, finish_reason: FinishReason) -> Any:
        """Return the whole text."""
        return CompletionChoice(index, text, finish_reason)


class ReplyBuilder:
    """Builds the chunks and the whole answer of one request from the same events."""

    def __init__(self, shape: Shape, options: ReplyOptions, unique: str, n_choices: int) -> None:
        """``unique``: a part of the answer's id that no other answer has."""
        self._shape = shape
        self._options = options
        self._id = f"{shape.id_prefix}-{unique}"
        self._created = int(time.time())
        self._choices = [Choice() for _ in range(n_choices)]
        self._request_id_sent = False

    @property
    def usages(self) -> list[Usage]:
        """Token counts of the generations that have ended."""
        return [choice.usage for choice in self._choices if choice.usage is not None]

    @property
    def finish_reasons(self) -> list[str]:
        """Why the generations that have ended did so."""
        return [choice.finish_reason for choice in self._choices if choice.finish_reason is not None]

    def opening(self) -> list[Answer]:
        """Return the chunks to send as soon as the request is admitted."""
        choices = [self._shape.opening(index) for index in range(len(self._choices))]
        return [self._chunk(choice) for choice in choices if choice is not None]

    def add(self, index: int, event: Event) -> list[Answer]:
        """Take an event of generation ``index``; return the chunks that it makes."""
        self._choices[index].add(event)
        if isinstance(event, Finished):
            chunk = self._chunk(self._shape.chunk(index, "", event.reason))
            if self._options.cache_trace:
                chunk.ferrite_cache_trace = self._trace(self._choices[index])
            return [chunk]
        if not event.text and not self._options.token_ids:
            return []
        choice = self._shape.chunk(index, event.text, None)
        if self._options.token_ids:
            choice.token_ids = list(event.token_ids)
        chunk = self._chunk(choice)
        if self._options.include_obfuscation:
            chunk.obfuscation = obfuscation(event.text)
        return [chunk]

    def closing(self) -> list[Answer]:
        """Return the chunks behind the last finish reason."""
        if not self._options.include_usage:
            return []
        chunk = self._answer(self._shape.chunk_object, [])
        chunk.usage = usage_answer(self.usages)
        return [chunk]

    def whole(self) -> Answer:
        """Return the whole answer; every generation must have ended."""
        choices = []
        for index, done in enumerate(self._choices):
            choice = self._shape.whole(index, "".join(done.text), done.finish_reason or "length")
            if self._options.token_ids:
                choice.token_ids = done.token_ids
            choices.append(choice)
        answer = self._answer(self._shape.whole_object, choices)
        answer.usage = usage_answer(self.usages)
        if self._options.cache_trace:
            traces = [self._trace(choice) for choice in self._choices]
            answer.ferrite_cache_trace = traces if len(traces) > 1 else traces[0]
        return answer

    def _trace(self, choice: Choice) -> CacheTraceAnswer | None:
        if choice.cache is None:
            return None
        return cache_trace_answer(choice.cache, key_given=self._options.cache_key_given)

    def _chunk(self, choice: Any) -> Answer:
        chunk = self._answer(self._shape.chunk_object, [choice])
        chunk.usage = None if self._options.include_usage else UNSET
        return chunk

    def _answer(self, object_name: str, choices: list[Any]) -> Answer:
        answer = Answer(self._id, object_name, self._created, self._options.model_id, choices)
        if self._options.stream and not self._request_id_sent:
            answer.request_id = self._options.request_id
            self._request_id_sent = True
        return answer
