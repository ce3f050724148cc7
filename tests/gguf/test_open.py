"""Files that open: contents, both versions, data views, release and close."""

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from ferrite.gguf import GGMLType, GGUFError, TensorInfo, open_gguf
from tests.gguf import build
from tests.gguf.build import Build, Tensor


@pytest.mark.parametrize("version", [2, 3])
def test_opens_a_hand_built_file(path: Path, version: int) -> None:
    data = bytes(range(32))
    path.write_bytes(
        bytes(Build([build.pair("k", build.STRING, "v")], [Tensor("t", (4, 2))], data, version=version))
    )
    with open_gguf(path) as file:
        assert file.version == version
        assert file.paths == (path,)
        assert file.file_bytes == path.stat().st_size
        assert list(file.metadata) == ["k"]
        start = path.stat().st_size - 32
        assert dict(file.tensors) == {"t": TensorInfo("t", (4, 2), GGMLType.F32, 32, start, 0)}
        assert bytes(file.data("t")) == data


def test_reads_what_the_gguf_package_writes(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(3)
    writer.add_token_list(["a", "ü", "日本"])
    writer.add_token_scores([0.5, -1.0, 2.0])
    writer.add_custom_alignment(128)
    plain = np.arange(6, dtype=np.float32).reshape(2, 3)
    quantised = gguf.quants.quantize(np.ones((5, 64), np.float32), gguf.GGMLQuantizationType.Q4_1)
    writer.add_tensor("plain", plain)
    writer.add_tensor("quantised", quantised, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    with open_gguf(path) as file:
        assert file.metadata.string("general.architecture") == "llama"
        assert file.metadata.u32("llama.block_count") == 3
        assert file.metadata.strings("tokenizer.ggml.tokens") == ["a", "ü", "日本"]
        assert file.metadata.numbers("tokenizer.ggml.scores").tolist() == [0.5, -1.0, 2.0]
        assert file.tensors["plain"].shape == (3, 2)
        assert file.tensors["quantised"].shape == (64, 5)
        assert file.tensors["quantised"].n_elements == 320
        assert bytes(file.data("plain")) == plain.tobytes()
        assert bytes(file.data("quantised")) == quantised.tobytes()
        assert all(info.offset % 128 == 0 for info in file.tensors.values())


@pytest.mark.parametrize("ggml_type", GGMLType, ids=lambda it: it.name)
def test_accepts_one_block_of_every_known_type(path: Path, ggml_type: GGMLType) -> None:
    tensor = Tensor("t", (ggml_type.block_size,), ggml_type.id)
    path.write_bytes(bytes(Build([], [tensor], bytes(ggml_type.block_bytes))))
    with open_gguf(path) as file:
        assert file.tensors["t"].type is ggml_type
        assert file.data("t").nbytes == file.tensors["t"].n_bytes == ggml_type.block_bytes


def test_block_sizes_equal_those_of_the_gguf_package() -> None:
    sizes = {kind.name: size for kind, size in gguf.GGML_QUANT_SIZES.items()}
    # ggml stores the two scales of this internal type as halves since 2024; the package still says floats.
    sizes["Q8_1"] = (32, 36)
    ids = {kind.name: kind.value for kind in gguf.GGMLQuantizationType}
    ours = {it.name: (it.block_size, it.block_bytes) for it in GGMLType}
    assert {name: ours[name] for name in sizes} == sizes
    assert {name: GGMLType[name].id for name in ids} == ids


def test_a_scalar_has_an_empty_shape_and_one_element(path: Path) -> None:
    path.write_bytes(bytes(Build([], [Tensor("t", ())], bytes(4))))
    with open_gguf(path) as file:
        assert file.tensors["t"].shape == ()
        assert file.tensors["t"].n_elements == 1
        assert file.tensors["t"].n_bytes == 4


def test_tensors_may_stand_in_any_order_with_gaps(path: Path) -> None:
    tensors = [Tensor("b", (8,), 0, 96), Tensor("a", (8,), 0, 0)]
    path.write_bytes(bytes(Build([], tensors, bytes(96) + b"\1" * 32)))
    with open_gguf(path) as file:
        assert bytes(file.data("b")) == b"\1" * 32
        assert list(file.tensors) == ["b", "a"]


def test_a_file_without_tensors_opens(path: Path) -> None:
    path.write_bytes(bytes(Build([build.pair("k", build.U8, 1)])))
    with open_gguf(path) as file:
        assert not file.tensors


def test_data_is_a_read_only_view_that_outlives_close(path: Path) -> None:
    content = bytes(range(256)) * 64
    path.write_bytes(bytes(Build([], [Tensor("t", (4096,))], content)))
    file = open_gguf(path)
    view = file.data("t")
    with pytest.raises(TypeError, match="read-only"):
        view[0] = 1
    file.close()
    assert bytes(view) == content


def test_pages_that_were_read_are_dropped_and_read_again(path: Path) -> None:
    data = bytes(range(256)) * 4096
    path.write_bytes(bytes(Build([], [Tensor("t", (512, 512))], data)))

    def resident_kib() -> int:
        _, _, mapping = Path("/proc/self/smaps").read_text().rpartition(str(path))
        return int(mapping.partition("Rss:")[2].split()[0])

    with open_gguf(path) as file:
        assert bytes(file.data("t")) == data
        assert resident_kib() >= 1024
        file.drop_pages()
        assert resident_kib() == 0
        assert bytes(file.data("t")) == data


def test_a_missing_tensor_is_named(path: Path) -> None:
    path.write_bytes(bytes(Build()))
    with open_gguf(path) as file:
        for use in (file.tensor, file.data):
            with pytest.raises(GGUFError, match=r"model\.gguf: tensor 'output\.weight' is missing$"):
                use("output.weight")


def test_tensor_error_names_file_tensor_and_place(path: Path) -> None:
    path.write_bytes(bytes(Build([], [Tensor("t")], bytes(32))))
    with open_gguf(path) as file:
        message = str(file.tensor_error("t", "has shape 8, expected 4"))
    assert message == f"{path}: tensor 't' has shape 8, expected 4 (at byte 64)"


def test_opening_leaves_no_descriptor_behind(path: Path) -> None:
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, 0))
    before = len(list(Path("/proc/self/fd").iterdir()))
    open_gguf(path).close()
    path.write_bytes(b"GGUF")
    with pytest.raises(GGUFError):
        open_gguf(path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.model
def test_opens_the_real_models(smollm2_path: Path, qwen_path: Path, gemma_path: Path) -> None:
    expected = [(smollm2_path, 49_152, 272), (qwen_path, 151_936, 291), (gemma_path, 262_144, 236)]
    for model, n_tokens, n_tensors in expected:
        with open_gguf(model) as file:
            assert len(file.metadata.strings("tokenizer.ggml.tokens")) == n_tokens
            assert len(file.metadata.integers("tokenizer.ggml.token_type")) == n_tokens
            assert len(file.tensors) == n_tensors
            last = max(file.tensors.values(), key=lambda info: info.offset)
            assert last.offset + last.n_bytes <= model.stat().st_size
