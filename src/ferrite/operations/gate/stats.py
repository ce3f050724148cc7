"""The server's own counters, as far as it tells them."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import msgspec

from ferrite.operations.client import Client


@dataclass(frozen=True, slots=True)
class Counters:
    """One reading of ``/v1/stats`` and ``/admin/stats``; None where the server does not say."""

    in_flight: int | None = None
    completed: int | None = None
    aborted: int | None = None
    """Requests that ended because their client had gone."""
    scheduler_aborted: int | None = None
    """Requests that the scheduler really stopped."""
    queue_depth: int | None = None
    queue_rejected: int | None = None
    prefill_tokens: int | None = None
    decode_steps: int | None = None
    kv_blocks_free: int | None = None
    prefix_cache: bool | None = None
    """Whether the server reuses prefixes."""

    def evidence(self) -> dict[str, Any]:
        """Return what is known, for the proof log."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in named.items() if value is not None}


async def read_counters(client: Client) -> Counters:
    """Read both routes; raises ``TransportError`` when the server does not answer at all."""
    return counters_of(await _object(client, "/v1/stats"), await _object(client, "/admin/stats"))


def counters_of(stats: Mapping[str, Any], admin: Mapping[str, Any]) -> Counters:
    """Pick the counters from the two answers."""
    batcher = admin.get("batcher", admin)
    if not isinstance(batcher, Mapping):
        batcher = {}
    return Counters(
        in_flight=_count(stats, "in_flight"),
        completed=_count(stats, "completed"),
        aborted=_count(stats, "aborted"),
        scheduler_aborted=_count(batcher, "aborted"),
        queue_depth=_count(batcher, "queue_depth"),
        queue_rejected=_count(batcher, "queue_rejected"),
        prefill_tokens=_count(batcher, "prefill_tokens"),
        decode_steps=_count(batcher, "decode_steps"),
        kv_blocks_free=_count(batcher, "kv_blocks_free") if _count(batcher, "kv_blocks_total") else None,
        prefix_cache=stats["prefix_cache"] is not None if "prefix_cache" in stats else None,
    )


async def _object(client: Client, path: str) -> Mapping[str, Any]:
    reply = await client.get(path)
    try:
        value = msgspec.json.decode(reply.body) if reply.status == 200 else None
    except msgspec.MsgspecError:
        value = None
    return value if isinstance(value, dict) else {}


def _count(values: Mapping[str, Any], name: str) -> int | None:
    value = values.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
