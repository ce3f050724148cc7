"""What both commands say without a server: help, version, plan, and one line for a wrong command line."""

import importlib
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from ferrite.cli import long_chat_gate, throughput
from ferrite.operations.gate.prompts import QUESTIONS, SYSTEM
from ferrite.operations.options import base_url, is_local

TOOLS = [(throughput, "ferrite-throughput"), (long_chat_gate, "ferrite-long-chat-gate")]
tools = pytest.mark.parametrize(("tool", "name"), TOOLS, ids=[name for _, name in TOOLS])


@tools
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help(tool: Any, name: str, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        tool.run([flag], {})
    out = capsys.readouterr().out
    assert left.value.code == 0
    assert out.startswith(f"usage: {name} ")
    documented = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    options = {word.strip("[],") for word in out.split() if word.strip("[],").startswith("--")}
    missing = {option for option in options if f"`{option}" not in documented} - {"--help", "--version"}
    assert missing == set()


@tools
@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_version(tool: Any, name: str, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.run([flag], {}) == 0
    assert capsys.readouterr().out == f"{name} {version('ferrite-server')}\n"


@tools
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--nope"], "--nope"),
        (["--base"], "--base"),
        (["--base-url", "localhost:8080"], "--base-url"),
        (["--base-url", "http://u:p@h"], "--base-url"),
        (["--base-url", "http://h:99999"], "--base-url"),
        (["--timeout", "0"], "--timeout"),
        (["--timeout", "nan"], "--timeout"),
        (["--api-key", "two words"], "--api-key"),
        (["--model-id", ""], "--model-id"),
        (["--max-tokens", "0"], "--max-tokens"),
        (["--max-tokens", "1.5"], "--max-tokens"),
        (["--prompt-cache-key", "\udcff"], "--prompt-cache-key"),
    ],
)
def test_a_wrong_option_is_one_line(
    tool: Any, name: str, arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.run(arguments, {}) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"{name}: ")
    assert err.count("\n") == 1
    assert named in err


@tools
def test_a_wrong_key_in_the_environment_is_named(
    tool: Any, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.run([], {"FERRITE_API_KEY": "é"}) == 2
    assert capsys.readouterr().err.startswith(f"{name}: FERRITE_API_KEY: ")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--endpoint", "responses"], "--endpoint"),
        (["--requests", "0"], "--requests"),
        (["--concurrency", "many"], "--concurrency"),
        (["--prompt", ""], "--prompt"),
        (["--temperature", "3"], "--temperature"),
        (["--seed", str(2**63)], "--seed"),
        (["--stream-usage"], "--stream-usage needs --stream"),
        (["--rss-pid", str(os.getpid()), "--base-url", "http://example.com"], "--rss-pid"),
        (["--rss-pid", "2147483647"], "--rss-pid"),
    ],
)
def test_wrong_options_of_the_load(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert throughput.run(arguments, {}) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert named in err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--turns", "0"], "--turns"),
        (["--require-probes", "error,cache"], "'cache' is not one of error, disconnect, queue"),
        (["--require-probes", ""], "--require-probes"),
        (["--require-finish", "stop"], "'stop' is not one of length, stop_string, end_token"),
        (["--prompt-cache-key", "k" * 401], "--prompt-cache-key"),
        (["--execute", "--proof-log", "/no/such/folder/proof"], "--proof-log"),
    ],
)
def test_wrong_options_of_the_gate(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert long_chat_gate.run(arguments, {}) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert named in err


def test_the_gate_only_plans_unless_told(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "--turns",
        "2",
        "--queue-probe",
        "--require-probes",
        "queue",
        "--base-url",
        "http://127.0.0.1:1",
    ]
    assert long_chat_gate.run(arguments, {}) == 0
    out = capsys.readouterr().out
    assert SYSTEM in out
    assert QUESTIONS[1] in out
    assert QUESTIONS[2] not in out
    assert "queue: " in out
    assert "disconnect: " not in out
    assert "required probes: queue" in out
    assert out.endswith("nothing was sent: --execute sends it to http://127.0.0.1:1\n")


def test_no_server_is_one_line_and_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert throughput.run(["--base-url", "http://127.0.0.1:1"], {}) == 1
    message = "http://127.0.0.1:1/v1/models: cannot connect: Connection refused\n"
    assert capsys.readouterr().err == f"ferrite-throughput: {message}"
    assert long_chat_gate.run(["--execute", "--base-url", "http://127.0.0.1:1"], {}) == 1
    out, err = capsys.readouterr()
    assert "cannot connect: Connection refused" in out
    assert out.splitlines()[-1].startswith("FAIL in ")
    assert err == ""


@pytest.mark.parametrize("module", ["ferrite.cli.throughput", "ferrite.cli.long_chat_gate"])
def test_the_commands_are_programs(module: str) -> None:
    assert callable(importlib.import_module(module).main)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-m", module, "--nope"], env=environ, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("http://h:1/", "http://h:1"),
        ("http://h/v1", "http://h"),
        ("http://h/v1/", "http://h"),
        ("https://h/proxy/v1", "https://h/proxy"),
        ("http://[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_base_urls(written: str, meant: str) -> None:
    assert base_url(written) == meant


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.1:8080", True),
        ("http://localhost", True),
        ("http://[::1]:1", True),
        ("http://127.evil.example", False),
        ("http://10.0.0.1", False),
    ],
)
def test_which_servers_are_local(url: str, local: bool) -> None:
    assert is_local(url) is local


@tools
def test_a_reader_that_has_gone_is_no_error(tool: Any, name: str) -> None:
    read, write = os.pipe()
    os.close(read)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", tool.__name__, "--version"]
    with open(write, "w") as closed:
        done = subprocess.run(command, env=environ, stdout=closed, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (141, "")
