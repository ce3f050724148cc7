"""What clients send: the request bodies, field by field as the official ``openai`` package types them.

Types and ranges are checked by the one decode call; what a field may hold beyond its type is in
``ferrite.api.fields``.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

MAX_PROMPTS = 128
"""Prompts in one text completion request."""
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_INT32_MAX = 2**31 - 1

Temperature = Annotated[float, Meta(ge=0, le=2)]
Probability = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
# Outside these the float32 arithmetic on logits leaves the finite numbers.
RepetitionPenalty = Annotated[float, Meta(ge=0.001, le=1000)]
Count = Annotated[int, Meta(ge=1, le=_INT32_MAX)]
Budget = Annotated[int, Meta(ge=0, le=_INT64_MAX)]
TopK = Annotated[int, Meta(ge=0, le=_INT32_MAX)]
TokenId = Annotated[int, Meta(ge=0, le=_INT32_MAX)]
Seed = Annotated[int, Meta(ge=_INT64_MIN, le=_INT64_MAX)]
LogitBias = dict[str, Annotated[float, Meta(ge=-100, le=100)]]
StopString = Annotated[str, Meta(min_length=1, max_length=4096)]
StopStrings = StopString | Annotated[list[StopString], Meta(max_length=4)]
Label = Annotated[str, Meta(max_length=512)]
Metadata = Annotated[dict[str, Label], Meta(max_length=16)]
FunctionName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


class Wire(msgspec.Struct, forbid_unknown_fields=True):
    """A JSON object of a request; a field it does not name is an error."""


class TextPart(Wire):
    """A piece of text.

    msgspec does not ask for the tag of a struct that stands alone, so ``type`` is a field where it does.
    """

    type: Literal["text"]
    text: str
    prompt_cache_breakpoint: None = None


class AnswerTextPart(Wire, tag_field="type", tag="text"):
    """A piece of the text of an earlier answer."""

    text: str
    prompt_cache_breakpoint: None = None


class RefusalPart(Wire, tag_field="type", tag="refusal"):
    """What an assistant said instead of an answer."""

    refusal: str


TextContent = str | Annotated[list[TextPart], Meta(min_length=1)]


class DeveloperMessage(Wire, tag_field="role", tag="developer"):
    """Instructions; the newer name of the system role."""

    content: TextContent
    name: Label | None = None


class SystemMessage(Wire, tag_field="role", tag="system"):
    """Instructions."""

    content: TextContent
    name: Label | None = None


class UserMessage(Wire, tag_field="role", tag="user"):
    """What the person said."""

    content: TextContent
    name: Label | None = None


class FunctionCall(Wire):
    """A function's name and its arguments as JSON text."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    arguments: Annotated[str, Meta(max_length=65536)]
    parsed_arguments: Any = None
    """What the official client made of the arguments; and sends back with the call; not read."""


class ToolCall(Wire):
    """One call that an assistant turn of the history made."""

    type: Literal["function"]
    id: Annotated[str, Meta(min_length=1, max_length=512)]
    function: FunctionCall
    index: int | None = None


class AssistantMessage(Wire, tag_field="role", tag="assistant"):
    """An earlier answer, as clients keep it: with calls, or with fields that are null."""

    content: str | Annotated[list[AnswerTextPart | RefusalPart], Meta(min_length=1)] | None = None
    name: Label | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=16)] | None = None
    function_call: FunctionCall | None = None
    reasoning_content: str | None = None
    parsed: Any = None
    """What the official client made of the content, and sends back with it; not read."""
    audio: None = None
    annotations: Annotated[list[Any], Meta(max_length=0)] | None = None


class ToolMessage(Wire, tag_field="role", tag="tool"):
    """The result of a call."""

    content: TextContent
    tool_call_id: str
    name: Label | None = None


class FunctionMessage(Wire, tag_field="role", tag="function"):
    """The result of a call, in the older form."""

    content: str | None
    name: Annotated[str, Meta(min_length=1, max_length=64)]


Message = DeveloperMessage | SystemMessage | UserMessage | AssistantMessage | ToolMessage | FunctionMessage


class TextFormat(Wire, tag_field="type", tag="text"):
    """Plain text: the neutral response format."""


class JsonObjectFormat(Wire, tag_field="type", tag="json_object"):
    """Any JSON object."""


class JsonSchema(Wire):
    """A schema and how closely to follow it."""

    name: FunctionName
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(Wire, tag_field="type", tag="json_schema"):
    """JSON that follows a schema."""

    json_schema: JsonSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


class FunctionDefinition(Wire):
    """A function that the model may call; its bounds are those of ``ferrite.toolcalls``."""

    name: FunctionName
    description: Annotated[str, Meta(max_length=4096)] | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(Wire):
    """A tool: only functions are supported."""

    type: Literal["function"]
    function: FunctionDefinition


class ChosenFunction(Wire):
    """The name of a declared function."""

    name: str


class NamedToolChoice(Wire, tag_field="type", tag="function"):
    """A call of this function."""

    function: ChosenFunction


class AllowedTool(Wire):
    """One of the functions that may be called."""

    type: Literal["function"]
    function: ChosenFunction


class AllowedTools(Wire):
    """Calls of these functions only."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedTool], Meta(min_length=1)]


class AllowedToolsChoice(Wire, tag_field="type", tag="allowed_tools"):
    """Some of the declared functions."""

    allowed_tools: AllowedTools


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice | AllowedToolsChoice


class ChatTemplateOptions(Wire):
    """Variables of the chat template that a request may set, where the model's template reads them."""

    enable_thinking: bool | None = None
    thinking: bool | None = None
    preserve_thinking: bool | None = None
    tools_in_user_message: bool | None = None
    reasoning_effort: ReasoningEffort | None = None


class StreamOptions(Wire):
    """What a stream carries besides the text."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class GenerationBody(Wire, kw_only=True):
    """The fields that every generation route has."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Budget | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    top_k: TopK | None = None
    min_p: Probability | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    logit_bias: LogitBias | None = None
    seed: Seed | None = None
    stop: StopStrings | None = None
    n: Count | None = None
    user: str | None = None
    prompt_cache_key: Label | None = None
    metadata: Metadata | None = None
    return_token_ids: bool | None = None


class ChatBody(GenerationBody, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: Budget | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[FunctionTool], Meta(max_length=64)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: list[dict[str, Any]] | None = None
    function_call: Literal["none", "auto"] | dict[str, Any] | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    web_search_options: dict[str, Any] | None = None
    moderation: dict[str, Any] | None = None
    reasoning_effort: ReasoningEffort | None = None
    chat_template_kwargs: ChatTemplateOptions | None = None
    verbosity: str | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None


class CompletionBody(GenerationBody, kw_only=True):
    """``POST /v1/completions``."""

    prompt: str | Annotated[list[TokenId | str | list[TokenId]], Meta(min_length=1)]
    best_of: Count | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    suffix: str | None = None
