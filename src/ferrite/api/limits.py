"""From checked fields to what the engine takes: token budget, sampling, and room in the context."""

import re
from dataclasses import dataclass
from typing import TypeVar

from ferrite.api.errors import ApiError, invalid
from ferrite.api.wire import GenerationBody
from ferrite.sampling import SamplingParams

ValueT = TypeVar("ValueT")

_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True)
class Budget:
    """How many tokens a request may generate, and the field that said so."""

    tokens: int
    field: str
    given: bool
    """The client named it; else it is the server's default."""


def check_budget(budget: Budget, hard_max_tokens: int) -> None:
    """Raise 400 when a request asks for more tokens than the server gives."""
    if budget.tokens > hard_max_tokens:
        raise invalid(
            f"`{budget.field}` is {budget.tokens}, the most is {hard_max_tokens} (--hard-max-tokens).",
            budget.field,
        )


def check_context(
    n_prompt: int, budget: Budget, context_length: int, param: str, *, exact: bool = True
) -> None:
    """Raise 400 when prompt and budget do not fit into the context together.

    ``n_prompt`` may be the least number of tokens the prompt can have, which is then not ``exact``.
    """
    if n_prompt + budget.tokens > context_length:
        count = f"{n_prompt}" if exact else f"at least {n_prompt}"
        source = "" if budget.given else ", the server's default (--default-max-tokens)"
        raise context_exceeded(
            f"The prompt has {count} tokens and `{budget.field}` is {budget.tokens}{source}, together "
            f"{n_prompt + budget.tokens}; the context has {context_length} tokens (--ctx-size).",
            param,
        )


def context_exceeded(message: str, param: str | None) -> ApiError:
    """400: the request needs more positions than there are."""
    return invalid(message, param, "context_length_exceeded")


def sampling_params(body: GenerationBody, vocab_size: int) -> SamplingParams:
    """Return the sampling parameters; raises 400 for a biased token that does not exist."""
    defaults = SamplingParams()
    return SamplingParams(
        temperature=_or(body.temperature, defaults.temperature),
        top_k=_or(body.top_k, defaults.top_k),
        top_p=_or(body.top_p, defaults.top_p),
        min_p=_or(body.min_p, defaults.min_p),
        repetition_penalty=_or(body.repetition_penalty, defaults.repetition_penalty),
        frequency_penalty=_or(body.frequency_penalty, defaults.frequency_penalty),
        presence_penalty=_or(body.presence_penalty, defaults.presence_penalty),
        logit_bias=_logit_bias(body.logit_bias or {}, vocab_size),
        seed=body.seed,
    )


def stop_strings(body: GenerationBody) -> tuple[str, ...]:
    """Return the stop strings; one may come without a list."""
    return (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())


def _or(value: ValueT | None, default: ValueT) -> ValueT:
    return default if value is None else value


def _logit_bias(written: dict[str, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    for key in written:
        if not _TOKEN_ID.fullmatch(key) or int(key) >= vocab_size:
            raise invalid(
                f"`logit_bias`: {key[:32]!r} is not a token id of this model (0 to {vocab_size - 1}).",
                "logit_bias",
            )
    return tuple((int(key), float(bias)) for key, bias in written.items())
