"""``/metrics``: our own meters in Prometheus' text format. Reading changes nothing.

A value that nothing has measured is an absent sample: its family is listed and empty.
"""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from ferrite.api.memory import resident_bytes
from ferrite.api.services import Services
from ferrite.api.stats import batcher_snapshot
from ferrite.telemetry import HistogramSnapshot

CONTENT_TYPE = CONTENT_TYPE_LATEST

Table = Mapping[str, tuple[str, str]]
"""Field of a snapshot → name behind ``ferrite_``, and help."""

BATCHER_COUNTERS: Table = MappingProxyType(
    {
        "prefill_chunks": ("prefill_chunks", "Prompt chunks evaluated."),
        "prefill_tokens": ("prefill_tokens", "Prompt tokens evaluated."),
        "decode_steps": ("decode_steps", "Steps that had a decoding sequence, however many."),
        "queue_rejected": ("queue_rejected", "Requests refused because no place was free."),
        "kv_rejected_too_large": (
            "kv_rejected_too_large",
            "Requests refused because they need more than the whole KV budget.",
        ),
        "kv_rejected_context_length": (
            "kv_rejected_context_length",
            "Requests refused because they ask for more context than one request may have.",
        ),
        "aborted": ("aborted", "Running generations that the scheduler stopped: they were cancelled."),
    }
)
BATCHER_GAUGES: Table = MappingProxyType(
    {
        "queue_depth": ("queue_depth", "Generations that wait for admission."),
        "kv_blocks_total": ("kv_blocks", "KV blocks of the budget; 0 when none is configured."),
        "kv_blocks_free": ("kv_blocks_free", "KV blocks that no request in flight has reserved."),
        "kv_block_size": ("kv_block_size_tokens", "Positions of a KV block."),
        "kv_blocks_peak": ("kv_blocks_peak", "Most KV blocks that running requests held at one moment."),
    }
)
PREFIX_COUNTERS: Table = MappingProxyType(
    {
        "hits": ("prefix_cache_hits", "Lookups that found a prefix."),
        "misses": ("prefix_cache_misses", "Lookups that found none."),
        "evictions": ("prefix_cache_evictions", "Entries dropped to make room."),
        "reused_tokens": ("prefix_cache_reused_tokens", "Prompt tokens restored instead of evaluated."),
    }
)
SPECULATION_COUNTERS: Table = MappingProxyType(
    {
        "drafted_tokens": ("drafted_tokens", "Tokens evaluated before anybody had sampled them."),
        "accepted_tokens": ("accepted_draft_tokens", "Drafted tokens that were sampled then."),
    }
)
PREFIX_GAUGES: Table = MappingProxyType(
    {
        "entries": ("prefix_cache_entries", "Entries held."),
        "bytes": ("prefix_cache_bytes", "Logical bytes of the entries held."),
        "max_entries": ("prefix_cache_max_entries", "Most entries held."),
        "max_bytes": ("prefix_cache_max_bytes", "Most logical bytes of the entries held."),
    }
)


RATES: Mapping[str, str] = MappingProxyType(
    {
        "prefill_tokens_per_second": "Prompt tokens evaluated per second, over the last 5 seconds.",
        "decode_tokens_per_second": "Tokens generated per second, over the last 5 seconds.",
    }
)
HISTOGRAMS: Table = MappingProxyType(
    {
        "ttft_seconds": ("time_to_first_token_seconds", "From submission to the first token."),
        "inter_token_seconds": ("inter_token_latency_seconds", "From one token of a stream to its next."),
        "queue_wait_seconds": ("queue_wait_seconds", "From submission to the permit."),
        "step_seconds": ("step_seconds", "Duration of a step."),
        "batch_sequences": ("batch_size_sequences", "Sequences that a step advanced."),
    }
)


def exposition(services: Services) -> bytes:
    """Return the text of every metric at this moment."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Meters(services))
    return generate_latest(registry)


class _Meters(Collector):
    def __init__(self, services: Services) -> None:
        self._services = services

    def collect(self) -> Iterable[Metric]:
        yield from _server(self._services)
        yield from _serving(self._services)
        yield from _engine(self._services)


def _server(services: Services) -> Iterator[Metric]:
    model = services.state.model
    yield _gauge("ready", "1 when the server can generate.", int(services.state.unready_reason is None))
    yield _gauge("uptime_seconds", "Time since the start.", services.clock() - services.started)
    info = GaugeMetricFamily(
        "ferrite_model_info", "The loaded model.", labels=("model", "architecture", "quantisation")
    )
    length = None
    parts: dict[str, int] = {}
    if model is not None:
        info.add_metric((model.id, model.architecture, model.quantisation), 1)
        length = model.context_length
        parts = {} if model.memory is None else model.memory.parts()
    yield info
    yield _gauge("context_length_tokens", "Positions that one request may use.", length)
    ceiling = GaugeMetricFamily(
        "ferrite_memory_ceiling_bytes", "Most memory that a part can take.", labels=("part",)
    )
    for part, n_bytes in parts.items():
        ceiling.add_metric((part,), n_bytes)
    yield ceiling
    yield _gauge("resident_memory_bytes", "Memory of the process in RAM.", resident_bytes())


def _serving(services: Services) -> Iterator[Metric]:
    serving = services.serving
    yield _gauge(
        "requests_in_flight", "Requests that the engine has taken and that have not ended.", serving.in_flight
    )
    yield _counter("requests_completed", "Requests that completed.", serving.completed)
    yield _counter("requests_aborted", "Requests that were cancelled, running or waiting.", serving.aborted)
    yield _counter("requests_failed", "Requests that ended with an error.", serving.failed)
    refused = CounterMetricFamily(
        "ferrite_requests_refused", "Generation requests that never reached the engine.", labels=("status",)
    )
    for status, count in sorted(services.refused.items()):
        refused.add_metric((str(status),), count)
    yield refused
    yield _counter("prompt_tokens", "Prompt tokens of requests that ended.", serving.prompt_tokens_total)
    yield _counter(
        "completion_tokens", "Completion tokens of requests that ended.", serving.completion_tokens_total
    )
    yield _histogram(
        "request_duration_seconds",
        "From arrival to the end of the answer, of requests that completed.",
        serving.end_to_end_seconds.snapshot(),
    )


def _engine(services: Services) -> Iterator[Metric]:
    engine = None if services.state.model is None else services.state.model.engine
    batcher = batcher_snapshot(services)
    prefix = None if engine is None else engine.prefix_stats()
    speculation = None if engine is None else engine.speculation_stats()
    meters = None if engine is None else engine.meters
    now = services.clock()
    for source, counters, gauges in (
        (batcher, BATCHER_COUNTERS, BATCHER_GAUGES),
        (prefix, PREFIX_COUNTERS, PREFIX_GAUGES),
        (speculation, SPECULATION_COUNTERS, {}),
    ):
        for field, (name, text) in counters.items():
            yield _counter(name, text, None if source is None else getattr(source, field))
        for field, (name, text) in gauges.items():
            yield _gauge(name, text, None if source is None else getattr(source, field))
    yield _gauge("requests_active", "Generations that run.", None if engine is None else engine.active)
    for name, text in RATES.items():
        yield _gauge(name, text, None if meters is None else getattr(meters, name).rate(now))
    for field, (name, text) in HISTOGRAMS.items():
        yield _histogram(name, text, None if meters is None else getattr(meters, field).snapshot())


def _counter(name: str, text: str, value: float | None) -> Metric:
    return CounterMetricFamily(f"ferrite_{name}", text, value)


def _gauge(name: str, text: str, value: float | None) -> Metric:
    return GaugeMetricFamily(f"ferrite_{name}", text, value)


def _histogram(name: str, text: str, snapshot: HistogramSnapshot | None) -> Metric:
    family = HistogramMetricFamily(f"ferrite_{name}", text)
    if snapshot is not None:
        counts = zip(map(floatToGoString, snapshot.bounds), snapshot.cumulative, strict=True)
        family.add_metric([], [(bound, float(count)) for bound, count in counts], snapshot.sum)
    return family
