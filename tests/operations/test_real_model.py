"""Both tools against the installed server with a real model."""

import json
from pathlib import Path

import pytest

from ferrite.cli import long_chat_gate, throughput
from tests.e2e.process import API_KEY, ferrite_server

pytestmark = pytest.mark.model
ENVIRON = {"FERRITE_API_KEY": API_KEY}
PROBES = (
    "--error-probe",
    "--disconnect-probe",
    "--queue-probe",
    "--require-probes",
    "error,disconnect,queue",
)


def test_the_gate_passes_the_default_server(smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ferrite_server(smollm2_path) as server:
        arguments = ["--base-url", server.url, "--execute", "--require-finish", "length,stop_string", *PROBES]
        status = long_chat_gate.run(arguments, ENVIRON)
    assert status == 0, capsys.readouterr().out


def test_streams_side_by_side_are_stable(smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--experimental-batched-decode", "--max-batch-streams", "4", "--max-batch-queue", "4")
    with ferrite_server(smollm2_path, *options) as server:
        arguments = [
            "--base-url", server.url, "--requests", "8", "--concurrency", "4", "--stream", "--stream-usage",
            "--prompt", "Say hello.", "--prompt", "Count to ten.", "--json",
            "--rss-pid", str(server.ready["pid"]),
        ]  # fmt: skip
        status = throughput.run(arguments, ENVIRON)
    report = json.loads(capsys.readouterr().out)
    assert status == 0
    assert [row["verdict"] for row in report["stability"]] == ["stable", "stable"]
    assert report["ttft_ms"]["count"] == 8
    assert report["rss_bytes"]["peak"] > 50 * 2**20
