from collections.abc import Callable
from dataclasses import asdict

import pytest

from ferrite.telemetry import BatcherSnapshot, EngineMeters, Histogram, SpeculationStats

NOTHING = dict.fromkeys(BatcherSnapshot.__dataclass_fields__, 0)


def counters(meters: EngineMeters) -> dict[str, int]:
    """The counters that are not zero."""
    seen = asdict(meters.snapshot(queue_depth=0, kv_blocks_total=0, kv_blocks_free=0, kv_block_size=0))
    return {name: value for name, value in seen.items() if value}


def test_the_snapshot_has_the_specified_fields_in_order() -> None:
    assert list(NOTHING) == [
        "prefill_chunks",
        "prefill_tokens",
        "decode_steps",
        "queue_depth",
        "queue_rejected",
        "kv_blocks_total",
        "kv_blocks_free",
        "kv_block_size",
        "kv_rejected_too_large",
        "kv_rejected_context_length",
        "kv_blocks_peak",
        "aborted",
    ]


def test_gauges_go_through() -> None:
    seen = EngineMeters().snapshot(queue_depth=3, kv_blocks_total=40, kv_blocks_free=31, kv_block_size=16)
    gauges = {"queue_depth": 3, "kv_blocks_total": 40, "kv_blocks_free": 31, "kv_block_size": 16}
    assert asdict(seen) == NOTHING | gauges


@pytest.mark.parametrize(
    ("write", "counter"),
    [
        (EngineMeters.on_aborted, "aborted"),
        (EngineMeters.on_queue_rejected, "queue_rejected"),
        (EngineMeters.on_too_large, "kv_rejected_too_large"),
        (EngineMeters.on_context_exceeded, "kv_rejected_context_length"),
    ],
)
def test_each_event_moves_its_own_counter_only(write: Callable[[EngineMeters], None], counter: str) -> None:
    meters = EngineMeters()
    write(meters)
    write(meters)
    assert counters(meters) == {counter: 2}


def test_a_mixed_step_counts_chunks_rows_and_one_decode_step() -> None:
    meters = EngineMeters()
    meters.on_step(10.0, 0.25, prefill_chunks=2, prefill_rows=100, decode_rows=3)
    meters.on_step(10.5, 0.5, prefill_chunks=1, prefill_rows=28, decode_rows=3)
    assert counters(meters) == {"prefill_chunks": 3, "prefill_tokens": 128, "decode_steps": 2}
    assert observations(meters.batch_sequences) == (2, 5 + 4)
    assert observations(meters.step_seconds) == (2, 0.75)


def test_a_prefill_step_is_no_decode_step() -> None:
    meters = EngineMeters()
    meters.on_step(10.0, 0.5, prefill_chunks=1, prefill_rows=128, decode_rows=0)
    assert counters(meters) == {"prefill_chunks": 1, "prefill_tokens": 128}
    assert meters.prefill_tokens_per_second.rate(10.0) == pytest.approx(256.0)
    assert meters.decode_tokens_per_second.rate(10.0) is None


def test_a_decode_step_is_no_prefill() -> None:
    meters = EngineMeters()
    meters.on_step(10.0, 0.25, prefill_chunks=0, prefill_rows=0, decode_rows=4)
    assert counters(meters) == {"decode_steps": 1}
    assert meters.decode_tokens_per_second.rate(10.0) == pytest.approx(16.0)
    assert meters.decode_tokens_per_second.rate(20.0) == 0.0
    assert meters.prefill_tokens_per_second.rate(20.0) is None


def test_drafts_that_come_true_are_tokens_of_the_decode_rate() -> None:
    meters = EngineMeters()
    assert meters.speculation() == SpeculationStats(0, 0)
    meters.on_step(10.0, 0.25, prefill_chunks=0, prefill_rows=0, decode_rows=2)
    meters.on_draft(10.0, drafted=7, accepted=4)
    meters.on_draft(10.0, drafted=3, accepted=0)
    assert meters.speculation() == SpeculationStats(drafted_tokens=10, accepted_tokens=4)
    assert meters.decode_tokens_per_second.rate(10.0) == pytest.approx(24.0)
    assert observations(meters.batch_sequences) == (1, 2)


def test_the_peak_is_the_highest_reading() -> None:
    meters = EngineMeters()
    for held in (3, 9, 4, 0):
        meters.on_blocks_held(held)
    assert counters(meters) == {"kv_blocks_peak": 9}


def test_each_time_goes_to_its_histogram() -> None:
    meters = EngineMeters()
    meters.on_queue_wait(0.5)
    meters.on_first_token(0.25)
    meters.on_token(0.125)
    assert observations(meters.queue_wait_seconds) == (1, 0.5)
    assert observations(meters.ttft_seconds) == (1, 0.25)
    assert observations(meters.inter_token_seconds) == (1, 0.125)
    assert observations(meters.step_seconds) == observations(meters.batch_sequences) == (0, 0.0)
    assert counters(meters) == {}


def observations(histogram: Histogram) -> tuple[int, float]:
    seen = histogram.snapshot()
    return seen.count, seen.sum
