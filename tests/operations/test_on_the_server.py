"""Both tools against the real server and engine, in each of its configurations."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ferrite.cli import long_chat_gate, throughput
from ferrite.engine import EngineConfig
from ferrite.program.step import StepBatch
from tests.api.support import MODEL_ID, Running, Script, batching, prefix_cache, running_server

CONTEXT = 2048
STEP_SECONDS = 0.001
"""Long enough for a burst to find the first of it still running, on a runner that computes nothing."""
TEXT = "".join(f"Sentence {number}, and one more. " for number in range(20))
PROBES = (
    "--error-probe",
    "--disconnect-probe",
    "--queue-probe",
    "--require-probes",
    "error,disconnect,queue",
)
GATE = ("--execute", "--turns", "3", "--settle-seconds", "20")


def paced(text: str) -> Any:
    runner = Script(text).runner(context_length=CONTEXT)
    pause = threading.Event()

    def wait(_: StepBatch) -> None:
        pause.wait(STEP_SECONDS)

    runner.before_step = wait
    return runner


@contextmanager
def serving(**options: Any) -> Iterator[Running]:
    with running_server(paced(TEXT), **options) as running:
        yield running


def gate(running: Running, *arguments: str) -> int:
    return long_chat_gate.run(["--base-url", running.url, *GATE, *arguments], {})


def load(running: Running, *arguments: str) -> int:
    return throughput.run(["--base-url", f"{running.url}/v1/", *arguments], {})


@pytest.mark.parametrize(
    "options",
    [
        {"engine": EngineConfig()},
        {"engine": EngineConfig(inference_wait_seconds=0.05, waiting_limit=64)},
        {"engine": EngineConfig(max_concurrent=3, waiting_limit=0)},
        batching(2, 2, arrival_window_seconds=0.005),
        {"engine": EngineConfig(), "unknown_fields": "ignore"},
    ],
    ids=["no waiting", "waiting a little", "three permits", "batching", "ignoring unknown fields"],
)
def test_the_gate_passes(options: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    with serving(**options) as running:
        status = gate(running, *PROBES, "--require-finish", "length,stop_string")
    out = capsys.readouterr().out
    assert status == 0, out
    assert out.splitlines()[-1].startswith("PASS in ")


def test_the_gate_checks_the_prefix_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proof = tmp_path / "proof.jsonl"
    with serving(**prefix_cache(), api_key="secret") as running:
        status = gate(
            running, "--api-key", "secret", "--prompt-cache-key", "k", "--proof-log", str(proof), *PROBES[:2]
        )
    assert status == 0, capsys.readouterr().out
    lines = [json.loads(line) for line in proof.read_text().splitlines()]
    (whole,) = [line for line in lines if line.get("name") == "cached tokens of the whole turns"]
    cached = [turn["cached"] for turn in whole["evidence"]["turns"]]
    assert cached[0] == 0
    assert 0 < cached[1] < cached[2]
    assert {"no API key", "another API key"} <= {line.get("name") for line in lines}
    assert lines[0]["event"] == "gate"
    assert lines[-1]["passed"] is True
    assert "secret" not in proof.read_text()


def test_a_server_without_the_prefix_cache_must_report_none(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(engine=EngineConfig()) as running:
        status = gate(running, "--prompt-cache-key", "k")
    assert status == 0, capsys.readouterr().out


def test_the_gate_fails_without_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(load=False) as running:
        assert gate(running) == 1
    out = capsys.readouterr().out
    assert "status': 503" in out
    assert out.splitlines()[-1].startswith("FAIL in ")


def test_a_streamed_load(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(**batching(4, 4)) as running:
        status = load(
            running, "--requests", "12", "--concurrency", "4", "--stream", "--stream-usage", "--warmup", "2",
            "--prompt", "one", "--prompt", "two", "--max-tokens", "4", "--max-tokens", "6",
            "--max-tokens", "6", "--rss-pid", str(os.getpid()), "--json",
        )  # fmt: skip
    report = json.loads(capsys.readouterr().out)
    assert status == 0
    assert report["passed"] is True
    assert (report["requests"], report["succeeded"], report["statuses"]) == (12, 12, {"200": 12})
    assert report["model"] == MODEL_ID
    assert report["finish_reasons"] == {"length": 12}
    assert report["usage"]["completion_tokens"] == 4 * 4 + 8 * 6
    rows = report["stability"]
    assert {row["verdict"] for row in rows} == {"stable"}
    assert [(row["prompt"], row["max_tokens"], row["answers"]) for row in rows] == [
        (0, 4, 2), (0, 6, 4), (1, 4, 2), (1, 6, 4),
    ]  # fmt: skip
    assert report["ttft_ms"]["count"] == report["stream_tokens_per_second"]["count"] == 12
    assert report["inter_token_ms"]["count"] == 4 * 3 + 8 * 5
    assert report["rss_bytes"]["peak"] >= report["rss_bytes"]["before"] > 0


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_a_whole_load_measures_no_token_times(endpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(**prefix_cache()) as running:
        assert (
            load(running, "--requests", "3", "--endpoint", endpoint, "--prompt-cache-key", "k", "--seed", "1")
            == 0
        )
    lines = capsys.readouterr().out.splitlines()
    assert "ttft_ms=null" in lines
    assert "inter_token_ms=null" in lines
    assert "rss_bytes=null" in lines
    assert "stability.0.verdict=stable" in lines
    cached = next(line for line in lines if line.startswith("usage.cached_tokens="))
    assert int(cached.partition("=")[2]) > 0


def test_a_busy_server_fails_the_load_unless_it_may_wait(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--requests", "4", "--concurrency", "4", "--max-tokens", "16", "--json")
    with serving(engine=EngineConfig()) as running:
        assert load(running, *arguments) == 1
        refused = json.loads(capsys.readouterr().out)
        assert load(running, *arguments, "--retry-busy") == 0
        waited = json.loads(capsys.readouterr().out)
    assert refused["statuses"] == {"200": 1, "429": 3}
    assert refused["errors"] == {"rate_limit_exceeded": 3}
    assert refused["busy_answers"] == 3
    assert waited["statuses"] == {"200": 4}
    assert waited["busy_answers"] >= 3
    assert waited["busy_seconds"] >= 3


def test_ids_that_were_not_asked_for_are_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as running:
        assert load(running, "--requests", "2", "--no-token-ids", "--json") == 0
    assert json.loads(capsys.readouterr().out)["stability"][0]["verdict"] == "unknown"


def test_unstable_ids_fail_a_repeatable_load(capsys: pytest.CaptureFixture[str]) -> None:
    runner = paced("x")
    changing = iter(range(10_000))
    runner.sample = lambda _: ord("a") + next(changing) % 26
    with running_server(runner) as running:
        assert load(running, "--requests", "2") == 1
        assert "stability.0.verdict=unstable" in capsys.readouterr().out.splitlines()
        # Without a seed nobody promised equal answers.
        assert load(running, "--requests", "2", "--temperature", "1") == 0
        assert load(running, "--requests", "2", "--temperature", "1", "--seed", "5") == 1


def test_a_wrong_key_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(api_key="secret") as running:
        assert throughput.run(["--base-url", running.url], {"FERRITE_API_KEY": "other"}) == 1
        assert (
            throughput.run(["--base-url", running.url, "--requests", "1"], {"FERRITE_API_KEY": "secret"}) == 0
        )
    message = "GET /v1/models: status 401: The API key is not right.\n"
    assert capsys.readouterr().err == f"ferrite-throughput: {message}"
