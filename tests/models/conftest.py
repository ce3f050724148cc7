"""The small model that tests change one thing in."""

from pathlib import Path

import pytest

from tests.models.files import Parts, take_apart
from tests.models.small import SMALL
from tests.reference.tiny import write_tiny_model


@pytest.fixture
def parts(request: pytest.FixtureRequest, tmp_path: Path) -> Parts:
    """A small model of the architecture that the test is given indirectly, taken apart."""
    path = tmp_path / "small.gguf"
    write_tiny_model(path, request.param, **SMALL)
    return take_apart(path)
