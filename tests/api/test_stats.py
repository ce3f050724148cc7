"""``/admin/stats``, ``/v1/stats``, ``/v1/requests``: without a model, after work, and page by page."""

import dataclasses
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from ferrite.api.memory import MemoryCeiling
from ferrite.telemetry import BatcherSnapshot
from tests.api.support import (
    MODEL_ID,
    Running,
    Script,
    chat_body,
    completion_body,
    eventually,
    gated_server,
    running_server,
)
from tests.engine.fakes import FakeRunner

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture
def server() -> Iterator[Running]:
    with running_server(Script("ok").runner(context_length=512)) as running:
        yield running


@pytest.fixture
def http(server: Running) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def rows(http: httpx.Client) -> list[dict[str, Any]]:
    answer: list[dict[str, Any]] = http.get("/v1/requests").json()["rows"]
    return answer


def test_without_a_model_what_it_would_measure_is_null() -> None:
    with running_server(load=False) as running, running.client() as http:
        shown = http.get("/v1/stats").json()
        assert shown.pop("uptime_seconds") > 0
        assert shown == {
            "model": MODEL_ID,
            "ready": False,
            "in_flight": 0,
            "active": None,
            "queued": None,
            "completed": 0,
            "aborted": 0,
            "failed": 0,
            "refused": 0,
            "prompt_tokens_total": 0,
            "completion_tokens_total": 0,
            "decode_tokens_per_second": None,
            "prefill_tokens_per_second": None,
            "latency_ms": None,
            "ttft_ms": None,
            "kv": None,
            "prefix_cache": None,
            "speculation": None,
        }
        admin = http.get("/admin/stats").json()
        assert admin["memory"].pop("resident_bytes") > 1 << 20
        assert admin == {
            "batcher": None,
            "requests": {"recorded_total": 0, "held": 0, "oldest": None},
            "prefix_cache": None,
            "memory": {"ceiling": None},
        }
        page = http.get("/v1/requests").json()
        assert page == {"rows": [], "missed": 0, "next_cursor": 0, "recorded_total": 0}
        assert http.post(CHAT, json=chat_body()).status_code == 503
        assert http.get("/v1/stats").json()["refused"] == 1


def test_before_any_request_nothing_is_measured(http: httpx.Client) -> None:
    shown = http.get("/v1/stats").json()
    assert shown["ready"] is True
    assert shown["kv"] == {"block_size": 4, "blocks_total": 0, "blocks_free": 0, "blocks_peak": 0}
    for name in ("decode_tokens_per_second", "prefill_tokens_per_second", "latency_ms", "ttft_ms"):
        assert shown[name] is None
    assert (shown["active"], shown["queued"]) == (0, 0)


def test_work_shows(http: httpx.Client) -> None:
    usages = [http.post(COMPLETIONS, json=completion_body("abc")).json()["usage"] for _ in range(3)]
    shown = http.get("/v1/stats").json()
    assert (shown["completed"], shown["in_flight"], shown["failed"], shown["aborted"]) == (3, 0, 0, 0)
    assert shown["prompt_tokens_total"] == sum(usage["prompt_tokens"] for usage in usages) == 9
    assert shown["completion_tokens_total"] == sum(usage["completion_tokens"] for usage in usages) == 9
    assert shown["decode_tokens_per_second"] > 0
    assert shown["prefill_tokens_per_second"] > 0
    assert 0 < shown["ttft_ms"]["p50"] <= shown["ttft_ms"]["p95"]
    assert 0 < shown["latency_ms"]["p50"] <= shown["latency_ms"]["p95"]
    admin = http.get("/admin/stats").json()
    assert list(admin["batcher"]) == [field.name for field in dataclasses.fields(BatcherSnapshot)]
    assert admin["batcher"]["prefill_tokens"] == 9
    assert admin["batcher"]["prefill_chunks"] == 3
    assert admin["batcher"]["decode_steps"] == 6
    assert admin["requests"] == {"recorded_total": 3, "held": 3, "oldest": 0}


def test_a_row_of_a_finished_request(http: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="ferrite"):
        answer = http.post(
            CHAT, json=chat_body(stream=True, max_tokens=2), headers={"x-request-id": "mine-1"}
        )
        # The line is written behind the last byte.
        eventually(lambda: "request" in caplog.messages)
    assert '"request_id":"mine-1"' in answer.text.split("\n")[0]
    logged = [record.__dict__["fields"] for record in caplog.records if record.getMessage() == "request"]
    assert [fields["request_id"] for fields in logged] == ["mine-1"]
    (row,) = rows(http)
    assert next(iter(row)) == "sequence"
    times = {name: row.pop(name) for name in ("queue_ms", "prefill_ms", "decode_ms", "ttft_ms", "total_ms")}
    assert row.pop("started_at") > 1_700_000_000
    assert row == {
        "request_id": "mine-1",
        "endpoint": CHAT,
        "prompt_tokens": len("user:Hi;"),
        "cached_tokens": 0,
        "completion_tokens": 2,
        "finish_reason": "length",
        "error": None,
        "streamed": True,
        "cancelled": False,
        "sequence": 0,
    }
    assert all(value >= 0 for value in times.values())
    assert times["ttft_ms"] == times["queue_ms"] + times["prefill_ms"]
    assert times["total_ms"] >= times["ttft_ms"] + times["decode_ms"]


def test_what_is_refused_has_no_row(http: httpx.Client) -> None:
    assert http.post(CHAT, json=chat_body(n=0)).status_code == 400
    assert http.post(CHAT, json=chat_body("refuse me")).status_code == 400
    assert http.post(COMPLETIONS, json=completion_body([65] * 600)).status_code == 400
    assert http.post(CHAT, content=b"{", headers={"content-type": "application/json"}).status_code == 400
    assert http.get("/v1/nope").status_code == 404
    assert rows(http) == []
    shown = http.get("/v1/stats").json()
    assert (shown["refused"], shown["failed"], shown["completed"]) == (4, 0, 0)


def test_a_completion_of_nothing_has_a_row_without_phases(http: httpx.Client) -> None:
    usage = http.post(COMPLETIONS, json=completion_body("abc", max_tokens=0)).json()["usage"]
    (row,) = rows(http)
    assert (row["prompt_tokens"], row["completion_tokens"], row["finish_reason"]) == (3, 0, "length")
    assert usage["prompt_tokens"] == 3
    assert (row["queue_ms"], row["prefill_ms"], row["decode_ms"]) == (None, None, None)
    assert row["total_ms"] > 0


def failing(runner: FakeRunner) -> FakeRunner:
    def fail(_: object) -> None:
        if len(runner.batches) == 3:
            raise RuntimeError("out of luck")

    runner.before_step = fail
    return runner


@pytest.mark.parametrize("stream", [False, True])
def test_a_failed_request_has_its_error_in_the_row(*, stream: bool) -> None:
    with running_server(failing(Script("abcdefgh").runner())) as running, running.client() as http:
        http.post(CHAT, json=chat_body(stream=stream))
        (row,) = rows(http)
        assert (row["error"], row["cancelled"], row["finish_reason"]) == ("internal_error", False, None)
        assert (row["completion_tokens"], row["decode_ms"]) == (2, None)
        assert row["prefill_ms"] is not None
        shown = http.get("/v1/stats").json()
        assert (shown["failed"], shown["completed"], shown["in_flight"]) == (1, 0, 0)
        assert shown["latency_ms"] is None


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_out_of_time_is_cancelled(*, stream: bool) -> None:
    with gated_server(request_timeout_ms=100) as (running, _), running.client() as http:
        http.post(CHAT, json=chat_body(stream=stream))
        (row,) = rows(http)
        assert (row["error"], row["cancelled"], row["finish_reason"]) == ("request_timeout", True, None)
        assert row["total_ms"] > 0
        assert http.get("/v1/stats").json()["aborted"] == 1


def test_a_poller_misses_nothing_without_being_told(http: httpx.Client) -> None:
    seen, missed, cursor = [], 0, 0
    for burst in (3, 1, 0, 210, 2):
        for _ in range(burst):
            http.post(COMPLETIONS, json=completion_body("a", max_tokens=1))
        while True:
            page = http.get("/v1/requests", params={"since": cursor, "limit": 60}).json()
            seen += [row["sequence"] for row in page["rows"]]
            missed += page["missed"]
            cursor = page["next_cursor"]
            if cursor == page["recorded_total"]:
                break
    assert len(seen) + missed == page["recorded_total"] == 216
    assert missed == 10
    assert seen == sorted(set(seen))
    assert http.get("/v1/requests").json()["missed"] == 16


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("since=-1", "since"),
        ("since=x", "since"),
        ("since=1.5", "since"),
        ("since=%D9%A3", "since"),
        ("since=", "since"),
        ("since", "since"),
        (f"since={2**63}", "since"),
        (f"since={'9' * 5000}", "since"),
        ("limit=0", "limit"),
        ("limit=201", "limit"),
        ("limit=1&limit=2", "limit"),
        ("cursor=3", "cursor"),
        ("since=0&Limit=2", "Limit"),
        ("%ff=1", "\ufffd"),
    ],
)
def test_a_bad_query_is_refused_by_name(http: httpx.Client, query: str, param: str) -> None:
    answer = http.get(f"/v1/requests?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_a_cursor_of_another_life_is_an_empty_page(http: httpx.Client) -> None:
    assert http.get(f"/v1/requests?since={2**63 - 1}&limit=200").json() == {
        "rows": [],
        "missed": 0,
        "next_cursor": 0,
        "recorded_total": 0,
    }


def test_reading_changes_nothing(http: httpx.Client) -> None:
    http.post(CHAT, json=chat_body())
    paths = ("/admin/stats", "/v1/requests")
    before = [http.get(path).json() for path in paths]
    for path in ("/v1/stats", "/metrics", "/health", *paths):
        http.get(path)
    after = [http.get(path).json() for path in paths]
    for answer in (before[0], after[0]):
        answer["memory"].pop("resident_bytes")
    assert after == before


def test_the_memory_ceiling_is_shown() -> None:
    ceiling = MemoryCeiling(1000, 200, 3, 64, 16)
    with running_server(memory=ceiling) as running, running.client() as http:
        assert http.get("/admin/stats").json()["memory"]["ceiling"] == {
            "ceiling_bytes": 1680,
            "model_bytes": 1000,
            "session_bytes": 200,
            "sessions": 3,
            "prefix_cache_bytes": 64,
            "server_bytes": 16,
        }
