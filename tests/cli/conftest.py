"""The command in this process, and a tiny model for it."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.support import Command
from tests.reference.tiny import write_served_model


@pytest.fixture
def ferrite(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capsys, monkeypatch)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_served_model(path, context_length=512)
    return path


@pytest.fixture(autouse=True)
def logging_of_its_own() -> Iterator[None]:
    """Commands send the log to standard error as it is captured now, which no later test can write to."""
    yield
    for handler in logging.getLogger().handlers[:]:
        if type(handler) is logging.StreamHandler:
            logging.getLogger().removeHandler(handler)
