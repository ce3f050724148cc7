"""Properties over damaged files: each opens or is refused in one line, quickly and without memory."""

import tracemalloc
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import fuzz_gguf
from ferrite.gguf import GGUFError, open_gguf
from tests.gguf.build import Build, Tensor

MUTATIONS = 3_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mutations")


@pytest.fixture(scope="module")
def seeds(folder: Path) -> list[bytes]:
    return fuzz_gguf.seed_files(folder)


def opens_or_is_refused(path: Path) -> bool:
    try:
        fuzz_gguf.exercise(path)
    except GGUFError as error:
        message = str(error)
        assert message.isprintable(), message
        assert message.startswith(f"{path}: "), message
        return False
    return True


def test_mutated_files(folder: Path, seeds: list[bytes]) -> None:
    path = folder / "mutated.gguf"
    opened = 0
    for index in range(MUTATIONS):
        random = Random(index)
        path.write_bytes(fuzz_gguf.mutate(random.choice(seeds), random))
        try:
            opened += opens_or_is_refused(path)
        except Exception as error:
            pytest.fail(f"mutation {index}: {type(error).__name__}: {error}")
    assert MUTATIONS // 20 < opened < MUTATIONS // 2


def test_every_cut_of_a_written_file(folder: Path, seeds: list[bytes]) -> None:
    path = folder / "cut.gguf"
    whole = seeds[0]
    path.write_bytes(whole)
    with open_gguf(path) as file:
        end = max(info.offset + info.n_bytes for info in file.tensors.values())
    path.write_bytes(whole)
    for size in range(len(whole) - 1, -1, -1):
        with path.open("r+b") as handle:
            handle.truncate(size)
        assert opens_or_is_refused(path) == (size >= end), size


@given(data=st.binary(max_size=200))
def test_random_bytes_behind_a_valid_start(folder: Path, data: bytes) -> None:
    path = folder / "random.gguf"
    path.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + data)
    opens_or_is_refused(path)


counts = st.one_of(st.integers(0, 300), st.integers(0, 64).map(lambda bit: (1 << bit) % (1 << 64)))
tensors = st.builds(
    Tensor,
    name=st.one_of(st.text(max_size=8), st.binary(max_size=8)),
    shape=st.lists(st.one_of(st.integers(0, 64), counts), max_size=5).map(tuple),
    type_id=st.integers(0, 45),
    offset=st.one_of(st.integers(0, 8).map(lambda block: 32 * block), counts),
)


@settings(max_examples=300)
@given(descriptions=st.lists(tensors, max_size=4), size=st.integers(0, 2_000))
def test_tensor_descriptions(folder: Path, descriptions: list[Tensor], size: int) -> None:
    path = folder / "tensors.gguf"
    path.write_bytes(bytes(Build([], descriptions, bytes(size))))
    if not opens_or_is_refused(path):
        return
    with open_gguf(path) as file:
        ranges = sorted((info.offset, info.offset + info.n_bytes) for info in file.tensors.values())
        assert all(start % 32 == 0 for start, _ in ranges)
        assert all(end <= path.stat().st_size for _, end in ranges)
        assert all(before[1] <= after[0] for before, after in pairwise(ranges))


@given(n_tensors=counts, n_pairs=counts, size=st.integers(0, 400))
def test_claimed_counts_allocate_nothing(folder: Path, n_tensors: int, n_pairs: int, size: int) -> None:
    path = folder / "counts.gguf"
    path.write_bytes(bytes(Build(n_tensors=n_tensors, n_pairs=n_pairs)) + bytes(size))
    tracemalloc.start()
    try:
        opens_or_is_refused(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("raised", "failure"),
    [
        (MemoryError("no memory"), "MemoryError: no memory"),
        (GGUFError("two\nlines"), r"bad message 'two\nlines'"),
        (fuzz_gguf.Hang(), "took longer than 60.0 s"),
    ],
)
def test_the_fuzzer_notices_failures(
    monkeypatch: pytest.MonkeyPatch, path: Path, raised: BaseException, failure: str
) -> None:
    def fail(_path: Path) -> None:
        raise raised

    monkeypatch.setattr(fuzz_gguf, "exercise", fail)
    tracemalloc.start()
    try:
        assert fuzz_gguf.check(path, 60.0)[1] == failure
    finally:
        tracemalloc.stop()
