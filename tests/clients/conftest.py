"""Servers for clients: scripted ones, and one on a real model."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.support import Running, Script, ServerProcess, running_server, server_process
from tests.clients.support import API_KEY, TEXT

COMMAND = "import sys; from ferrite.cli.server import main; sys.exit(main())"


@pytest.fixture(scope="package")
def scripted() -> Iterator[Running]:
    """Answers ``TEXT`` to everything."""
    runner = Script(TEXT).runner(context_length=2048)
    with running_server(runner, api_key=API_KEY, default_max_tokens=64) as running:
        yield running


@pytest.fixture(scope="package")
def real(smollm2_path: Path) -> Iterator[ServerProcess]:
    """The command on SmolLM2, with two requests at a time."""
    arguments = [
        "--model", str(smollm2_path), "--api-key", API_KEY, "--threads", "1", "--default-max-tokens", "24",
        "--experimental-batched-decode", "--max-batch-streams", "2", "--max-batch-queue", "8",
        "--ctx-size", "1024",
    ]  # fmt: skip
    with server_process(COMMAND, *arguments) as server:
        yield server
