"""``/metrics``: always parsable, only work moves it, and its sums are what the clients got."""

import dataclasses
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.parser import text_string_to_metric_families

from ferrite.api.memory import MemoryCeiling
from ferrite.api.metrics import (
    BATCHER_COUNTERS,
    BATCHER_GAUGES,
    PREFIX_COUNTERS,
    PREFIX_GAUGES,
    SPECULATION_COUNTERS,
)
from ferrite.engine import EngineConfig
from ferrite.kv import PrefixStats
from ferrite.telemetry import BatcherSnapshot, SpeculationStats
from tests.api.support import (
    WAIT_SECONDS,
    Running,
    Script,
    batching,
    chat_body,
    completion_body,
    eventually,
    gated_server,
    prefix_cache,
    running_server,
)
from tests.engine.fakes import FreeDrafts

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MOVING = {"ferrite_uptime_seconds", "ferrite_resident_memory_bytes"}
"""What moves without work."""

Samples = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(http: httpx.Client) -> tuple[Samples, dict[str, str]]:
    """Return every sample, and the type of every family."""
    answer = http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == CONTENT_TYPE_LATEST
    samples: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    types: dict[str, str] = {}
    for family in text_string_to_metric_families(answer.text):
        assert family.name.startswith("ferrite_")
        assert family.documentation
        assert family.name not in types
        assert f"# TYPE {family.name}" in answer.text
        types[family.name] = family.type
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in samples
            samples[key] = sample.value
    return samples, types


def values(http: httpx.Client) -> dict[str, float]:
    """Return the samples without labels."""
    return {name: value for (name, labels), value in scrape(http)[0].items() if not labels}


def steady(samples: Samples) -> Samples:
    return {key: value for key, value in samples.items() if key[0] not in MOVING}


def test_without_a_model_the_families_are_there_and_empty() -> None:
    with running_server(load=False) as running, running.client() as http:
        samples, types = scrape(http)
    with running_server(**prefix_cache()) as running, running.client() as http:
        assert scrape(http)[1] == types
    names = {name for name, _ in samples}
    assert samples["ferrite_ready", ()] == 0
    assert "ferrite_decode_steps_total" not in names
    assert "ferrite_step_seconds_count" not in names
    assert not any(name.startswith("ferrite_prefix_cache") for name in names)
    assert set(types.values()) == {"counter", "gauge", "histogram"}


def test_before_any_request_what_was_not_measured_is_absent() -> None:
    with running_server() as running, running.client() as http:
        shown = values(http)
        assert shown["ferrite_ready"] == 1
        assert shown["ferrite_context_length_tokens"] == 512
        assert shown["ferrite_decode_steps_total"] == 0
        assert "ferrite_decode_tokens_per_second" not in shown
        http.post(CHAT, json=chat_body())
        assert values(http)["ferrite_decode_tokens_per_second"] > 0


def test_every_counter_of_the_snapshots_is_a_metric() -> None:
    for snapshot, tables in (
        (BatcherSnapshot, (BATCHER_COUNTERS, BATCHER_GAUGES)),
        (PrefixStats, (PREFIX_COUNTERS, PREFIX_GAUGES)),
        (SpeculationStats, (SPECULATION_COUNTERS,)),
    ):
        fields = [field for table in tables for field in table]
        assert sorted(fields) == sorted(field.name for field in dataclasses.fields(snapshot))


def test_drafts_are_counted_where_they_are_made() -> None:
    script = Script("again and " * 12)
    for speculation in ("off", "ngram"):
        engine = EngineConfig(speculation=speculation)
        with running_server(script.runner(), engine=engine, speculate=speculation) as running:
            if speculation == "ngram":
                running.engine._batch._speculator._times = FreeDrafts()  # type: ignore[union-attr]
            with running.client() as http:
                answer = http.post(
                    COMPLETIONS, json=completion_body("again and again and", max_tokens=100)
                ).json()
                assert answer["usage"]["completion_tokens"] == 100
                shown, counted = http.get("/v1/stats").json()["speculation"], values(http)
        if speculation == "off":
            assert shown is None
            assert "ferrite_drafted_tokens_total" not in counted
        else:
            assert shown["drafted_tokens"] >= shown["accepted_tokens"] > 20
            assert counted["ferrite_drafted_tokens_total"] == shown["drafted_tokens"]
            assert counted["ferrite_accepted_draft_tokens_total"] == shown["accepted_tokens"]


def test_two_readers_see_the_same_and_reading_moves_nothing() -> None:
    with running_server(**prefix_cache()) as running, running.client() as http, running.client() as other:
        for _ in range(2):
            http.post(COMPLETIONS, json=completion_body("a prompt", prompt_cache_key="k"))
        # Rates fall with time, so they are compared with nothing.
        rates = {"ferrite_decode_tokens_per_second", "ferrite_prefill_tokens_per_second"}
        first, _ = scrape(http)
        for path in ("/health", "/v1/stats", "/admin/stats", "/v1/requests", "/metrics", "/v1/models"):
            other.get(path)
        second, _ = scrape(other)
        assert {key: value for key, value in steady(first).items() if key[0] not in rates} == {
            key: value for key, value in steady(second).items() if key[0] not in rates
        }


def test_counters_only_grow() -> None:
    with running_server(Script("ok").runner(), **prefix_cache()) as running, running.client() as http:
        before, types = scrape(http)
        for number in range(4):
            http.post(COMPLETIONS, json=completion_body(f"{number}", prompt_cache_key="k"))
            http.post(CHAT, json=chat_body(n=0))
            after, _ = scrape(http)
            for (name, labels), value in before.items():
                family = name.removesuffix("_total").removesuffix("_bucket").removesuffix("_count")
                if types.get(family) in ("counter", "histogram"):
                    assert after[name, labels] >= value
            before = after
        assert before["ferrite_requests_refused_total", (("status", "400"),)] == 4


def test_the_sums_are_the_usage_that_clients_got() -> None:
    with gated_server(**batching(8, 8)) as (running, gate), running.client() as http:
        bodies = [completion_body("p" * (number + 1), max_tokens=5 + number) for number in range(8)]
        with ThreadPoolExecutor(8) as pool:
            answers = [pool.submit(http.post, COMPLETIONS, json=body) for body in bodies]
            eventually(lambda: values(http)["ferrite_requests_active"] == 8)
            during = values(http)
            assert during["ferrite_requests_in_flight"] == 8
            assert during["ferrite_requests_completed_total"] == 0
            gate.open()
            usages = [answer.result(WAIT_SECONDS).json()["usage"] for answer in answers]
        after = values(http)
        prompt = sum(usage["prompt_tokens"] for usage in usages)
        completion = sum(usage["completion_tokens"] for usage in usages)
        assert after["ferrite_requests_in_flight"] == 0
        assert after["ferrite_requests_completed_total"] == 8
        assert after["ferrite_prompt_tokens_total"] == after["ferrite_prefill_tokens_total"] == prompt
        assert after["ferrite_completion_tokens_total"] == completion
        assert after["ferrite_time_to_first_token_seconds_count"] == 8
        assert after["ferrite_queue_wait_seconds_count"] == 8
        assert after["ferrite_request_duration_seconds_count"] == 8
        assert after["ferrite_inter_token_latency_seconds_count"] == completion - 8
        assert after["ferrite_step_seconds_count"] == len(running.runner.batches)
        assert after["ferrite_batch_size_sequences_sum"] == sum(
            len(batch.block_tables) for batch in running.runner.batches
        )


def test_histograms_are_cumulative() -> None:
    with running_server() as running, running.client() as http:
        http.post(CHAT, json=chat_body())
        samples, types = scrape(http)
        for family, kind in types.items():
            if kind == "histogram":
                buckets = [
                    (float(labels[0][1]), value)
                    for (name, labels), value in samples.items()
                    if name == f"{family}_bucket"
                ]
                counts = [value for _, value in sorted(buckets)]
                assert counts == sorted(counts)
                assert counts[-1] == samples[f"{family}_count", ()]


@pytest.mark.parametrize("api_key", [None, "k"])
def test_they_are_open_and_name_the_model(api_key: str | None) -> None:
    memory = MemoryCeiling(1000, 200, 3, 64, 16)
    with running_server(api_key=api_key, memory=memory) as running:
        with httpx.Client(base_url=running.url, trust_env=False, verify=False) as anonymous:
            samples, _ = scrape(anonymous)
        labels = (("architecture", "llama"), ("model", "maker/tiny-model"), ("quantisation", "Q4_1"))
        assert samples["ferrite_model_info", labels] == 1
        parts = {
            key[1][0][1]: value for key, value in samples.items() if key[0] == "ferrite_memory_ceiling_bytes"
        }
        assert parts == {"model": 1000, "sessions": 600, "prefix_cache": 64, "server": 16}


def counted(running: Running, body: dict[str, Any]) -> tuple[int, dict[str, float]]:
    with running.client() as http:
        return http.post(COMPLETIONS, json=body).status_code, values(http)


def test_refusals_by_size_are_counted() -> None:
    options = batching(2, 2, session_positions=100)
    with running_server(Script("ok").runner(), **options) as running:
        status, shown = counted(running, completion_body([65] * 95, max_tokens=6))
        assert (status, shown["ferrite_kv_rejected_context_length_total"]) == (400, 1)
        status, shown = counted(running, completion_body([65] * 220, max_tokens=6))
        assert (status, shown["ferrite_kv_rejected_too_large_total"]) == (400, 1)
        assert shown["ferrite_kv_blocks"] == shown["ferrite_kv_blocks_free"] == 50
        assert shown["ferrite_kv_block_size_tokens"] == 4
