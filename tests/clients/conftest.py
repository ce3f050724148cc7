"""Servers for clients: scripted ones, and one on a real model."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ferrite.toolcalls import AnswerFormat
from ferrite.toolcalls.families import HERMES
from tests.api.scripted import Scripted, scripted_server
from tests.api.support import Running, Script, ServerProcess, running_server, server_process
from tests.clients.support import API_KEY, TEXT, call, turns

COMMAND = "import sys; from ferrite.cli.server import main; sys.exit(main())"


@pytest.fixture(scope="package")
def scripted() -> Iterator[Running]:
    """Answers ``TEXT`` to everything."""
    runner = Script(TEXT).runner(context_length=2048)
    with running_server(runner, api_key=API_KEY, default_max_tokens=64) as running:
        yield running


@pytest.fixture(scope="package")
def writer() -> Iterator[Scripted]:
    """Writes what a test says, of a model that knows tools."""
    yield from scripted_server(api_key=API_KEY, default_max_tokens=400)


@pytest.fixture(scope="package")
def caller() -> Iterator[Running]:
    """Calls ``Weather`` and ``Sum`` together, then ``Sum``, and then tells something."""
    weather, total = call("Weather", '{"city":"Oslo","days":-3}'), call("Sum", '{"numbers":[1,2.5]}')
    texts = (f"Let me see. {weather}\n{total}", call("Sum", '{"numbers":[]}'), "It rains; it is 3.5.")
    family = AnswerFormat(HERMES, None)
    with running_server(
        turns(*texts), answer_format=family, api_key=API_KEY, default_max_tokens=250
    ) as running:
        yield running


@pytest.fixture(scope="package")
def real(smollm2_path: Path) -> Iterator[ServerProcess]:
    """The command on SmolLM2, with eight requests at a time; no log, which nobody reads until it ends."""
    arguments = [
        "--model", str(smollm2_path), "--api-key", API_KEY, "--threads", "1", "--default-max-tokens", "24",
        "--hard-max-tokens", "1024", "--experimental-batched-decode", "--max-batch-streams", "8",
        "--max-batch-queue", "64", "--ctx-size", "1024", "--no-access-log",
    ]  # fmt: skip
    with server_process(COMMAND, *arguments) as server:
        yield server


@pytest.fixture(scope="package")
def real_caller(qwen_path: Path) -> Iterator[ServerProcess]:
    """The command on Qwen2.5, which calls tools."""
    arguments = [
        "--model", str(qwen_path), "--api-key", API_KEY, "--default-max-tokens", "200", "--ctx-size", "2048",
        "--experimental-batched-decode", "--max-batch-streams", "8", "--experimental-prefix-cache",
    ]  # fmt: skip
    with server_process(COMMAND, *arguments) as server:
        yield server
