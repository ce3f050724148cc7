"""Answers of the generation routes, whole or streamed, folded into one form. Nothing here reads a clock."""

from dataclasses import dataclass, field

import msgspec

from ferrite.operations.sse import SseEvent


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    message: _Message | None = None
    delta: _Message | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """What stands under ``error``: all four names must be there, as OpenAI sends them."""

    message: str
    type: str
    param: str | None
    code: str | None


class _ErrorAnswer(msgspec.Struct):
    error: ErrorBody


_answers = msgspec.json.Decoder(_Answer)
_errors = msgspec.json.Decoder(_ErrorAnswer)


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """The usage of one answer; ``cached`` is None where the server did not say."""

    prompt: int
    completion: int
    cached: int | None
    total: int | None


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request generated."""

    text: str
    token_ids: tuple[int, ...] | None
    """None when the server gave none."""
    finish_reason: str | None
    usage: TokenCounts | None


@dataclass(slots=True)
class AnswerReader:
    """Folds the events of a stream, or one whole body, into an ``Answer``.

    ``failure`` is a short word for what went wrong: a code of the server, ``malformed_answer`` or
    ``broken_stream``; None while all is well.
    """

    content_times: list[float] = field(default_factory=list)
    """Seconds at which chunks with text or token ids came."""
    finish_time: float | None = None
    failure: str | None = None
    ended: bool = False
    """The end mark of the stream has come, or the whole body."""
    _text: list[str] = field(default_factory=list)
    _token_ids: list[int] | None = None
    _finish_reason: str | None = None
    _usage: TokenCounts | None = None

    def add_whole(self, body: bytes) -> None:
        """Take the body of an answer that was not streamed."""
        answer = self._decode(body)
        if answer is None:
            return
        if len(answer.choices) != 1 or answer.choices[0].finish_reason is None:
            self.failure = "malformed_answer"
            return
        self._add_choice(answer.choices[0])
        self.ended = True

    def add_event(self, event: SseEvent, at: float) -> None:
        """Take one event that came at ``at`` seconds."""
        if self.failure is not None:
            return
        if event.name == "error":
            error = read_error(event.data)
            self.failure = "malformed_error" if error is None else error.code or error.type
        elif self.ended:
            self.failure = "broken_stream"
        elif event.data == b"[DONE]":
            self.ended = True
        else:
            answer = self._decode(event.data)
            for choice in answer.choices if answer is not None else ():
                if self._add_choice(choice):
                    self.content_times.append(at)
                if choice.finish_reason is not None:
                    self.finish_time = at

    def close(self) -> None:
        """Say that the stream is over; one without finish reason and end mark was cut."""
        if self.failure is None and not (self.ended and self._finish_reason is not None):
            self.failure = "broken_stream"

    def answer(self) -> Answer:
        """Return what has come."""
        ids = None if self._token_ids is None else tuple(self._token_ids)
        return Answer("".join(self._text), ids, self._finish_reason, self._usage)

    def _decode(self, data: bytes) -> _Answer | None:
        try:
            answer = _answers.decode(data)
        except msgspec.MsgspecError:
            self.failure = "malformed_answer"
            return None
        if answer.usage is not None:
            details = answer.usage.prompt_tokens_details
            self._usage = TokenCounts(
                answer.usage.prompt_tokens,
                answer.usage.completion_tokens,
                None if details is None else details.cached_tokens,
                answer.usage.total_tokens,
            )
        return answer

    def _add_choice(self, choice: _Choice) -> bool:
        """Add a choice; return whether it brought text or token ids."""
        message = choice.message or choice.delta
        text = choice.text or ""
        reasoning = ""
        if message is not None:
            text = message.content or ""
            reasoning = message.reasoning_content or ""
        self._text.append(text)
        if choice.token_ids is not None:
            self._token_ids = [*(self._token_ids or ()), *choice.token_ids]
        if choice.finish_reason is not None:
            self._finish_reason = choice.finish_reason
        return bool(text or reasoning or choice.token_ids)


def read_error(body: bytes) -> ErrorBody | None:
    """Return the error object of an answer; None when it has not OpenAI's form."""
    try:
        return _errors.decode(body).error
    except msgspec.MsgspecError:
        return None
