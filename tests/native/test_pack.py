"""Packing the matrices of a mapped file: the weights of each, and what stays in memory."""

from collections.abc import Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from ferrite import _native

F32, Q8_0 = 0, 8
TEAM = _native.Team(2)
MIB = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "weights"


@pytest.fixture
def mapped(path: Path) -> Iterator[mmap]:
    values = np.random.default_rng(7).standard_normal(8 * MIB // 4, np.float32)
    path.write_bytes(values.tobytes())
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        yield content


def matrix(file: mmap, begin: int, rows: int, cols: int) -> tuple[npt.NDArray[np.uint8], int, int, int]:
    return np.frombuffer(file, np.uint8, rows * cols * 4, begin), F32, rows, cols


def rows_of(weight: _native.Weight) -> list[bytes]:
    return [weight.row(row).tobytes() for row in range(weight.rows)]


def test_matrices_are_packed_each_from_its_own_place(mapped: mmap) -> None:
    # Rows that do not fill a tile, columns that do not fill a cache line, many stripes and one.
    matrices = [
        matrix(mapped, 0, 1000, 1024),
        matrix(mapped, 4_096_000, 3, 5),
        matrix(mapped, 4_096_060, 17, 3),
        matrix(mapped, 4_096_264, 800, 1024),
    ]
    weights = _native.Weight.pack_mapped(matrices, TEAM)
    assert [(weight.rows, weight.cols) for weight in weights] == [(1000, 1024), (3, 5), (17, 3), (800, 1024)]
    for (data, _, rows, cols), weight in zip(matrices, weights, strict=True):
        assert b"".join(rows_of(weight)) == data.tobytes()
        assert weight.n_bytes == -(-rows // 16) * 16 * cols * 4


def test_a_weight_outlives_those_packed_with_it(mapped: mmap) -> None:
    first, second = _native.Weight.pack_mapped([matrix(mapped, 0, 2, 2), matrix(mapped, 16, 2, 2)], TEAM)
    expected = rows_of(second)
    del first
    assert rows_of(second) == expected


def test_no_matrices_give_no_weights() -> None:
    assert _native.Weight.pack_mapped([], TEAM) == []


def test_a_wrong_matrix_among_others_is_refused(mapped: mmap) -> None:
    data, _, rows, cols = matrix(mapped, 0, 16, 32)
    for wrong in ((data, F32, rows + 1, cols), (data, Q8_0, rows, cols), (data, 99, rows, cols)):
        with pytest.raises(ValueError, match=r"shape|supported"):
            _native.Weight.pack_mapped([(data, F32, rows, cols), wrong], TEAM)


def test_pages_of_the_file_do_not_stay_in_memory(mapped: mmap, path: Path) -> None:
    whole = matrix(mapped, 0, 2048, 1024)
    whole[0][::4096].max()
    assert resident_kib(path) >= 8 * 1024
    _native.Weight.pack_mapped([whole], TEAM)
    assert resident_kib(path) <= 64


def resident_kib(path: Path) -> int:
    """Sum the resident size of this process's mappings of one file."""
    resident, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            resident += int(line.split()[1])
    return resident
