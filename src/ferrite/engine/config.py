"""The engine's limits."""

from dataclasses import dataclass
from typing import Literal

from ferrite.kv import PrefixLimits


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Bounds of admission, steps, caches and event channels. Raises ``ValueError`` naming a bad field."""

    max_concurrent: int = 1
    """Requests that may generate at one moment (permits)."""
    inference_wait_seconds: float = 0.0
    """How long a request may wait for a permit; 0 refuses at once, ``math.inf`` never times out."""
    waiting_limit: int = 64
    """Requests that may wait for a permit at one moment."""
    arrival_window_seconds: float = 0.0
    """How long an idle engine waits for more requests to start with the first."""
    prefill_chunk: int = 128
    """Most prompt rows in one step, over all sequences."""
    event_queue: int = 64
    """Unread deltas after which a reader's sequence is left out of the steps."""
    session_positions: int | None = None
    """KV capacity of one request; None when only the context limits it and no KV budget is set."""
    prefix_cache: PrefixLimits | None = None
    """Limits of the cache of evaluated prefixes, which lives in the blocks that the store has beyond those of
    ``max_concurrent`` full sessions and never takes more; None for no cache."""
    speculation: Literal["off", "ngram"] = "off"
    """``ngram``: draft what a sequence may say next from what it said before. No token depends on it."""
    cache_identity: str = ""
    """Digest of the model, tokenizer, template, activation policy and KV layout that cached prefixes depend
    on; it goes into the traces."""

    def __post_init__(self) -> None:
        for name in ("max_concurrent", "prefill_chunk", "event_queue", "session_positions"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}, must be at least 1")
        for name in ("inference_wait_seconds", "waiting_limit", "arrival_window_seconds"):
            value = getattr(self, name)
            if not value >= 0:
                raise ValueError(f"{name} is {value}, must be at least 0")
