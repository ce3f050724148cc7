"""What becomes of every request field: one table drives the check, the documentation and the tests.

A field is *honoured*, a *label* (accepted on purpose without an effect on the answer) or *never* (400
unless neutral). Neutral values ask for what happens anyway.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import msgspec

from ferrite.api.errors import ApiError, invalid
from ferrite.api.wire import ChatBody, GenerationBody


class Support(Enum):
    """How far a field is supported."""

    HONOURED = "honoured"
    LABEL = "label"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a route; ``neutral`` are the values besides ``null`` that are always accepted."""

    support: Support
    neutral: tuple[object, ...] = ()


HONOURED = Field(Support.HONOURED)
LABEL = Field(Support.LABEL)

_GENERATION: Mapping[str, Field] = {
    "model": HONOURED,
    "stream": HONOURED,
    "stream_options": HONOURED,
    "max_tokens": HONOURED,
    "temperature": HONOURED,
    "top_p": HONOURED,
    "top_k": HONOURED,
    "min_p": HONOURED,
    "frequency_penalty": HONOURED,
    "presence_penalty": HONOURED,
    "repetition_penalty": HONOURED,
    "logit_bias": HONOURED,
    "seed": HONOURED,
    "stop": HONOURED,
    "return_token_ids": HONOURED,
    "prompt_cache_key": HONOURED,
    "metadata": HONOURED,
    "user": LABEL,
    "n": HONOURED,
}

CHAT_FIELDS: Mapping[str, Field] = {
    **_GENERATION,
    "messages": HONOURED,
    "max_completion_tokens": HONOURED,
    "safety_identifier": LABEL,
    "logprobs": HONOURED,
    "top_logprobs": HONOURED,
    "response_format": HONOURED,
    "tools": HONOURED,
    "tool_choice": HONOURED,
    "parallel_tool_calls": HONOURED,
    "functions": Field(Support.NEVER, ([],)),
    "function_call": Field(Support.NEVER, ("none", "auto")),
    "modalities": Field(Support.NEVER, (["text"],)),
    "audio": Field(Support.NEVER),
    "prediction": Field(Support.NEVER),
    "web_search_options": Field(Support.NEVER),
    "moderation": Field(Support.NEVER),
    "reasoning_effort": HONOURED,
    "chat_template_kwargs": HONOURED,
    "verbosity": Field(Support.NEVER, ("medium",)),
    "store": Field(Support.NEVER, (False,)),
    "service_tier": Field(Support.NEVER, ("auto", "default")),
    "prompt_cache_options": Field(Support.NEVER),
    "prompt_cache_retention": Field(Support.NEVER, ("in_memory",)),
}

COMPLETION_FIELDS: Mapping[str, Field] = {
    **_GENERATION,
    "prompt": HONOURED,
    "best_of": Field(Support.NEVER, (1,)),
    "echo": HONOURED,
    "logprobs": HONOURED,
    "suffix": Field(Support.NEVER, ("",)),
}

RESPONSE_FIELDS: Mapping[str, Field] = {
    **_GENERATION,
    "input": HONOURED,
    "instructions": HONOURED,
    "max_output_tokens": HONOURED,
    "max_tokens": Field(Support.NEVER),
    "n": Field(Support.NEVER, (1,)),
    "safety_identifier": LABEL,
    "text": HONOURED,
    "tools": HONOURED,
    "tool_choice": HONOURED,
    "parallel_tool_calls": HONOURED,
    "include": HONOURED,
    "top_logprobs": HONOURED,
    "reasoning": HONOURED,
    "chat_template_kwargs": HONOURED,
    "truncation": Field(Support.NEVER, ("disabled",)),
    "store": Field(Support.NEVER, (False,)),
    "background": Field(Support.NEVER, (False,)),
    "background_options": Field(Support.NEVER),
    "previous_response_id": Field(Support.NEVER),
    "conversation": Field(Support.NEVER),
    "prompt": Field(Support.NEVER),
    "context_management": Field(Support.NEVER, ([],)),
    "max_tool_calls": Field(Support.NEVER),
    "moderation": Field(Support.NEVER),
    "image": Field(Support.NEVER),
    "access_programs": Field(Support.NEVER),
    "service_tier": Field(Support.NEVER, ("auto", "default")),
    "prompt_cache_options": Field(Support.NEVER),
    "prompt_cache_retention": Field(Support.NEVER, ("in_memory",)),
}
"""Fields of ``reasoning`` and ``text`` that take nothing but a neutral value are typed so."""


def check_fields(body: GenerationBody, table: Mapping[str, Field]) -> None:
    """Raise the ``ApiError`` of the first field with a value that is not honoured."""
    for name, field in table.items():
        value = getattr(body, name)
        if field.support is Support.NEVER and value is not None and value not in field.neutral:
            raise _refusal(name, field)
    if body.stream_options is not None and not body.stream:
        raise invalid("`stream_options` needs `stream` to be true.", "stream_options")
    if isinstance(body, ChatBody) and body.top_logprobs and not body.logprobs:
        raise invalid("`top_logprobs` needs `logprobs` to be true.", "top_logprobs")


def _refusal(name: str, field: Field) -> ApiError:
    accepted = " or ".join(_as_json(value) for value in (None, *field.neutral))
    return invalid(f"`{name}` is not supported beyond {accepted}.", name, "unsupported_value")


def _as_json(value: object) -> str:
    return msgspec.json.encode(value).decode()
