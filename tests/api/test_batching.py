"""Many clients at once: who waits, who is refused, who leaves, and what the counters say of it."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from ferrite.kv import PrefixLimits
from tests.api.support import (
    MODEL_ID,
    WAIT_SECONDS,
    Gate,
    Running,
    Script,
    batching,
    chat_body,
    completion_body,
    eventually,
    gated_server,
    receive_until,
    running_server,
    send_raw,
)

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def stats(running: Running) -> dict[str, Any]:
    with running.client() as client:
        answer: dict[str, Any] = client.get("/v1/stats").json()
        return answer


def batcher(running: Running) -> dict[str, int]:
    with running.client() as client:
        answer: dict[str, int] = client.get("/admin/stats").json()["batcher"]
        return answer


def rows(running: Running) -> list[dict[str, Any]]:
    with running.client() as client:
        answer: list[dict[str, Any]] = client.get("/v1/requests").json()["rows"]
        return answer


@contextmanager
def callers(running: Running, count: int) -> Iterator[Callable[..., Future[httpx.Response]]]:
    """Post from threads; the answer is a future."""
    with running.client() as client, ThreadPoolExecutor(count) as pool:
        yield lambda path, body: pool.submit(client.post, path, json=body)


def test_a_full_server_refuses_at_once_and_is_not_at_fault() -> None:
    with gated_server(**batching(2, 1)) as (running, gate), callers(running, 10) as post:
        answers = [post(CHAT, chat_body(max_tokens=200, stream=number % 2 == 0)) for number in range(10)]
        gate.wait_until_reached()
        eventually(lambda: sum(answer.done() for answer in answers) == 7)
        refused = [answer.result() for answer in answers if answer.done()]
        for answer in refused:
            assert answer.status_code == 429
            assert answer.headers["content-type"] == "application/json"
            assert int(answer.headers["retry-after"]) >= 1
            error = answer.json()["error"]
            assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
            assert "--max-batch-streams, --max-batch-queue" in error["message"]
            assert "--inference-wait-ms" not in error["message"]
        with running.client() as client:
            assert client.get("/health").json()["ready"] is True
        assert batcher(running)["queue_rejected"] == 7
        shown = stats(running)
        assert (shown["active"], shown["queued"], shown["in_flight"]) == (2, 1, 3)
        gate.open()
        served = [answer.result(WAIT_SECONDS) for answer in answers if answer.result().status_code == 200]
        assert len(served) == 3
        shown = stats(running)
        assert (shown["completed"], shown["refused"], shown["in_flight"]) == (3, 7, 0)
        assert len(rows(running)) == 3


def test_a_full_server_does_no_work_for_a_refused_prompt() -> None:
    with gated_server(**batching(1, 0)) as (running, gate), callers(running, 1) as post:
        held = post(CHAT, chat_body())
        gate.wait_until_reached()
        with running.client() as client:
            assert client.post(CHAT, json=chat_body("never rendered")).status_code == 429
        assert len(running.conversations.seen) == 1
        gate.open()
        assert held.result(WAIT_SECONDS).status_code == 200


def test_waiting_can_be_limited_when_batching() -> None:
    options = batching(1, 4)
    options["engine"] = type(options["engine"])(waiting_limit=4, inference_wait_seconds=0.05)
    with gated_server(**options, inference_wait_ms=50) as (running, gate), callers(running, 1) as post:
        held = post(CHAT, chat_body())
        gate.wait_until_reached()
        with running.client() as client:
            late = client.post(CHAT, json=chat_body())
        assert late.status_code == 429
        assert "--max-batch-queue, --inference-wait-ms" in late.json()["error"]["message"]
        gate.open()
        assert held.result(WAIT_SECONDS).status_code == 200
        waited, served = rows(running)
        assert (waited["error"], waited["cancelled"], waited["queue_ms"]) == (
            "rate_limit_exceeded",
            False,
            None,
        )
        assert (served["error"], served["finish_reason"]) == (None, "length")
        assert stats(running)["failed"] == 1


def leave_mid_stream(running: Running, gate: Gate) -> socket.socket:
    leaving = send_raw(running, CHAT, chat_body(stream=True, max_tokens=256))
    for _ in range(3):
        gate.wait_until_reached()
        gate.pass_one()
    receive_until(leaving, b'"content":"z"', 3)
    return leaving


def leave_without_a_stream(running: Running, gate: Gate) -> socket.socket:
    leaving = send_raw(running, CHAT, chat_body(max_tokens=256))
    for _ in range(3):
        gate.wait_until_reached()
        gate.pass_one()
    return leaving


def leave_in_prefill(running: Running, gate: Gate) -> socket.socket:
    leaving = send_raw(running, COMPLETIONS, completion_body("p" * 1000, max_tokens=256))
    gate.wait_until_reached()
    gate.pass_one()
    return leaving


@pytest.mark.parametrize("begin", [leave_mid_stream, leave_without_a_stream, leave_in_prefill])
def test_when_a_client_leaves_the_next_starts_within_a_step(
    begin: Callable[[Running, Gate], socket.socket],
) -> None:
    options = batching(1, 2, session_positions=2048)
    with gated_server(**options) as (running, gate), callers(running, 1) as post:
        leaving = begin(running, gate)
        gate.wait_until_reached()
        waiting = post(COMPLETIONS, completion_body("waiting", max_tokens=2))
        eventually(lambda: stats(running)["queued"] == 1)
        n_steps = len(running.runner.batches)
        leaving.close()
        eventually(lambda: stats(running)["aborted"] == 1)
        gate.pass_one()
        gate.wait_until_reached()
        assert len(running.runner.batches) == n_steps + 1
        assert running.runner.batches[-1].token_ids.tolist() == list(b"waiting")
        gate.open()
        assert waiting.result(WAIT_SECONDS).status_code == 200
        assert_idle(running, aborted=1)
        left, _ = rows(running)
        assert (left["cancelled"], left["finish_reason"], left["error"]) == (True, None, None)
        assert left["queue_ms"] is not None
        assert (left["prefill_ms"] is None) == (begin is leave_in_prefill)
        assert (left["decode_ms"], left["cached_tokens"]) == (None, None)


def test_a_client_that_leaves_the_line_is_cancelled_but_not_stopped() -> None:
    options = batching(1, 2, session_positions=2048)
    with gated_server(**options) as (running, gate), callers(running, 2) as post:
        held = post(CHAT, chat_body(max_tokens=2))
        gate.wait_until_reached()
        leaving = send_raw(running, CHAT, chat_body("never"))
        eventually(lambda: stats(running)["queued"] == 1)
        behind = post(CHAT, chat_body("behind", max_tokens=1))
        eventually(lambda: stats(running)["queued"] == 2)
        leaving.close()
        eventually(lambda: stats(running)["queued"] == 1)
        gate.open()
        assert [held.result(WAIT_SECONDS).status_code, behind.result(WAIT_SECONDS).status_code] == [200, 200]
        assert_idle(running, aborted=0)
        left = rows(running)[0]
        assert (left["cancelled"], left["queue_ms"], left["prompt_tokens"]) == (True, None, None)
        assert stats(running)["aborted"] == 1
        assert len(running.runner.samplers) == 2


def assert_idle(running: Running, *, aborted: int) -> None:
    """Nothing is held and nothing moves."""
    shown, counted = stats(running), batcher(running)
    assert (shown["in_flight"], shown["active"], shown["queued"]) == (0, 0, 0)
    assert counted["aborted"] == aborted
    assert counted["kv_blocks_free"] == counted["kv_blocks_total"] > 0
    assert counted["kv_blocks_peak"] > 0
    assert batcher(running)["decode_steps"] == counted["decode_steps"]


def test_a_client_that_does_not_read_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrite.api.protocol.MAX_STALLED_SECONDS", 0.1)
    endless = Script("z", endless=True).runner()
    options = {"hard_max_tokens": 3000, **batching(1, 1, session_positions=4096)}
    with running_server(endless, send_buffer=4096, **options) as running:
        body = completion_body(
            max_tokens=3000, stream=True, stream_options={"include_obfuscation": True}, return_token_ids=True
        )
        deaf = send_raw(running, COMPLETIONS, body)
        with deaf:
            eventually(lambda: stats(running)["aborted"] == 1)
            eventually(lambda: stats(running)["active"] == 0)
        assert_idle(running, aborted=1)
        (row,) = rows(running)
        assert (row["cancelled"], row["streamed"], row["prompt_tokens"]) == (True, True, 2)
        assert 0 < row["completion_tokens"] < 3000


class Reader:
    """One stream, read in a thread; the order of beginnings and ends is kept for all of them."""

    def __init__(self, running: Running, prompt: str, order: list[str]) -> None:
        self._running, self._prompt, self._order = running, prompt, order
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self) -> None:
        body = completion_body(self._prompt, max_tokens=120, stream=True)
        with self._running.client() as client, client.stream("POST", COMPLETIONS, json=body) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: {")
            self._order.append("begin")
            assert list(lines)[-2] == "data: [DONE]"
            self._order.append("end")


def test_open_streams_take_nothing_that_other_routes_need() -> None:
    with gated_server(**batching(10, 10)) as (running, gate), running.client() as client:
        order: list[str] = []
        prompts = ["p" * 200, *(f"{number}" for number in range(9))]
        readers = [Reader(running, prompt, order) for prompt in prompts]
        eventually(lambda: stats(running)["active"] == 10)
        behind = Reader(running, "behind", order)
        eventually(lambda: stats(running)["queued"] == 1)
        for _ in range(3):
            gate.wait_until_reached()  # a step runs, and does not end before these have answered
            assert client.get("/health").json()["ready"] is True
            assert "ferrite_requests_active 10.0" in client.get("/metrics").text
            assert client.get("/v1/models").json()["data"][0]["id"] == MODEL_ID
            shown = client.get("/v1/stats").json()
            assert (shown["active"], shown["queued"], shown["in_flight"]) == (10, 1, 11)
            gate.pass_one()
        gate.open()
        for reader in (*readers, behind):
            reader.thread.join(WAIT_SECONDS)
        assert order.index("end") >= 10
        assert order.count("end") == 11


def test_limits_hold_when_batching() -> None:
    endless = Script("zü", endless=True).runner(context_length=1024)
    options = {"default_max_tokens": 20, "hard_max_tokens": 40, **batching(4, 8)}
    with running_server(endless, **options) as running, callers(running, 12) as post:
        asked = [None, 1, 2, 3, 20, 40]
        answers = [
            (limit or 20, post(path, {**body, **({} if limit is None else {"max_tokens": limit})}))
            for limit in asked
            for path, body in ((CHAT, chat_body()), (COMPLETIONS, completion_body()))
        ]
        for limit, answer in answers:
            body = answer.result(WAIT_SECONDS).json()
            assert body["usage"]["completion_tokens"] == limit
            assert body["choices"][0]["finish_reason"] == "length"
        with running.client() as client:
            error = client.post(CHAT, json=chat_body(max_tokens=41)).json()["error"]
        assert "41" in error["message"]
        assert "40" in error["message"]


@pytest.mark.parametrize(("keys", "prompts_evaluated"), [(("k",), 1), (("k", "other"), 2), (("k", ""), 2)])
def test_equal_prompts_with_equal_keys_are_evaluated_once(
    keys: tuple[str, ...], prompts_evaluated: int
) -> None:
    cache = PrefixLimits(max_entries=8, max_bytes=64 << 20)
    # Small sessions leave blocks for the cache.
    options = batching(8, 0, prefix_cache=cache, session_positions=1024)
    with (
        gated_server(**options, experimental_prefix_cache=True) as (running, gate),
        callers(running, 8) as post,
    ):
        first = post(COMPLETIONS, completion_body("holds the engine", max_tokens=1))
        gate.wait_until_reached()
        body = completion_body("p" * 300, max_tokens=3, metadata={"ferrite_cache_trace": "true"})
        answers = [
            post(COMPLETIONS, {**body, "prompt_cache_key": keys[number % len(keys)]}) for number in range(7)
        ]
        eventually(lambda: stats(running)["active"] == 8)
        gate.open()
        bodies = [answer.result(WAIT_SECONDS).json() for answer in answers]
        assert {body["choices"][0]["text"] for body in bodies} == {"zzz"}
        assert all(body["ferrite_cache_trace"]["shared"] for body in bodies)
        assert {body["usage"]["prompt_tokens_details"]["cached_tokens"] for body in bodies} == {0}
        assert first.result(WAIT_SECONDS).status_code == 200
        assert batcher(running)["prefill_tokens"] == len("holds the engine") + 300 * prompts_evaluated


def test_a_key_without_the_cache_parts_nobody() -> None:
    with gated_server(**batching(8, 0)) as (running, gate), callers(running, 3) as post:
        first = post(COMPLETIONS, completion_body("holds the engine", max_tokens=1))
        gate.wait_until_reached()
        answers = [
            post(COMPLETIONS, completion_body("p" * 300, max_tokens=3, prompt_cache_key=key))
            for key in ("a", "b")
        ]
        eventually(lambda: stats(running)["active"] == 3)
        gate.open()
        assert all(answer.result(WAIT_SECONDS).status_code == 200 for answer in (first, *answers))
        assert batcher(running)["prefill_tokens"] == len("holds the engine") + 300


def test_a_prompt_that_fails_harms_nobody_else() -> None:
    with gated_server(**batching(4, 4)) as (running, gate), callers(running, 4) as post:
        good = [post(CHAT, chat_body(f"good {number}", max_tokens=6)) for number in range(2)]
        gate.wait_until_reached()
        assert post(CHAT, chat_body("break")).result(WAIT_SECONDS).status_code == 500
        assert post(CHAT, chat_body("refuse me")).result(WAIT_SECONDS).status_code == 400
        gate.open()
        for answer in good:
            assert answer.result(WAIT_SECONDS).json()["choices"][0]["message"]["content"] == "zzzzzz"
        shown = stats(running)
        assert (shown["completed"], shown["failed"], shown["refused"]) == (2, 0, 2)


def test_a_signal_under_load_lets_running_and_waiting_requests_end() -> None:
    with gated_server(**batching(2, 2)) as (running, gate), callers(running, 4) as post:
        answers = [post(CHAT, chat_body(f"{number}", max_tokens=5, stream=True)) for number in range(4)]
        gate.wait_until_reached()
        eventually(lambda: stats(running)["queued"] == 2)
        running.server.handle_exit(15, None)
        eventually(lambda: running.state.draining)
        with running.client() as client:
            assert client.post(CHAT, json=chat_body()).status_code == 503
            assert client.get("/metrics").status_code == client.get("/v1/stats").status_code == 200
        gate.open()
        for answer in answers:
            assert answer.result(WAIT_SECONDS).text.endswith("data: [DONE]\n\n")
        eventually(lambda: running.server.should_exit)
        assert running.server.exit_status == 0


def test_later_prompts_of_a_request_are_not_refused() -> None:
    with gated_server(**batching(1, 1)) as (running, gate), callers(running, 2) as post:
        several = post(COMPLETIONS, completion_body(["a", "b", "c"], max_tokens=2))
        gate.wait_until_reached()
        other = post(COMPLETIONS, completion_body("other", max_tokens=2))
        eventually(lambda: stats(running)["queued"] == 1)
        gate.open()
        answer = several.result(WAIT_SECONDS)
        assert [choice["text"] for choice in answer.json()["choices"]] == ["zz", "zz", "zz"]
        assert other.result(WAIT_SECONDS).status_code == 200
        both = {row["request_id"]: row for row in rows(running)}
        row = both[answer.headers["x-request-id"]]
        assert (row["prompt_tokens"], row["completion_tokens"], row["finish_reason"]) == (3, 6, "length")
        assert row["total_ms"] >= row["queue_ms"] + row["prefill_ms"] + row["decode_ms"]


def test_a_size_that_never_fits_is_counted_and_named() -> None:
    options = batching(2, 2, session_positions=100)
    with (
        running_server(Script("ok").runner(), longest_token=10, **options) as running,
        running.client() as client,
    ):
        long = client.post(COMPLETIONS, json=completion_body([65] * 95, max_tokens=6))
        longer = client.post(COMPLETIONS, json=completion_body("é" * 1000, max_tokens=8))
        error = long.json()["error"]
        assert (long.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "prompt")
        assert error["message"] == (
            "The prompt is too long for the budget: it has 95 tokens and `max_tokens` is 6, together 101; "
            "a session has 100 tokens (--kv-max-tokens)."
        )
        assert longer.json()["error"]["message"].startswith(
            "The prompt is too long for the budget: it has at least 100 tokens"
        )
        counted = batcher(running)
        assert (counted["kv_rejected_context_length"], counted["kv_rejected_too_large"]) == (2, 0)
        assert (counted["prefill_tokens"], counted["kv_block_size"]) == (0, 4)
        whole = client.post(COMPLETIONS, json=completion_body([65] * 220, max_tokens=6))
        assert "that is 57 KV blocks, the KV cache has 50 in all (--kv-max-tokens" in json.dumps(whole.json())
        assert batcher(running)["kv_rejected_too_large"] == 1
        assert rows(running) == []
