"""Getting one wheel from the package index that pip is set up for."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ferrite.catalogue.errors import CatalogueError

_POLL_SECONDS = 0.2


class Fetch(Protocol):
    """Downloads wheels."""

    def __call__(self, requirement: str, folder: Path, on_bytes: Callable[[int], None]) -> Path:
        """Download the wheel of ``requirement`` into the empty ``folder`` and return its path.

        ``on_bytes`` hears now and then how many bytes have arrived.

        Raises:
            CatalogueError: the wheel could not be had.
        """


def pip_download(requirement: str, folder: Path, on_bytes: Callable[[int], None]) -> Path:
    """Download with ``pip download``, by the index, proxies and certificates of the user's pip settings.

    Nothing of the wheel is run: source distributions are not considered. pip writes below ``folder`` only,
    so removing it removes a broken download.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--no-cache-dir", "--progress-bar", "off", "--dest", str(folder), requirement]
    environment = os.environ | {
        "TMPDIR": str(folder),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
    }
    log = folder / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            while _is_running(process):
                on_bytes(_largest_file(folder))
        finally:
            process.kill()
            process.wait()
    if process.returncode != 0:
        raise CatalogueError(f"{requirement}: pip download failed: {_reason(log)}")
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise CatalogueError(f"{requirement}: pip download left {len(wheels)} wheels instead of one")
    return wheels[0]


def _is_running(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(_POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    return False


def _largest_file(folder: Path) -> int:
    """Bytes of the largest file, which is the wheel that pip writes, under whatever name it uses."""
    largest = 0
    for path in folder.rglob("*"):
        try:
            largest = max(largest, path.stat().st_size)
        except FileNotFoundError:
            continue
    return largest


def _reason(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["it said nothing"])[-1]
