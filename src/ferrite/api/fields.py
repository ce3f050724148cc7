"""What becomes of every request field: one table drives the check, the documentation and the tests.

A field is *honoured*, a *label* (accepted on purpose without an effect on the answer), *later* (501
unless neutral) or *never* (400 unless neutral). Neutral values ask for what happens anyway.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import msgspec

from ferrite.api.errors import ApiError, invalid, not_implemented
from ferrite.api.wire import GenerationBody, TextFormat


class Support(Enum):
    """How far a field is supported."""

    HONOURED = "honoured"
    LABEL = "label"
    LATER = "later"
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
    "n": Field(Support.LATER, (1,)),
}

CHAT_FIELDS: Mapping[str, Field] = {
    **_GENERATION,
    "messages": HONOURED,
    "max_completion_tokens": HONOURED,
    "safety_identifier": LABEL,
    "parallel_tool_calls": LABEL,
    "logprobs": Field(Support.LATER, (False,)),
    "top_logprobs": Field(Support.LATER, (0,)),
    "response_format": Field(Support.LATER, (TextFormat(),)),
    "tools": Field(Support.LATER, ([],)),
    "tool_choice": Field(Support.NEVER, ("none", "auto")),
    "functions": Field(Support.NEVER, ([],)),
    "function_call": Field(Support.NEVER, ("none", "auto")),
    "modalities": Field(Support.NEVER, (["text"],)),
    "audio": Field(Support.NEVER),
    "prediction": Field(Support.NEVER),
    "web_search_options": Field(Support.NEVER),
    "moderation": Field(Support.NEVER),
    "reasoning_effort": Field(Support.NEVER),
    "verbosity": Field(Support.NEVER, ("medium",)),
    "store": Field(Support.NEVER, (False,)),
    "service_tier": Field(Support.NEVER, ("auto", "default")),
    "prompt_cache_options": Field(Support.NEVER),
    "prompt_cache_retention": Field(Support.NEVER, ("in_memory",)),
}
"""Order matters: ``tools`` is looked at before ``tool_choice``, which says that it needs tools."""

COMPLETION_FIELDS: Mapping[str, Field] = {
    **_GENERATION,
    "prompt": HONOURED,
    "best_of": Field(Support.NEVER, (1,)),
    "echo": Field(Support.LATER, (False,)),
    "logprobs": Field(Support.LATER),
    "suffix": Field(Support.NEVER, ("",)),
}


def check_fields(body: GenerationBody, table: Mapping[str, Field]) -> None:
    """Raise the ``ApiError`` of the first field with a value that is not honoured."""
    for name, field in table.items():
        value = getattr(body, name)
        restricted = field.support in (Support.LATER, Support.NEVER)
        if restricted and value is not None and value not in field.neutral:
            raise _refusal(name, field)
    if body.stream_options is not None and not body.stream:
        raise invalid("`stream_options` needs `stream` to be true.", "stream_options")


def _refusal(name: str, field: Field) -> ApiError:
    accepted = " or ".join(_as_json(value) for value in (None, *field.neutral))
    if field.support is Support.LATER:
        return not_implemented(f"`{name}` is not supported yet beyond {accepted}.", name)
    if name == "tool_choice":
        return invalid("`tool_choice` asks for a call, which needs `tools` that are not empty.", name)
    return invalid(f"`{name}` is not supported beyond {accepted}.", name, "unsupported_value")


def _as_json(value: object) -> str:
    return msgspec.json.encode(value).decode()
