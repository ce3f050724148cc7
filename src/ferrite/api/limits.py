"""From checked fields to what the engine takes: token budget, sampling, and room in the context."""

import re
from dataclasses import dataclass, replace
from typing import TypeVar

from ferrite.api.config import ServerConfig
from ferrite.api.errors import ApiError, invalid
from ferrite.api.model import GenerationEngine
from ferrite.api.wire import GenerationBody
from ferrite.engine.errors import RequestTooLarge
from ferrite.sampling import SamplingParams

CACHE_TRACE = "ferrite_cache_trace"
"""Key of ``metadata``, and field of the answer."""

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


def check_choices(n: int, config: ServerConfig) -> None:
    """Raise 400 when a request asks for more answers than can run at one moment: they start together."""
    if n > config.sessions:
        option = "batch-streams" if config.experimental_batched_decode else "concurrent-inferences"
        raise invalid(f"`n` is {n}, the most is {config.sessions} (--max-{option}).", "n")


def check_size(
    engine: GenerationEngine, n_prompt: int, budget: Budget, param: str, *, exact: bool = True
) -> None:
    """Raise 400 when the engine can never run prompt and budget together.

    ``n_prompt`` may be the least number of tokens the prompt can have, which is then not ``exact``.
    """
    try:
        engine.check_size(n_prompt + budget.tokens)
    except RequestTooLarge as error:
        count = f"{n_prompt}" if exact else f"at least {n_prompt}"
        source = "" if budget.given else ", the server's default (--default-max-tokens)"
        raise too_large(
            f"The prompt is too long for the budget: it has {count} tokens and `{budget.field}` is "
            f"{budget.tokens}{source}, together {n_prompt + budget.tokens}",
            error,
            param,
        ) from None


def too_large(request: str, error: RequestTooLarge, param: str | None) -> ApiError:
    """400 that says which limit ``request`` exceeds, and the option that would lift it."""
    limit = {
        "context": f"the context has {error.limit} tokens (--ctx-size)",
        "session": f"a session has {error.limit} tokens (--kv-max-tokens)",
        "store": (
            f"that is {error.needed} KV blocks, the KV cache has {error.limit} in all "
            "(--kv-max-tokens, --max-batch-streams)"
        ),
    }[error.bound]
    return invalid(f"{request}; {limit}.", param, "context_length_exceeded")


def wants_cache_trace(body: GenerationBody) -> bool:
    """Return whether the answer shall tell of the prefix cache; raises 400 for a value that is no answer."""
    asked = (body.metadata or {}).get(CACHE_TRACE, "false")
    if asked not in ("true", "false"):
        raise invalid(f'`metadata.{CACHE_TRACE}` must be "true" or "false".', f"metadata.{CACHE_TRACE}")
    return asked == "true"


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


def choice_params(sampling: SamplingParams, choice: int) -> SamplingParams:
    """Return the parameters of a choice: each has a seed of its own, the first one that of the request."""
    if sampling.seed is None:
        return sampling
    return replace(sampling, seed=(sampling.seed + choice + 2**63) % 2**64 - 2**63)


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
                f"logit_bias.{key}",
            )
    return tuple((int(key), float(bias)) for key, bias in written.items())
