"""What the gate is to do."""

from dataclasses import dataclass

PROBES = ("error", "disconnect", "queue")
FINISHES = ("length", "stop_string", "end_token")


@dataclass(frozen=True, slots=True)
class GateSettings:
    """Which checks run, and how hard."""

    turns: int = 6
    max_tokens: int = 24
    """Budget of one turn."""
    prompt_cache_key: str | None = None
    require_finish: frozenset[str] = frozenset()
    """Of ``FINISHES``: what must have been seen."""
    probes: frozenset[str] = frozenset()
    """Of ``PROBES``: what runs."""
    require_probes: frozenset[str] = frozenset()
    """Of ``PROBES``: what must have run and passed."""
    settle_seconds: float = 10.0
    """How long the server may take to notice that a client has gone, and to be idle again."""
    patience_seconds: float = 20.0
    """How long a request that meets a busy server may be sent again: right behind one that was abandoned the
    only permit may still be taken."""
