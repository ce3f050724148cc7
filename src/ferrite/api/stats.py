"""What operators read: ``/admin/stats``, ``/v1/stats`` and ``/v1/requests``. Reading changes nothing.

A value that nothing has measured is null, also all that only a loaded model has.
"""

from dataclasses import replace
from urllib.parse import parse_qsl

import msgspec

from ferrite.api.errors import invalid
from ferrite.api.memory import MemoryCeiling, resident_bytes
from ferrite.api.model import LoadedModel
from ferrite.api.services import Services
from ferrite.kv.prefix import PrefixStats
from ferrite.telemetry import MAX_PAGE, BatcherSnapshot, Page, Percentiles, RequestRing, SpeculationStats

_LARGEST_CURSOR = 2**63 - 1


class RingSummary(msgspec.Struct):
    """The ring of finished requests; its rows are at ``/v1/requests``."""

    recorded_total: int
    held: int
    oldest: int | None
    """Sequence number of the oldest row that is held."""


class MemoryAnswer(msgspec.Struct):
    """The most memory that the server can take and its parts, in bytes."""

    ceiling_bytes: int
    model_bytes: int
    session_bytes: int
    """KV cache of one session at its full capacity."""
    sessions: int
    prefix_cache_bytes: int
    server_bytes: int
    """The process without weights and KV cache."""


class AdminMemory(msgspec.Struct):
    """The ceiling, and what is in use."""

    ceiling: MemoryAnswer | None
    """Null without a model."""
    resident_bytes: int | None


class AdminStats(msgspec.Struct):
    """``GET /admin/stats``."""

    batcher: BatcherSnapshot | None
    requests: RingSummary
    prefix_cache: PrefixStats | None
    """Null when the cache is off."""
    memory: AdminMemory


class KvAnswer(msgspec.Struct):
    """Occupancy of the KV cache, in blocks."""

    block_size: int
    """Positions of a block."""
    blocks_total: int
    """0 when no budget is configured (``--kv-backend vec``)."""
    blocks_free: int
    blocks_peak: int


class ServingAnswer(msgspec.Struct):
    """``GET /v1/stats``."""

    model: str
    ready: bool
    uptime_seconds: float
    in_flight: int
    """Requests that the engine has taken and that have not ended."""
    active: int | None
    """Generations that run."""
    queued: int | None
    """Generations that wait in line."""
    completed: int
    aborted: int
    """Requests that were cancelled: the client left, the time limit passed, the server went down."""
    failed: int
    refused: int
    """Generation requests that never reached the engine: wrong ones, and those of a full server."""
    prompt_tokens_total: int
    completion_tokens_total: int
    decode_tokens_per_second: float | None
    prefill_tokens_per_second: float | None
    latency_ms: Percentiles | None
    """Of the completed requests that the ring holds."""
    ttft_ms: Percentiles | None
    kv: KvAnswer | None
    prefix_cache: PrefixStats | None
    speculation: SpeculationStats | None
    """Null when it is off."""


def memory_answer(memory: MemoryCeiling | None) -> MemoryAnswer | None:
    """Return the ceiling as JSON has it."""
    if memory is None:
        return None
    return MemoryAnswer(
        ceiling_bytes=memory.total_bytes,
        model_bytes=memory.model_bytes,
        session_bytes=memory.session_bytes,
        sessions=memory.sessions,
        prefix_cache_bytes=memory.prefix_cache_bytes,
        server_bytes=memory.server_bytes,
    )


def admin_stats(services: Services) -> AdminStats:
    """Return the engine's counters, the state of the ring and of the prefix cache, and the memory ceiling."""
    model = services.state.model
    return AdminStats(
        batcher=batcher_snapshot(services),
        requests=_ring_summary(services.serving.ring),
        prefix_cache=_prefix_stats(model),
        memory=AdminMemory(None if model is None else memory_answer(model.memory), resident_bytes()),
    )


def batcher_snapshot(services: Services) -> BatcherSnapshot | None:
    """Return the engine's counters; what was refused on the way to its queue counts as refused by it."""
    model = services.state.model
    if model is None:
        return None
    snapshot = model.engine.batcher()
    return replace(snapshot, queue_rejected=snapshot.queue_rejected + services.turned_away.count)


def serving_stats(services: Services) -> ServingAnswer:
    """Return what the server is doing, has done, and how fast."""
    model, serving, now = services.state.model, services.serving, services.clock()
    return ServingAnswer(
        model=services.config.model_id,
        ready=services.state.unready_reason is None,
        uptime_seconds=now - services.started,
        in_flight=serving.in_flight,
        active=None if model is None else model.engine.active,
        queued=None if model is None else model.engine.waiting,
        completed=serving.completed,
        aborted=serving.aborted,
        failed=serving.failed,
        refused=services.refused.total(),
        prompt_tokens_total=serving.prompt_tokens_total,
        completion_tokens_total=serving.completion_tokens_total,
        decode_tokens_per_second=(
            None if model is None else model.engine.meters.decode_tokens_per_second.rate(now)
        ),
        prefill_tokens_per_second=(
            None if model is None else model.engine.meters.prefill_tokens_per_second.rate(now)
        ),
        latency_ms=serving.latency_ms(),
        ttft_ms=serving.ttft_ms(),
        kv=None if model is None else _kv_answer(model.engine.batcher()),
        prefix_cache=_prefix_stats(model),
        speculation=None if model is None else model.engine.speculation_stats(),
    )


def request_page(services: Services, query: bytes) -> Page:
    """Return the rows of finished requests that ``query`` asks for; raises 400 naming the parameter."""
    asked = _whole_numbers(query, {"since": (0, _LARGEST_CURSOR), "limit": (1, MAX_PAGE)})
    return services.serving.ring.since(asked.get("since", 0), asked.get("limit", MAX_PAGE))


def _whole_numbers(query: bytes, known: dict[str, tuple[int, int]]) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name not in known:
            names = " and ".join(f"`{each}`" for each in known)
            raise invalid(f"Unknown query parameter `{name[:64]}`; there are {names}.", name[:64])
        if name in numbers:
            raise invalid(f"The query parameter `{name}` is given twice.", name)
        low, high = known[name]
        digits = value.isascii() and value.isdigit() and len(value) <= len(str(high))
        if not digits or not low <= int(value) <= high:
            raise invalid(f"`{name}` must be a whole number from {low} to {high}.", name)
        numbers[name] = int(value)
    return numbers


def _ring_summary(ring: RequestRing) -> RingSummary:
    rows = ring.rows()
    return RingSummary(ring.recorded_total, len(rows), rows[0].sequence if rows else None)


def _prefix_stats(model: LoadedModel | None) -> PrefixStats | None:
    return None if model is None else model.engine.prefix_stats()


def _kv_answer(batcher: BatcherSnapshot) -> KvAnswer:
    return KvAnswer(
        batcher.kv_block_size, batcher.kv_blocks_total, batcher.kv_blocks_free, batcher.kv_blocks_peak
    )
