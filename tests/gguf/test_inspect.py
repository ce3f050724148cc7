"""The text and the data of ``ferrite inspect``."""

import json
import math
from pathlib import Path

import pytest

from ferrite.cli.inspect import inspect_json, inspect_text, kv_bytes, pre_tokenizer
from ferrite.gguf import open_gguf
from tests.gguf import build
from tests.gguf.build import Build, Tensor

LLAMA = [
    build.pair("general.architecture", build.STRING, "llama"),
    build.pair("general.name", build.STRING, "Tiny"),
    build.pair("general.file_type", build.U32, 7),
    build.pair("llama.block_count", build.U32, 2),
    build.pair("llama.context_length", build.U32, 2048),
    build.pair("llama.embedding_length", build.U32, 64),
    build.pair("llama.attention.head_count", build.U32, 4),
    build.pair("llama.attention.layer_norm_rms_epsilon", build.F32, 1e-5),
    build.pair("tokenizer.ggml.model", build.STRING, "gpt2"),
    build.array_pair("tokenizer.ggml.tokens", build.STRING, [f't"{index}' for index in range(1_500)]),
    build.pair("tokenizer.chat_template", build.STRING, "{% for m in messages %}\n{{ m }}\n{% endfor %}"),
]
TENSORS = [Tensor("a.weight", (32, 2), 8, 0), Tensor("b.weight", (8,), 0, 96)]


def write(path: Path, pairs: list[bytes], tensors: list[Tensor] | None = None) -> Path:
    path.write_bytes(bytes(Build(pairs, TENSORS if tensors is None else tensors, bytes(128))))
    return path


def test_text_shows_summary_mix_and_metadata(path: Path) -> None:
    with open_gguf(write(path, LLAMA)) as file:
        text = inspect_text(file, tensors=False)
    for line in (
        "architecture:  llama",
        "name:          Tiny",
        "file type:     Q8_0",
        "parameters:    72",
        "context:       2,048 tokens",
        "tokenizer:     gpt2 (byte-level BPE), 1,500 tokens",
        "pre-tokenizer: default (assumed: the file has no tokenizer.ggml.pre)",
        "KV cache:      0.5 MiB per 1,024 tokens (f16)",
        "  Q8_0          1 tensors        0.0 MiB   68.0%",
        "  llama.block_count = 2",
        "  llama.attention.layer_norm_rms_epsilon = 1e-05",
        r'  tokenizer.ggml.tokens = ["t\"0", "t\"1", "t\"2", "t\"3", "t\"4", "t\"5", ...] (1,500 x string)',
        '  tokenizer.chat_template = "{% for m in messages %}" ... (44 bytes, 3 lines)',
    ):
        assert line in text.splitlines()
    assert "a.weight" not in text


def test_text_lists_tensors_when_asked(path: Path) -> None:
    with open_gguf(write(path, LLAMA)) as file:
        text = inspect_text(file, tensors=True)
    assert text.endswith("  a.weight  32 x 2  Q8_0  68\n  b.weight  8       F32   32")


def test_json_holds_the_same_facts(path: Path) -> None:
    with open_gguf(write(path, LLAMA)) as file:
        data = json.loads(json.dumps(inspect_json(file), allow_nan=False))
    assert data["parameters"] == 72
    assert data["tokenizer"] == {
        "model": "gpt2",
        "tokens": 1_500,
        "pre_tokenizer": "default",
        "pre_tokenizer_named": False,
    }
    assert data["memory"] == {"weights_bytes": 100, "kv_bytes_per_1024_tokens_f16": 2 * 4 * 32 * 2 * 1_024}
    assert data["quantisation_mix"][0] == {"type": "Q8_0", "tensors": 1, "bytes": 68, "share": 0.68}
    assert data["tensors"][0] == {"name": "a.weight", "shape": [32, 2], "type": "Q8_0", "bytes": 68}
    assert data["metadata"]["llama.block_count"] == 2
    assert data["metadata"]["tokenizer.ggml.tokens"]["count"] == 1_500
    assert len(data["metadata"]["tokenizer.ggml.tokens"]["first"]) == 6


@pytest.mark.parametrize(
    ("pairs", "rule"),
    [
        ([("tokenizer.ggml.model", "gpt2")], "default"),
        ([("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", "default")], "default"),
        ([("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", "qwen2")], "qwen2"),
        ([("tokenizer.ggml.model", "llama"), ("tokenizer.ggml.pre", "default")], None),
        ([], None),
    ],
)
def test_pre_tokenizer_rule(path: Path, pairs: list[tuple[str, str]], rule: str | None) -> None:
    with open_gguf(write(path, [build.pair(key, build.STRING, text) for key, text in pairs])) as file:
        assert pre_tokenizer(file.metadata) == rule
        assert f"pre-tokenizer: {rule or 'none'}" in inspect_text(file, tensors=False)


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ([], 2 * 4 * (16 + 16) * 2),
        ([build.pair("llama.attention.head_count_kv", build.U32, 1)], 2 * 1 * (16 + 16) * 2),
        ([build.array_pair("llama.attention.head_count_kv", build.I32, [1, 2])], 3 * (16 + 16) * 2),
        (
            [
                build.pair("llama.attention.key_length", build.U32, 32),
                build.pair("llama.attention.value_length", build.U32, 8),
            ],
            2 * 4 * (32 + 8) * 2,
        ),
        ([build.pair("llama.attention.head_count_kv", build.F32, 1.0)], None),
    ],
)
def test_kv_bytes_of_one_token(path: Path, extra: list[bytes], expected: int | None) -> None:
    with open_gguf(write(path, [*LLAMA, *extra])) as file:
        assert kv_bytes(file.metadata, 1) == expected


def test_a_file_that_says_little_or_nonsense_is_still_shown(path: Path) -> None:
    pairs = [
        build.pair("general.architecture", build.U8, 1),
        build.pair("general.name", build.STRING, b"\xff"),
        build.pair("general.file_type", build.U32, 999),
        build.pair("control", build.STRING, "\x1b[31mred\u202e"),
        build.pair("nan", build.F64, math.nan),
        build.array_pair("texts", build.STRING, [b"\xff"]),
        build.array_pair("floats", build.F32, [math.inf]),
        build.raw_pair(
            "nested", build.ARRAY, build.array(build.ARRAY, [], count=1) + build.array(build.U8, [])
        ),
    ]
    with open_gguf(write(path, pairs, [])) as file:
        text = inspect_text(file, tensors=True)
        data = json.loads(json.dumps(inspect_json(file), allow_nan=False))
    assert all(line.isprintable() for line in text.splitlines())
    for line in (
        "architecture:  unknown",
        "file type:     unknown",
        "KV cache:      unknown",
        "tokenizer:     none",
        r'  control = "\x1b[31mred\u202e"',
        "  general.name = (not UTF-8)",
        "  nan = nan",
        "  texts = [not UTF-8] (1 x string)",
        "  nested = [...] (1 x array)",
    ):
        assert line in text.splitlines()
    assert data["metadata"]["nan"] == "nan"
    assert data["metadata"]["floats"]["first"] == ["inf"]
    assert data["metadata"]["general.name"]["type"] == "string"
    assert data["metadata"]["nested"] == {"type": "array of array", "count": 1}


@pytest.mark.model
def test_a_real_model(qwen_path: Path) -> None:
    with open_gguf(qwen_path) as file:
        text = inspect_text(file, tensors=True)
        data = inspect_json(file)
    assert "pre-tokenizer: qwen2" in text
    assert "KV cache:      12.0 MiB per 1,024 tokens (f16)" in text
    assert data["file_type"] == "Q4_K_M"
    assert data["parameters"] == 630_167_424
