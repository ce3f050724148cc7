"""What clients send to ``POST /v1/responses``, as the official ``openai`` package types it.

Items of the input are told apart by ``type``, which messages may leave out, so one type holds the fields of
them all; ``ferrite.api.responses_input`` says which fields belong to which item.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta

from ferrite.api.wire import (
    Budget,
    ChatTemplateOptions,
    FunctionName,
    GenerationBody,
    JsonObjectFormat,
    ReasoningEffort,
    RefusalPart,
    TextFormat,
    Wire,
)

MAX_ITEMS = 256
"""Items of one input."""
MAX_PARTS = 256
"""Parts of one item."""
MAX_INPUT_BYTES = 1024 * 1024
"""UTF-8 of all texts of one input."""

_CallId = Annotated[str, Meta(min_length=1, max_length=512)]
_FunctionName = Annotated[str, Meta(min_length=1, max_length=64)]
_Status = Literal["in_progress", "completed", "incomplete"]


class InputTextPart(Wire, tag_field="type", tag="input_text"):
    """A piece of text."""

    text: str
    prompt_cache_breakpoint: None = None


class ResultTextPart(Wire):
    """A piece of the result of a call."""

    type: Literal["input_text"]
    text: str
    prompt_cache_breakpoint: None = None


class OutputTextPart(Wire, tag_field="type", tag="output_text"):
    """A piece of an earlier answer."""

    text: str
    annotations: Annotated[list[Any], Meta(max_length=0)] | None = None
    logprobs: list[Any] | None = None
    """As the answer had them; they are no part of the prompt."""


class ReasoningTextPart(Wire, tag_field="type", tag="reasoning_text"):
    """A piece of an earlier answer's reasoning."""

    text: str


class SummaryTextPart(Wire):
    """A piece of a summary of reasoning."""

    type: Literal["summary_text"]
    text: str


Part = InputTextPart | OutputTextPart | RefusalPart | ReasoningTextPart


class InputItem(Wire, kw_only=True):
    """A message, a call, the result of a call, or the reasoning before an answer."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] | None = None
    id: str | None = None
    status: _Status | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | Annotated[list[Part], Meta(max_length=MAX_PARTS)] | None = None
    phase: None = None
    call_id: _CallId | None = None
    name: _FunctionName | None = None
    arguments: Annotated[str, Meta(max_length=65536)] | None = None
    output: str | Annotated[list[ResultTextPart], Meta(max_length=MAX_PARTS)] | None = None
    summary: Annotated[list[SummaryTextPart], Meta(max_length=MAX_PARTS)] | None = None
    encrypted_content: None = None
    caller: None = None
    namespace: None = None


class FlatJsonSchemaFormat(Wire, tag_field="type", tag="json_schema"):
    """JSON that follows a schema."""

    name: FunctionName
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class TextOptions(Wire):
    """What form the text of the answer has."""

    format: TextFormat | JsonObjectFormat | FlatJsonSchemaFormat | None = None
    verbosity: Literal["medium"] | None = None


class ReasoningOptions(Wire):
    """How a model shall reason: how much, where its template can be told, and what happens anyway."""

    effort: ReasoningEffort | None = None
    summary: None = None
    generate_summary: None = None
    mode: Literal["standard"] | None = None
    context: Literal["auto"] | None = None


class NamedFlatToolChoice(Wire, tag_field="type", tag="function"):
    """A call of this function."""

    name: str


class AllowedFlatTool(Wire):
    """One of the functions that may be called."""

    type: Literal["function"]
    name: str


class AllowedFlatToolsChoice(Wire, tag_field="type", tag="allowed_tools"):
    """Some of the declared functions."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedFlatTool], Meta(min_length=1)]


FlatToolChoice = Literal["none", "auto", "required"] | NamedFlatToolChoice | AllowedFlatToolsChoice


class ResponsesBody(GenerationBody, kw_only=True):
    """``POST /v1/responses``."""

    input: str | Annotated[list[InputItem], Meta(max_length=MAX_ITEMS)] | None = None
    instructions: str | None = None
    max_output_tokens: Budget | None = None
    text: TextOptions | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: FlatToolChoice | None = None
    parallel_tool_calls: bool | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    reasoning: ReasoningOptions | None = None
    chat_template_kwargs: ChatTemplateOptions | None = None
    truncation: str | None = None
    store: bool | None = None
    background: bool | None = None
    background_options: dict[str, Any] | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None
    context_management: list[dict[str, Any]] | None = None
    max_tool_calls: int | None = None
    moderation: dict[str, Any] | None = None
    image: dict[str, Any] | None = None
    access_programs: dict[str, Any] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
