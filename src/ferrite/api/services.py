"""What all routes of one server share."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ferrite.api.body import BodyMemory
from ferrite.api.config import ServerConfig
from ferrite.api.errors import busy
from ferrite.api.model import ServerState
from ferrite.api.prompts import PromptWorkers
from ferrite.telemetry import RequestRing, ServingStats

MAX_ARRIVING_BODIES = 32
"""Bodies of the largest size that may be arriving at one moment; of smaller ones, more."""
MAX_PREPARING = 64
"""Prompts that may be in preparation beyond those that the engine has room for."""
MAX_COUNTING = 16
"""Requests that only count, spell or render tokens; they take no place of those that generate."""


class Preparation:
    """Bounds the requests between their body and the engine, which hold memory and wait for workers."""

    def __init__(self, limit: int) -> None:
        self._free = limit

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold a place; raises 429 when there is none."""
        if self._free == 0:
            raise busy("Too many prompts are being prepared.", 1)
        self._free -= 1
        try:
            yield
        finally:
            self._free += 1


@dataclass(slots=True)
class TurnedAway:
    """Generation requests that were refused for want of a place before the engine saw them."""

    count: int = 0


@dataclass(frozen=True, slots=True)
class Services:
    """Made once per server, before its routes."""

    config: ServerConfig
    state: ServerState
    workers: PromptWorkers
    """They check, render and tokenize."""
    bodies: BodyMemory
    preparation: Preparation
    counting: Preparation = field(default_factory=lambda: Preparation(MAX_COUNTING))
    serving: ServingStats = field(default_factory=lambda: ServingStats(RequestRing()))
    """Of generation requests; written on the event loop only."""
    refused: Counter[int] = field(default_factory=Counter)
    """Generation requests that the engine never took, by the status of their answer."""
    turned_away: TurnedAway = field(default_factory=TurnedAway)
    clock: Callable[[], float] = time.monotonic
    """Reads seconds; the engine's clock too."""
    started: float = field(default_factory=time.monotonic)
    """Reading of ``clock``."""


def build_services(config: ServerConfig, state: ServerState) -> Services:
    """Return what the routes of a server with ``state.model`` share."""
    return Services(
        config=config,
        state=state,
        workers=PromptWorkers(),
        bodies=BodyMemory(MAX_ARRIVING_BODIES * config.max_body_bytes),
        preparation=Preparation(config.sessions + config.waiting_limit + MAX_PREPARING),
    )
