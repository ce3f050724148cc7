"""Answers and chunks of ``/v1/completions``."""

from collections.abc import Sequence
from dataclasses import dataclass

from ferrite.api.answers import Answer, CompletionChoice, obfuscation, usage_answer
from ferrite.api.errors import ApiError
from ferrite.api.logprobs import (
    CompletionLogprobs,
    ShownToken,
    ShownTokens,
    completion_logprobs,
    joined,
    offsets_in,
    prompt_logprobs,
    spelled,
)
from ferrite.api.model import LoadedModel
from ferrite.api.replies import AnswerFrame, Outcomes, ReplyOptions
from ferrite.api.streams import Sent, failure_events
from ferrite.engine.events import Event, Finished, Usage

OBJECT = "text_completion"


@dataclass(frozen=True, slots=True)
class _Echo:
    """A prompt that its choices repeat."""

    text: str
    tokens: Sequence[int]
    offsets: Sequence[int]
    """Characters of the text before each token."""


class CompletionBuilder:
    """Builds the continuations of one request."""

    done_mark = True

    def __init__(
        self, options: ReplyOptions, model: LoadedModel, echoed: Sequence[str | None] | None
    ) -> None:
        """``echoed``: the prompts to repeat, each None for token ids; None: the answer repeats no prompt."""
        self._options = options
        self._frame = AnswerFrame("cmpl", OBJECT, OBJECT, options)
        self._outcomes = Outcomes(options)
        self._token_bytes = model.tokenizer.token_bytes
        tells = options.logprobs is not None
        self._finders = [ShownTokens(model.detokenizer()) for _ in self._outcomes.all] if tells else []
        self._shown: list[list[ShownToken]] = [[] for _ in self._finders]
        self._echoes: list[_Echo] = []
        if echoed is not None:
            self._echoes = [self._echo(*each) for each in zip(echoed, options.prompts, strict=True)]
        self._held: list[Sent] | None = [] if self._echoes and tells else None
        """What a stream cannot send before the scores of the prompt are known; None: nothing."""

    @property
    def usages(self) -> list[Usage]:
        """Token counts of each prompt with an ended generation."""
        return self._outcomes.usages

    @property
    def finish_reasons(self) -> list[str]:
        """Why the generations that have ended did so."""
        return [outcome.finished.reason for outcome in self._outcomes.all if outcome.finished]

    def opening(self) -> list[Sent]:
        """Return the prompt for each choice that repeats it; else a stream opens with the first text."""
        return [] if self._held is not None else self._prompt_chunks()

    def add(self, index: int, event: Event) -> list[Sent]:
        """Take an event of generation ``index``; return the chunks that it makes."""
        self._outcomes.add(index, event)
        shown: list[ShownToken] = []
        if self._finders:
            shown = self._finders[index].add(event)
            self._shown[index] += shown
        if not self._options.stream:
            return []
        sent = self._chunks(index, event, shown)
        if self._held is None:
            return sent
        self._held += sent
        if self._outcomes.all[0].prompt_logprobs is None:
            return []
        sent, self._held = [*self._prompt_chunks(), *self._held], None
        return sent

    def ended(self, _: int) -> bool:
        """Return False: plain text may always go on."""
        return False

    def closing(self) -> list[Sent]:
        """Return the usage, if the client wants it."""
        return self._frame.usage_chunks(usage_answer(self.usages))

    def failure(self, error: ApiError) -> list[Sent]:
        """Return the error event."""
        return failure_events(error)

    def whole(self) -> Answer:
        """Return the whole answer."""
        choices = [self._whole_choice(index) for index in range(len(self._outcomes.all))]
        answer = self._frame.whole(choices, usage_answer(self.usages))
        self._frame.add_trace(answer, self._outcomes.all)
        return answer

    def _whole_choice(self, index: int) -> CompletionChoice:
        outcome, prompt = self._outcomes.all[index], index // self._options.n
        text = "".join(outcome.text)
        choice = CompletionChoice(index, text, outcome.finished.reason if outcome.finished else "length")
        if self._finders:
            choice.logprobs = self._logprobs(prompt, self._shown[index])
        if self._options.token_ids:
            choice.token_ids = outcome.token_ids
        if self._echoes:
            choice.text = self._echoes[prompt].text + text
            if choice.logprobs is not None:
                choice.logprobs = joined([self._prompt_logprobs(prompt), choice.logprobs])
        return choice

    def _prompt_chunks(self) -> list[Sent]:
        """Return the prompt of a stream, which has one, for each of its choices."""
        if not self._echoes:
            return []
        text, logprobs = self._echoes[0].text, self._prompt_logprobs(0) if self._finders else None
        return [
            self._sent(CompletionChoice(index, text, None, logprobs), text)
            for index in range(self._options.n)
        ]

    def _chunks(self, index: int, event: Event, shown: Sequence[ShownToken]) -> list[Sent]:
        choice = CompletionChoice(index, "", None)
        if shown:
            choice.logprobs = self._logprobs(0, shown)
        if isinstance(event, Finished):
            choice.finish_reason = event.reason
            chunk = self._frame.chunk(choice)
            self._frame.add_trace(chunk, [self._outcomes.all[index]])
            return [Sent(chunk)]
        if not event.text and not self._options.token_ids:
            return []
        choice.text = event.text
        if self._options.token_ids:
            choice.token_ids = list(event.token_ids)
        return [self._sent(choice, event.text)]

    def _sent(self, choice: CompletionChoice, text: str) -> Sent:
        chunk = self._frame.chunk(choice)
        if self._options.include_obfuscation:
            chunk.obfuscation = obfuscation(text)
        return Sent(chunk)

    def _logprobs(self, prompt: int, shown: Sequence[ShownToken]) -> CompletionLogprobs:
        offset = len(self._echoes[prompt].text) if self._echoes else 0
        return completion_logprobs(shown, self._token_bytes, offset=offset)

    def _prompt_logprobs(self, prompt: int) -> CompletionLogprobs:
        echo, scored = self._echoes[prompt], self._outcomes.all[prompt * self._options.n]
        scores = scored.prompt_logprobs or ()
        return prompt_logprobs(echo.tokens, scores, echo.offsets, self._token_bytes)

    def _echo(self, written: str | None, tokens: Sequence[int]) -> _Echo:
        if written is not None:
            return _Echo(written, tokens, offsets_in(written, tokens, self._token_bytes))
        text, offsets = spelled(tokens, self._token_bytes)
        return _Echo(text, tokens, offsets)
