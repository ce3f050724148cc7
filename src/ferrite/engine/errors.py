"""How a request can fail. Each message is one line that a client may see."""

from typing import Literal


def one_line(error: BaseException) -> str:
    """Return what ``error`` says, or its type's name, in one line."""
    return " ".join(str(error).split()) or type(error).__name__


class EngineBusy(Exception):  # noqa: N818 - a state of the engine, not a fault
    """No permit in time, or the waiting line is full: come back later."""

    def __init__(self, message: str, retry_after_seconds: int) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        """At least 1; an estimate from how long recent requests held their permits."""


class EngineStopped(Exception):  # noqa: N818 - a state of the engine, not a fault
    """The engine takes no requests: draining, stopped or failed."""


class GenerationFailed(Exception):  # noqa: N818 - the public name of the outcome
    """An admitted request that could not go on; other requests are not concerned."""


class RequestTooLarge(Exception):  # noqa: N818 - the public name of the outcome
    """The request can never run: it needs more than the engine has."""

    def __init__(
        self, message: str, *, needed: int, limit: int, bound: Literal["context", "session", "store"]
    ) -> None:
        super().__init__(message)
        self.needed = needed
        """Prompt plus budget: positions, and KV blocks where the bound is the store."""
        self.limit = limit
        """What there is, in the same unit."""
        self.bound = bound
        """The limit that was passed: the model's context, one session's KV capacity, or all KV memory."""
