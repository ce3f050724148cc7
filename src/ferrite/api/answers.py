"""What clients get: answers and stream chunks in OpenAI's shapes."""

import secrets
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ferrite.api.logprobs import ChatLogprobs, CompletionLogprobs
from ferrite.engine.events import CacheTrace, Usage

FinishReason = Literal["stop", "length", "tool_calls"]
CacheOutcome = Literal["disabled", "no_key", "miss", "hit"]

_OBFUSCATION_STEP = 32
"""Obfuscated events differ in length only by whole steps of this many bytes of text."""


class PromptTokensDetails(msgspec.Struct):
    """Where the prompt's tokens came from."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct):
    """What the answer's tokens were spent on."""

    reasoning_tokens: int


class UsageAnswer(msgspec.Struct):
    """Token counts of one request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET
    """Where the route tells reasoning apart."""


class FunctionCallAnswer(msgspec.Struct):
    """The function that is called, and its arguments as JSON text."""

    name: str
    arguments: str


class ToolCallAnswer(msgspec.Struct):
    """One call."""

    id: str
    function: FunctionCallAnswer
    type: Literal["function"] = "function"


class AssistantAnswer(msgspec.Struct):
    """The message of a chat answer."""

    role: Literal["assistant"]
    content: str | None
    """Null where there are calls and no text."""
    refusal: None = None
    tool_calls: list[ToolCallAnswer] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    """One answer to a chat."""

    index: int
    message: AssistantAnswer
    finish_reason: FinishReason
    logprobs: ChatLogprobs | None = None
    token_ids: list[int] | UnsetType = UNSET


class FunctionCallDelta(msgspec.Struct):
    """The name, in a call's first chunk, and a piece of the arguments."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCallDelta(msgspec.Struct):
    """What a chunk adds to the call ``index``."""

    index: int
    function: FunctionCallDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class ChatDelta(msgspec.Struct):
    """What a chunk adds to the message."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct):
    """One choice of a chat chunk."""

    index: int
    delta: ChatDelta
    finish_reason: FinishReason | None = None
    logprobs: ChatLogprobs | None = None
    token_ids: list[int] | UnsetType = UNSET


class CompletionChoice(msgspec.Struct):
    """One continuation of a prompt; also the choice of a completion chunk."""

    index: int
    text: str
    finish_reason: FinishReason | None
    logprobs: CompletionLogprobs | None = None
    token_ids: list[int] | UnsetType = UNSET


class CacheTraceAnswer(msgspec.Struct):
    """What the prefix cache did for one prompt."""

    outcome: CacheOutcome
    cached_tokens: int
    entry_tokens: int
    """Length of the entry that matched."""
    shared: bool
    """The prompt was evaluated together with an equal one."""
    stored: bool
    identity: str
    """Digest of all that an entry depends on beside its tokens and its key."""
    key_given: bool
    """The request has a ``prompt_cache_key``."""


class Answer(msgspec.Struct):
    """A whole answer or one chunk of a stream."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Any]
    usage: UsageAnswer | UnsetType | None = UNSET
    request_id: str | UnsetType = UNSET
    obfuscation: str | UnsetType = UNSET
    ferrite_cache_trace: CacheTraceAnswer | list[CacheTraceAnswer | None] | UnsetType | None = UNSET
    """A list where the request has several prompts; null for a prompt that was not evaluated."""


def usage_answer(usages: Sequence[Usage], *, reasoning_tokens: int | None = None) -> UsageAnswer:
    """Add up the token counts of a request's prompts; ``reasoning_tokens`` None: not told apart."""
    prompt = sum(usage.prompt_tokens for usage in usages)
    completion = sum(usage.completion_tokens for usage in usages)
    cached = sum(usage.cached_tokens for usage in usages)
    details = UNSET if reasoning_tokens is None else CompletionTokensDetails(reasoning_tokens)
    return UsageAnswer(prompt, completion, prompt + completion, PromptTokensDetails(cached), details)


def cache_trace_answer(trace: CacheTrace, *, key_given: bool) -> CacheTraceAnswer:
    """Return ``trace`` as a client sees it."""
    return CacheTraceAnswer(
        trace.outcome,
        trace.cached_tokens,
        trace.entry_tokens,
        trace.shared,
        trace.stored,
        trace.identity,
        key_given,
    )


def obfuscation(text: str) -> str:
    """Return random filler that hides the length of ``text`` from who sees only encrypted sizes."""
    missing = -len(text.encode()) % _OBFUSCATION_STEP
    return secrets.token_hex(_OBFUSCATION_STEP)[:missing]
