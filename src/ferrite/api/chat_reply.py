"""Answers and chunks of ``/v1/chat/completions``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ferrite.api.answers import (
    Answer,
    AssistantAnswer,
    ChatChoice,
    ChatChunkChoice,
    ChatDelta,
    FinishReason,
    FunctionCallAnswer,
    FunctionCallDelta,
    ToolCallAnswer,
    ToolCallDelta,
    UsageAnswer,
    obfuscation,
    usage_answer,
)
from ferrite.api.errors import ApiError
from ferrite.api.logprobs import ChatLogprobs, ShownToken, ShownTokens, TokenBytes, chat_logprobs
from ferrite.api.replies import AnswerFrame, Outcomes, ReplyOptions
from ferrite.api.streams import Sent, failure_events
from ferrite.api.tools import AnswerRules
from ferrite.engine.events import Event, Finished, Usage
from ferrite.engine.text import Detokenizer
from ferrite.toolcalls import (
    AnswerEvent,
    AnswerStream,
    CallArguments,
    CallEnd,
    CallStart,
    Reasoning,
    Text,
    whole,
)

WHOLE_OBJECT = "chat.completion"
CHUNK_OBJECT = "chat.completion.chunk"


@dataclass(slots=True)
class _Choice:
    """One answer on its way."""

    answer: AnswerStream
    shown: ShownTokens
    parts: list[AnswerEvent] = field(default_factory=list)
    reason: FinishReason | None = None
    tokens: list[ShownToken] = field(default_factory=list)
    """Those of the content, if their log-probabilities are asked for."""
    undecided: list[ShownToken] = field(default_factory=list)
    """Those of what may become content, or a part of something else."""

    def take(self, event: Event, parts: Sequence[AnswerEvent]) -> list[ShownToken]:
        """Take an event and what it made; return the tokens that have become content."""
        self.parts += parts
        self.undecided += self.shown.add(event)
        last = self.parts[-1] if self.parts else None
        ended = isinstance(event, Finished) and (last is None or isinstance(last, Text))
        if not (parts or ended or self.answer.in_reasoning):
            return []
        decided, self.undecided = self.undecided, []
        if not ended and not any(isinstance(part, Text) for part in parts):
            return []
        self.tokens += decided
        return decided


class ChatBuilder:
    """Builds the messages of one request."""

    done_mark = True

    def __init__(
        self,
        options: ReplyOptions,
        rules: AnswerRules,
        *,
        detokenizer: Callable[[], Detokenizer],
        token_bytes: TokenBytes,
    ) -> None:
        """``detokenizer`` makes the state of a generation's text, as the engine's does."""
        self._options = options
        self._rules = rules
        self._token_bytes = token_bytes
        self._frame = AnswerFrame("chatcmpl", WHOLE_OBJECT, CHUNK_OBJECT, options)
        self._outcomes = Outcomes(options)
        self._choices = [
            _Choice(rules.stream(f"{options.unique}-{index}"), ShownTokens(detokenizer()))
            for index in range(len(self._outcomes.all))
        ]

    @property
    def usages(self) -> list[Usage]:
        """Token counts of each prompt with an ended generation."""
        return self._outcomes.usages

    @property
    def finish_reasons(self) -> list[str]:
        """Why the generations that have ended did so."""
        return [choice.reason for choice in self._choices if choice.reason is not None]

    def opening(self) -> list[Sent]:
        """Return the chunks that name the role."""
        # An answer of nothing but calls has no text, not even an empty one.
        content = "" if self._rules.family is None else None
        delta = ChatDelta(role="assistant", content=content)
        return [Sent(self._answer(ChatChunkChoice(index, delta))) for index in range(len(self._choices))]

    def add(self, index: int, event: Event) -> list[Sent]:
        """Take an event of generation ``index``; return the chunks that it makes."""
        self._outcomes.add(index, event)
        choice = self._choices[index]
        if isinstance(event, Finished):
            parts = choice.answer.finish()
            choice.reason = choice.answer.finish_reason(event.reason)
        else:
            parts = choice.answer.push(event.text, len(event.token_ids))
        tokens = choice.take(event, parts)
        if not self._options.stream:
            return []
        chunks = [ChatChunkChoice(index, delta) for part in parts if (delta := _delta(part)) is not None]
        if isinstance(event, Finished):
            chunks.append(self._last_chunk(index))
        self._add_extras(chunks, index, event, tokens)
        answers = [self._answer(chunk) for chunk in chunks]
        if isinstance(event, Finished):
            self._frame.add_trace(answers[-1], [self._outcomes.all[index]])
        return [Sent(answer) for answer in answers]

    def ended(self, index: int) -> bool:
        """Return whether nothing more can come out of a running generation."""
        answer = self._choices[index].answer
        # A grammar ends the generation itself, a mark or two behind the last call.
        return answer.ended and (self._rules.grammar is None or answer.finish_reason("stop") == "length")

    def closing(self) -> list[Sent]:
        """Return the usage, if the client wants it."""
        return self._frame.usage_chunks(self._usage())

    def failure(self, error: ApiError) -> list[Sent]:
        """Return the error event."""
        return failure_events(error)

    def whole(self) -> Answer:
        """Return the whole answer."""
        choices = []
        for index, (choice, outcome) in enumerate(zip(self._choices, self._outcomes.all, strict=True)):
            made = ChatChoice(index, _message(choice.parts), choice.reason or "length")
            made.logprobs = self._logprobs(choice.tokens)
            if self._options.token_ids:
                made.token_ids = outcome.token_ids
            choices.append(made)
        answer = self._frame.whole(choices, self._usage())
        self._frame.add_trace(answer, self._outcomes.all)
        return answer

    def _add_extras(
        self, chunks: list[ChatChunkChoice], index: int, event: Event, tokens: Sequence[ShownToken]
    ) -> None:
        """Tell of the tokens of ``event`` in the first chunk, and of those of the content beside it."""
        ids = list(event.token_ids) if self._options.token_ids and not isinstance(event, Finished) else []
        if not chunks and ids:
            chunks.append(ChatChunkChoice(index, ChatDelta()))
        if ids:
            chunks[0].token_ids = ids
        if tokens and self._options.logprobs is not None:
            beside = next((chunk for chunk in chunks if chunk.delta.content), chunks[-1])
            beside.logprobs = self._logprobs(tokens)

    def _last_chunk(self, index: int) -> ChatChunkChoice:
        """Return what says why the answer ended."""
        choice = self._choices[index]
        # An empty answer has an empty text; where calls might have come, that was left open.
        is_empty = self._rules.family is not None and _message(choice.parts).content == ""
        delta = ChatDelta(content="") if is_empty else ChatDelta()
        return ChatChunkChoice(index, delta, choice.reason)

    def _answer(self, choice: ChatChunkChoice) -> Answer:
        chunk = self._frame.chunk(choice)
        if self._options.include_obfuscation and choice.finish_reason is None:
            chunk.obfuscation = obfuscation(_text_of(choice.delta))
        return chunk

    def _logprobs(self, tokens: Sequence[ShownToken]) -> ChatLogprobs | None:
        return None if self._options.logprobs is None else chat_logprobs(tokens, self._token_bytes)

    def _usage(self) -> UsageAnswer:
        thought = sum(choice.answer.reasoning_tokens for choice in self._choices)
        return usage_answer(self.usages, reasoning_tokens=thought)


def _delta(part: AnswerEvent) -> ChatDelta | None:
    """Return what a part of the answer adds to the message, in the pieces that the official client joins."""
    match part:
        case Text(delta):
            return ChatDelta(content=delta)
        case Reasoning(delta):
            return ChatDelta(reasoning_content=delta)
        case CallStart(index, call_id, name):
            function = FunctionCallDelta(name=name, arguments="")
            return ChatDelta(tool_calls=[ToolCallDelta(index, function, call_id, "function")])
        case CallArguments(index, delta):
            return ChatDelta(tool_calls=[ToolCallDelta(index, FunctionCallDelta(arguments=delta))])
        case CallEnd():
            return None


def _text_of(delta: ChatDelta) -> str:
    """Return the text whose length a chunk gives away."""
    calls = delta.tool_calls or []
    texts = [delta.content, delta.reasoning_content, *(call.function.arguments for call in calls)]
    return "".join(text for text in texts if isinstance(text, str))


def _message(parts: Sequence[AnswerEvent]) -> AssistantAnswer:
    answer = whole(parts)
    message = AssistantAnswer("assistant", answer.content)
    if answer.reasoning is not None:
        message.reasoning_content = answer.reasoning
    if answer.calls:
        message.tool_calls = [
            ToolCallAnswer(call.id, FunctionCallAnswer(call.name, call.arguments)) for call in answer.calls
        ]
    return message
