"""pip_download() with the real pip and a local folder instead of an index."""

from pathlib import Path

import pytest

from ferrite.catalogue import CatalogueError
from ferrite.catalogue.fetch import pip_download
from tests.catalogue.wheels import write_wheel

METADATA = b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
WHEEL = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_it_returns_the_wheel_and_writes_below_its_folder_only(index: Path, tmp_path: Path) -> None:
    info = "tiny_model-1.0.dist-info"
    members = {"tiny/model.gguf": b"GGUF" * 1000, f"{info}/METADATA": METADATA, f"{info}/WHEEL": WHEEL}
    original = write_wheel(index / "tiny_model-1.0-py3-none-any.whl", members | {f"{info}/RECORD": b""})
    folder = tmp_path / "staging"
    folder.mkdir()
    arrived: list[int] = []
    wheel = pip_download("tiny-model==1.0", folder, arrived.append)
    assert wheel.parent == folder
    assert wheel.read_bytes() == original.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index", "staging"]


def test_a_missing_version_is_one_line_with_pips_reason(index: Path, tmp_path: Path) -> None:
    with pytest.raises(CatalogueError) as caught:
        pip_download("tiny-model==9.9", tmp_path, lambda _: None)
    assert str(caught.value).startswith("tiny-model==9.9: pip download failed: ")
    assert "tiny-model==9.9" in str(caught.value).partition("failed: ")[2]
    assert "\n" not in str(caught.value)


def test_a_source_distribution_is_not_considered(index: Path, tmp_path: Path) -> None:
    (index / "tiny-model-1.0.tar.gz").write_bytes(b"would run code when built")
    with pytest.raises(CatalogueError, match="pip download failed: No matching distribution"):
        pip_download("tiny-model==1.0", tmp_path, lambda _: None)
