"""The engine's limits."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Bounds of admission, steps and event channels. Raises ``ValueError`` naming a bad field."""

    max_concurrent: int = 1
    """Requests that may generate at one moment (permits)."""
    inference_wait_seconds: float = 0.0
    """How long a request may wait for a permit; 0 refuses at once, ``math.inf`` never times out."""
    prefill_chunk: int = 512
    """Most prompt rows in one step, over all sequences."""
    event_queue: int = 64
    """Unread deltas after which a reader's sequence is left out of the steps."""
    waiting_limit: int = 64
    """Requests that may wait for a permit at one moment."""

    def __post_init__(self) -> None:
        if self.max_concurrent < 1:
            raise ValueError(f"max_concurrent is {self.max_concurrent}, must be at least 1")
        if not self.inference_wait_seconds >= 0:
            raise ValueError(f"inference_wait_seconds is {self.inference_wait_seconds}, must be at least 0")
        if self.prefill_chunk < self.max_concurrent:
            raise ValueError(
                f"prefill_chunk is {self.prefill_chunk}, must be at least max_concurrent "
                f"({self.max_concurrent}) so that every prompt advances in every step"
            )
        if self.event_queue < 1:
            raise ValueError(f"event_queue is {self.event_queue}, must be at least 1")
        if self.waiting_limit < 0:
            raise ValueError(f"waiting_limit is {self.waiting_limit}, must be at least 0")
