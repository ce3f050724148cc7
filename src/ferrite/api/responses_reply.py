"""The response and the events of ``/v1/responses``, built from the events of one generation."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from msgspec import structs

from ferrite.api.answers import cache_trace_answer, obfuscation
from ferrite.api.errors import ApiError
from ferrite.api.logprobs import ChatTokenLogprob, ShownToken, ShownTokens, TokenBytes, chat_logprobs
from ferrite.api.replies import Outcomes, ReplyOptions
from ferrite.api.responses_answers import (
    ArgumentsDeltaEvent,
    ArgumentsDoneEvent,
    CompletedEvent,
    CreatedEvent,
    ErrorEvent,
    FunctionCallItem,
    IncompleteDetails,
    IncompleteEvent,
    InProgressEvent,
    InputTokensDetails,
    Item,
    ItemAddedEvent,
    ItemDoneEvent,
    ItemStatus,
    MessageItem,
    OutputText,
    OutputTokensDetails,
    PartAddedEvent,
    PartDoneEvent,
    ReasoningDeltaEvent,
    ReasoningDoneEvent,
    ReasoningItem,
    ReasoningText,
    ResponseAnswer,
    ResponseEvent,
    ResponseUsage,
    TextDeltaEvent,
    TextDoneEvent,
)
from ferrite.api.streams import Sent
from ferrite.api.tools import AnswerRules
from ferrite.engine.events import Event, Finished, Usage
from ferrite.engine.text import Detokenizer
from ferrite.toolcalls import AnswerEvent, CallArguments, CallEnd, CallStart, Reasoning, Text

EventT = TypeVar("EventT", bound=ResponseEvent)


@dataclass(slots=True)
class _Open:
    """The item that is being written. ``item`` is what it began as, which may still wait to be encoded."""

    item: Item
    index: int
    """Its place in the output."""
    pieces: list[str] = field(default_factory=list)
    logprobs: list[ChatTokenLogprob] = field(default_factory=list)

    def event(self, make: Callable[..., EventT], **fields: Any) -> EventT:
        """Return an event about the item."""
        return make(item_id=self.item.id, output_index=self.index, **fields)

    def part_event(self, make: Callable[..., EventT], **fields: Any) -> EventT:
        """Return an event about the one part of a message or of reasoning."""
        return self.event(make, content_index=0, **fields)


class ResponsesBuilder:
    """Builds one response; an item ends where one of another kind begins."""

    done_mark = False

    def __init__(
        self,
        response: ResponseAnswer,
        rules: AnswerRules,
        options: ReplyOptions,
        *,
        detokenizer: Detokenizer,
        token_bytes: TokenBytes,
    ) -> None:
        """``response``: what is known of it before it begins. ``detokenizer``: a new one of the model's."""
        self._response = response
        self._rules = rules
        self._answer = rules.stream(options.unique)
        self._options = options
        self._token_bytes = token_bytes
        self._outcomes = Outcomes(options)
        self._shown = ShownTokens(detokenizer)
        self._unclaimed: list[ShownToken] = []
        """Tokens of text of which it is not known yet whether it is the message's."""
        self._output: list[Item] = []
        self._open: _Open | None = None
        self._n_sent = 0
        self._reason: str | None = None
        self._finished_at: int | None = None

    @property
    def usages(self) -> list[Usage]:
        """Token counts, when the generation has ended."""
        return self._outcomes.usages

    @property
    def finish_reasons(self) -> list[str]:
        """Why the generation ended, in the words of a chat."""
        return [] if self._reason is None else [self._reason]

    def opening(self) -> list[Sent]:
        """Return the events that tell of the response, which is empty so far."""
        created = structs.replace(self._response, request_id=self._options.request_id)
        return self._numbered([CreatedEvent(response=created), InProgressEvent(response=self._response)])

    def add(self, index: int, event: Event) -> list[Sent]:
        """Take the next event of the generation; return the events that it makes."""
        self._outcomes.add(index, event)
        if self._options.logprobs is not None:
            self._unclaimed += self._shown.add(event)
        if not isinstance(event, Finished):
            thought = self._answer.reasoning_tokens
            parts = self._answer.push(event.text, len(event.token_ids))
            return self._numbered(self._made(parts, is_text=self._answer.reasoning_tokens == thought))
        made = self._made(self._answer.finish(), is_text=True)
        self._reason = self._answer.finish_reason(event.reason)
        self._finished_at = int(time.time())
        if self._open is None and not self._output:
            made += self._begin(MessageItem(self._item_id("msg"), "in_progress"))
        if self._unclaimed and self._open is not None and isinstance(self._open.item, MessageItem):
            made += self._add_text("")
        made += self._end("incomplete" if self._reason == "length" else "completed")
        return self._numbered(made)

    def ended(self, _: int) -> bool:
        """Return whether nothing more can come out of the generation."""
        # A grammar ends the generation itself, a mark or two behind the last call.
        by_grammar = self._rules.grammar is not None and self._answer.finish_reason("stop") != "length"
        return self._answer.ended and not by_grammar

    def closing(self) -> list[Sent]:
        """Return the event with the whole response."""
        response = self.whole()
        whole = CompletedEvent if response.status == "completed" else IncompleteEvent
        return self._numbered([whole(response=response)])

    def failure(self, error: ApiError) -> list[Sent]:
        """Return the error event."""
        body = error.body
        return self._numbered(
            [ErrorEvent(code=body.code, message=body.message, param=body.param, error=body)]
        )

    def whole(self) -> ResponseAnswer:
        """Return the whole response."""
        (outcome,) = self._outcomes.all
        is_cut = self._reason == "length"
        response = structs.replace(
            self._response,
            status="incomplete" if is_cut else "completed",
            completed_at=None if is_cut else self._finished_at,
            incomplete_details=IncompleteDetails("max_output_tokens") if is_cut else None,
            output=self._output,
            usage=None if outcome.finished is None else self._usage(outcome.finished),
        )
        if self._options.token_ids:
            response.token_ids = outcome.token_ids
        if self._options.cache_trace:
            key_given, trace = self._options.cache_key_given, outcome.cache
            response.ferrite_cache_trace = (
                None if trace is None else cache_trace_answer(trace, key_given=key_given)
            )
        return response

    def _made(self, parts: Sequence[AnswerEvent], *, is_text: bool) -> list[ResponseEvent]:
        """Return the events of ``parts``; ``is_text`` false: their tokens are no text, whatever they are."""
        events = [event for part in parts for event in self._take(part)]
        if not is_text or any(not isinstance(part, Text) for part in parts):
            self._unclaimed.clear()
        return events

    def _take(self, part: AnswerEvent) -> list[ResponseEvent]:
        match part:
            case Text(delta):
                return [*self._continue(MessageItem, "msg"), *self._add_text(delta)]
            case Reasoning(delta):
                return [*self._continue(ReasoningItem, "rs"), *self._add_text(delta)]
            case CallStart(_, call_id, name):
                item = FunctionCallItem(self._item_id("fc"), "in_progress", call_id, name)
                return [*self._end("completed"), *self._begin(item)]
            case CallArguments(_, delta):
                return self._add_text(delta)
            case CallEnd(_, is_complete):
                return self._end("completed" if is_complete else "incomplete")

    def _continue(self, kind: type[MessageItem] | type[ReasoningItem], prefix: str) -> list[ResponseEvent]:
        """Begin an item of this kind unless one is being written."""
        if self._open is not None and isinstance(self._open.item, kind):
            return []
        done = self._end("completed")
        return [*done, *self._begin(kind(self._item_id(prefix), "in_progress"))]

    def _begin(self, item: Item) -> list[ResponseEvent]:
        self._open = opened = _Open(item, len(self._output))
        events: list[ResponseEvent] = [ItemAddedEvent(output_index=opened.index, item=item)]
        if not isinstance(item, FunctionCallItem):
            part = OutputText("") if isinstance(item, MessageItem) else ReasoningText("")
            events.append(opened.part_event(PartAddedEvent, part=part))
        return events

    def _add_text(self, delta: str) -> list[ResponseEvent]:
        opened = self._open
        if opened is None:
            return []
        opened.pieces.append(delta)
        event: TextDeltaEvent | ReasoningDeltaEvent | ArgumentsDeltaEvent
        match opened.item:
            case MessageItem():
                logprobs = chat_logprobs(self._unclaimed, self._token_bytes).content
                self._unclaimed.clear()
                opened.logprobs += logprobs
                event = opened.part_event(TextDeltaEvent, delta=delta, logprobs=logprobs)
            case ReasoningItem():
                event = opened.part_event(ReasoningDeltaEvent, delta=delta)
            case FunctionCallItem():
                event = opened.event(ArgumentsDeltaEvent, delta=delta)
        if self._options.include_obfuscation:
            event.obfuscation = obfuscation(delta)
        return [event]

    def _end(self, status: ItemStatus) -> list[ResponseEvent]:
        """End the item that is being written, if there is one."""
        opened, self._open = self._open, None
        if opened is None:
            return []
        text = "".join(opened.pieces)
        done: Item
        part: OutputText | ReasoningText
        match opened.item:
            case MessageItem(id=item_id):
                part = OutputText(text, logprobs=opened.logprobs)
                done = MessageItem(item_id, status, [part])
                events: list[ResponseEvent] = [
                    opened.part_event(TextDoneEvent, text=text, logprobs=part.logprobs),
                    opened.part_event(PartDoneEvent, part=part),
                ]
            case ReasoningItem(id=item_id):
                part = ReasoningText(text)
                done = ReasoningItem(item_id, status, [part])
                events = [
                    opened.part_event(ReasoningDoneEvent, text=text),
                    opened.part_event(PartDoneEvent, part=part),
                ]
            case FunctionCallItem(name=name) as begun:
                done = structs.replace(begun, status=status, arguments=text)
                events = [opened.event(ArgumentsDoneEvent, name=name, arguments=text)]
        self._output.append(done)
        return [*events, ItemDoneEvent(output_index=opened.index, item=done)]

    def _item_id(self, prefix: str) -> str:
        return f"{prefix}_{self._options.unique}{len(self._output):02}"

    def _usage(self, finished: Finished) -> ResponseUsage:
        usage = finished.usage
        written = usage.prompt_tokens - usage.cached_tokens if finished.cache.stored else 0
        return ResponseUsage(
            usage.prompt_tokens,
            InputTokensDetails(usage.cached_tokens, written),
            usage.completion_tokens,
            OutputTokensDetails(self._answer.reasoning_tokens),
            usage.prompt_tokens + usage.completion_tokens,
        )

    def _numbered(self, events: Sequence[ResponseEvent]) -> list[Sent]:
        numbered = []
        for event in events:
            event.sequence_number = self._n_sent
            self._n_sent += 1
            numbered.append(Sent(event, str(event.__struct_config__.tag)))
        return numbered
