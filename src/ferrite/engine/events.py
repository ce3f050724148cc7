"""What a generation tells its reader."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts. An end token counts as a completion token."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    """Prompt tokens whose KV came from the prefix cache instead of being computed."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of one request went, measured by the engine."""

    queue_seconds: float
    """From submission to the permit."""
    prefill_seconds: float
    """From the permit to the first sampled token, a wait for an equal prompt's evaluation included."""
    decode_seconds: float
    """From the first sampled token to the last."""


@dataclass(frozen=True, slots=True)
class CacheTrace:
    """What the prefix cache did for one request.

    The default is that of a server without one, and of a request that scores its prompt: every row of it has
    to be evaluated, and nothing is looked up or stored.
    """

    outcome: Literal["disabled", "no_key", "miss", "hit"] = "disabled"
    """``no_key``: the request named no namespace, so nothing was looked up or stored."""
    cached_tokens: int = 0
    """Prompt tokens whose KV came from the cache."""
    entry_tokens: int = 0
    """Length of the entry that matched, which may share only its beginning with the prompt."""
    shared: bool = False
    """The prompt was evaluated together with an equal one."""
    stored: bool = False
    """The cache holds the prompt, or the prompt and its completion, for later requests."""
    identity: str = ""
    """Digest of what an entry depends on beside its tokens and its namespace."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely the model found a token, by its logits as they came: before mask, bias and temperature."""

    token: int
    logprob: float
    """Natural logarithm of its probability."""
    top: tuple[tuple[int, float], ...]
    """As many of the likeliest (token, logprob) as were asked for, the likeliest first."""


@dataclass(frozen=True, slots=True)
class Delta:
    """New text, whole UTF-8 and free of stop strings, and the tokens that came since the last delta.

    One of the two is not empty, but for the delta that tells the scores of the prompt before all others.
    Over a generation the token ids add up to ``Finished.token_ids``.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None
    """One for each of ``token_ids``; None unless asked for."""
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    """As ``Finished`` has them; only in the first delta, and not without a token to generate."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a generation that was neither cancelled nor failed."""

    reason: Literal["stop", "length"]
    usage: Usage
    timings: Timings
    token_ids: tuple[int, ...]
    """All completion tokens, without the end token."""
    stop_string: str | None
    """The stop string that ended the generation, if one did."""
    cache: CacheTrace = CacheTrace()
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    """One for each prompt token, None for the first, which follows nothing; None unless asked for, and when
    the generation was stopped before."""


Event = Delta | Finished
