"""How a request can fail. Each message is one line that a client may see."""


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
    """The request can never run: it needs more positions than the engine has."""
