"""Models in several files: siblings are found, and a set that does not belong together is refused."""

from pathlib import Path

import pytest

from ferrite.gguf import GGUFError, open_gguf
from tests.gguf import build
from tests.gguf.build import Build, Tensor


def shard_name(number: int, count: int) -> str:
    return f"model-{number:05}-of-{count:05}.gguf"


def write_shard(
    folder: Path,
    number: int,
    count: int,
    *,
    says: tuple[int, int] | None = None,
    n_tensors: int | None = None,
    tensor: str | None = None,
    version: int = 3,
) -> Path:
    """Write one shard with one tensor of eight floats, all equal to its number."""
    said_number, said_count = says or (number, count)
    pairs = [
        build.pair("split.no", build.U16, said_number - 1),
        build.pair("split.count", build.U16, said_count),
        build.pair("split.tensors.count", build.I32, count if n_tensors is None else n_tensors),
    ]
    if number == 1:
        pairs.append(build.pair("general.architecture", build.STRING, "llama"))
    path = folder / shard_name(number, count)
    path.write_bytes(
        bytes(Build(pairs, [Tensor(tensor or f"t{number}")], bytes([number]) * 32, version=version))
    )
    return path


def write_model(folder: Path, count: int) -> list[Path]:
    return [write_shard(folder, number, count) for number in range(1, count + 1)]


def refused(path: Path) -> str:
    with pytest.raises(GGUFError) as caught:
        open_gguf(path)
    return str(caught.value).removeprefix(f"{path.parent}/")


def test_the_first_shard_opens_the_whole_model(tmp_path: Path) -> None:
    paths = write_model(tmp_path, 3)
    with open_gguf(paths[0]) as file:
        assert file.paths == tuple(paths)
        assert file.metadata.string("general.architecture") == "llama"
        assert list(file.tensors) == ["t1", "t2", "t3"]
        assert [bytes(file.data(f"t{number}")) for number in (1, 2, 3)] == [
            bytes([number]) * 32 for number in (1, 2, 3)
        ]
        assert file.file_bytes == sum(path.stat().st_size for path in paths)
        assert str(file.tensor_error("t3", "is odd")).startswith(str(paths[2]))


def test_a_split_into_one_needs_no_special_name(tmp_path: Path) -> None:
    path = write_shard(tmp_path, 1, 1).rename(tmp_path / "plain.gguf")
    with open_gguf(path) as file:
        assert file.paths == (path,)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    paths = write_model(tmp_path, 3)
    paths[2].unlink()
    assert refused(paths[0]) == (
        "model-00001-of-00003.gguf: shard 3 of 3 is missing: model-00003-of-00003.gguf"
    )


def test_another_than_the_first_shard_is_refused(tmp_path: Path) -> None:
    paths = write_model(tmp_path, 2)
    assert refused(paths[1]) == (
        "model-00002-of-00002.gguf: is shard 2 of 2; open the first, model-00001-of-00002.gguf"
    )


def test_a_renamed_shard_is_refused(tmp_path: Path) -> None:
    path = write_model(tmp_path, 2)[0].rename(tmp_path / "renamed.gguf")
    assert refused(path) == ("renamed.gguf: is shard 1 of 2, so its name must end in -00001-of-00002.gguf")


def test_a_broken_sibling_is_the_one_that_is_named(tmp_path: Path) -> None:
    paths = write_model(tmp_path, 2)
    paths[1].write_bytes(paths[1].read_bytes()[:-1])
    assert refused(paths[0]).startswith("model-00002-of-00002.gguf: tensor 't2' ends at byte ")


def test_shards_of_different_models_are_refused(tmp_path: Path) -> None:
    paths = write_model(tmp_path, 2)
    write_shard(tmp_path, 2, 2, says=(2, 5))
    assert refused(paths[0]) == "model-00002-of-00002.gguf: is shard 2 of 5, expected 2 of 2"
    write_shard(tmp_path, 2, 2, version=2)
    assert refused(paths[0]) == "model-00002-of-00002.gguf: is GGUF version 2, the first shard 3"


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    paths = write_model(tmp_path, 2)
    write_shard(tmp_path, 2, 2, tensor="t1")
    assert refused(paths[0]) == (
        "model-00002-of-00002.gguf: tensor 't1' is also in model-00001-of-00002.gguf"
    )


def test_a_wrong_tensor_total_is_refused(tmp_path: Path) -> None:
    paths = write_model(tmp_path, 2)
    write_shard(tmp_path, 1, 2, n_tensors=3)
    assert "key 'split.tensors.count' is 3, the shards hold 2" in refused(paths[0])


def test_an_absurd_shard_count_is_refused(tmp_path: Path) -> None:
    path = write_shard(tmp_path, 1, 65_535)
    assert "key 'split.count' is 65535, above the maximum of 1024" in refused(path)
