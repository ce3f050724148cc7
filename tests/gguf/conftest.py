from collections.abc import Callable
from pathlib import Path

import pytest

from ferrite.gguf import GGUFError, open_gguf
from tests.gguf.build import Build

Refuse = Callable[[Build | bytes], str]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


@pytest.fixture
def refuse(path: Path) -> Refuse:
    """Write a file that must not open; return the error without the path, after checking its form."""

    def refused(build: Build | bytes) -> str:
        path.write_bytes(bytes(build))
        with pytest.raises(GGUFError) as caught:
            open_gguf(path)
        message = str(caught.value)
        assert message.isprintable()
        prefix = f"{path}: "
        assert message.startswith(prefix)
        return message.removeprefix(prefix)

    return refused
