"""One server on a real model for all tests that do not need one of their own."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.process import ServerProcess, ferrite_server


@pytest.fixture(scope="session")
def server(smollm2_path: Path) -> Iterator[ServerProcess]:
    """SmolLM2 with four permits, a context of 512, budgets of 32 (default) and 400 (limit)."""
    with ferrite_server(
        smollm2_path,
        "--ctx-size", "512", "--default-max-tokens", "32", "--hard-max-tokens", "400",
        "--max-concurrent-inferences", "4", "--inference-wait-ms", "60000",
    ) as running:  # fmt: skip
        yield running
        assert "ERROR" not in running.log
        assert "Paris" not in running.log
        assert "capital" not in running.log


@pytest.fixture(scope="session")
def plain_http(server: ServerProcess) -> Iterator[httpx.Client]:
    """A client of that server."""
    with server.http() as client:
        yield client


@pytest.fixture(scope="session")
def http(plain_http: httpx.Client) -> httpx.Client:
    """The same, for modules without a server of their own."""
    return plain_http
