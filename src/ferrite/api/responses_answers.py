"""What clients of ``/v1/responses`` get: the response, its items, and the events of a stream."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ferrite.api.answers import CacheTraceAnswer
from ferrite.api.errors import ErrorBody
from ferrite.api.logprobs import ChatTokenLogprob

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    """A piece of a message."""

    text: str
    annotations: list[Any] = []
    logprobs: list[ChatTokenLogprob] = []
    """One entry for each token of the text, where they were asked for."""


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    """A piece of reasoning."""

    text: str


class MessageItem(msgspec.Struct, tag_field="type", tag="message"):
    """Text for the person."""

    id: str
    status: ItemStatus
    content: list[OutputText] = []
    role: Literal["assistant"] = "assistant"


class FunctionCallItem(msgspec.Struct, tag_field="type", tag="function_call"):
    """A call; ``incomplete`` where its arguments broke off and are no JSON object."""

    id: str
    status: ItemStatus
    call_id: str
    """What the result of the call must name."""
    name: str
    arguments: str = ""


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning"):
    """What the model thought before it answered."""

    id: str
    status: ItemStatus
    content: list[ReasoningText] = []
    summary: list[Any] = []
    encrypted_content: None = None


Item = MessageItem | FunctionCallItem | ReasoningItem


class InputTokensDetails(msgspec.Struct):
    """Where the prompt's tokens came from, and whether they stay."""

    cached_tokens: int
    cache_write_tokens: int
    """Tokens of the prompt that were computed and are kept for later requests."""


class OutputTokensDetails(msgspec.Struct):
    """What the completion's tokens were for."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    """Token counts of one response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(msgspec.Struct):
    """Why a response is not complete."""

    reason: Literal["max_output_tokens"]


class FunctionToolAnswer(msgspec.Struct, tag_field="type", tag="function"):
    """A function that the model may call."""

    name: str
    description: str | None
    parameters: Any
    strict: bool


class TextAnswer(msgspec.Struct):
    """The form of the text."""

    format: Any


class ReasoningAnswer(msgspec.Struct):
    """How the model was told to reason."""

    effort: str | None
    summary: None = None


class ResponseAnswer(msgspec.Struct, kw_only=True):
    """A response, with the request's fields as they were understood."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: ResponseStatus
    error: None = None
    incomplete_details: IncompleteDetails | None = None
    model: str
    output: list[Item] = []
    usage: ResponseUsage | None = None
    instructions: str | None
    max_output_tokens: int | None
    temperature: float
    top_p: float
    top_logprobs: int
    text: TextAnswer
    tools: list[FunctionToolAnswer]
    tool_choice: Any
    parallel_tool_calls: bool
    metadata: dict[str, str]
    prompt_cache_key: str | None
    safety_identifier: str | None
    user: str | None
    reasoning: ReasoningAnswer
    truncation: Literal["disabled"] = "disabled"
    service_tier: Literal["default"] = "default"
    store: bool = False
    background: bool = False
    previous_response_id: None = None
    request_id: str | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    ferrite_cache_trace: CacheTraceAnswer | UnsetType | None = UNSET


class ResponseEvent(msgspec.Struct, kw_only=True, tag_field="type"):
    """An event of a stream; they are numbered from 0."""

    sequence_number: int = 0


class CreatedEvent(ResponseEvent, kw_only=True, tag="response.created"):
    """The request was admitted."""

    response: ResponseAnswer


class InProgressEvent(ResponseEvent, kw_only=True, tag="response.in_progress"):
    """The model works on it."""

    response: ResponseAnswer


class ItemAddedEvent(ResponseEvent, kw_only=True, tag="response.output_item.added"):
    """An item begins."""

    output_index: int
    item: Item


class ItemDoneEvent(ResponseEvent, kw_only=True, tag="response.output_item.done"):
    """An item is over."""

    output_index: int
    item: Item


class PartAddedEvent(ResponseEvent, kw_only=True, tag="response.content_part.added"):
    """A part of an item begins."""

    item_id: str
    output_index: int
    content_index: int
    part: OutputText | ReasoningText


class PartDoneEvent(ResponseEvent, kw_only=True, tag="response.content_part.done"):
    """A part of an item is over."""

    item_id: str
    output_index: int
    content_index: int
    part: OutputText | ReasoningText


class TextDeltaEvent(ResponseEvent, kw_only=True, tag="response.output_text.delta"):
    """More text."""

    item_id: str
    output_index: int
    content_index: int
    delta: str
    logprobs: list[ChatTokenLogprob]
    obfuscation: str | UnsetType = UNSET


class TextDoneEvent(ResponseEvent, kw_only=True, tag="response.output_text.done"):
    """The whole text of a part."""

    item_id: str
    output_index: int
    content_index: int
    text: str
    logprobs: list[ChatTokenLogprob]


class ReasoningDeltaEvent(ResponseEvent, kw_only=True, tag="response.reasoning_text.delta"):
    """More reasoning."""

    item_id: str
    output_index: int
    content_index: int
    delta: str
    obfuscation: str | UnsetType = UNSET


class ReasoningDoneEvent(ResponseEvent, kw_only=True, tag="response.reasoning_text.done"):
    """The whole reasoning of a part."""

    item_id: str
    output_index: int
    content_index: int
    text: str


class ArgumentsDeltaEvent(ResponseEvent, kw_only=True, tag="response.function_call_arguments.delta"):
    """More of a call's arguments."""

    item_id: str
    output_index: int
    delta: str
    obfuscation: str | UnsetType = UNSET


class ArgumentsDoneEvent(ResponseEvent, kw_only=True, tag="response.function_call_arguments.done"):
    """The whole arguments of a call."""

    item_id: str
    output_index: int
    name: str
    arguments: str


class CompletedEvent(ResponseEvent, kw_only=True, tag="response.completed"):
    """The whole response."""

    response: ResponseAnswer


class IncompleteEvent(ResponseEvent, kw_only=True, tag="response.incomplete"):
    """The whole response, which its budget cut."""

    response: ResponseAnswer


class ErrorEvent(ResponseEvent, kw_only=True, tag="error"):
    """The response failed; nothing follows.

    The official client's type has the first fields, and its streams raise for the object ``error``.
    """

    code: str | None
    message: str
    param: str | None
    error: ErrorBody
