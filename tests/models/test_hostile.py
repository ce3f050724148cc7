"""Files whose metadata or tensors are wrong: one line that says so, and no memory taken."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ferrite import _native
from ferrite.program.runner import RunnerConfigError
from tests.gguf.build import BOOL, F32, F64, I32, I64, STRING, U8, U32, U64
from tests.models.files import Parts, Stored
from tests.models.small import (
    MOST_MEMORY,
    every_architecture,
    gemma3_only,
    llama_only,
    name_of,
    refusal,
)
from tests.models.support import Way, load, memory_bounded

NEEDED = (
    "{}.attention.head_count",
    "{}.attention.layer_norm_rms_epsilon",
    "{}.block_count",
    "{}.context_length",
    "{}.embedding_length",
    "{}.feed_forward_length",
    "general.architecture",
)


@every_architecture
@pytest.mark.parametrize("key", NEEDED)
def test_a_missing_key_is_named(parts: Parts, tmp_path: Path, key: str) -> None:
    key = key.format(name_of(parts))
    del parts.pairs[key]
    assert refusal(parts, tmp_path / "m.gguf") == f"key '{key}' is missing"


@gemma3_only
def test_gemma3_must_say_how_far_its_windows_reach(parts: Parts, tmp_path: Path) -> None:
    del parts.pairs["gemma3.attention.sliding_window"]
    assert refusal(parts, tmp_path / "m.gguf") == "key 'gemma3.attention.sliding_window' is missing"


INTEGER_KEYS = (
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.dimension_count",
)
NUMBER_KEYS = ("attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.scaling.factor")


@every_architecture
@pytest.mark.parametrize("name", [*INTEGER_KEYS, *NUMBER_KEYS])
@pytest.mark.parametrize("wrong", ["bool", "string", "number", "array"])
def test_a_key_of_another_type_is_named(parts: Parts, tmp_path: Path, name: str, wrong: str) -> None:
    key = f"{name_of(parts)}.{name}"
    match wrong:
        case "bool":
            parts.set(key, BOOL, True)
        case "string":
            parts.set(key, STRING, "32")
        case "number":
            parts.set(key, *((U32, 32) if name in NUMBER_KEYS else (F32, 32.0)))
        case _:
            parts.set_array(key, U32, [32])
    message = refusal(parts, tmp_path / "m.gguf")
    assert message.startswith(f"key '{key}' is ")
    assert "expected" in message


@every_architecture
@pytest.mark.parametrize("name", INTEGER_KEYS)
@pytest.mark.parametrize(
    ("type_id", "content"),
    [(U32, 0), (I32, -1), (I32, -(2**31)), (U32, 2**32 - 1), (I64, -(2**63)), (U64, 2**64 - 1), (U64, 2**40)],
)
def test_an_absurd_size_is_refused(
    parts: Parts, tmp_path: Path, name: str, type_id: int, content: int
) -> None:
    key = f"{name_of(parts)}.{name}"
    parts.set(key, type_id, content)
    assert refusal(parts, tmp_path / "m.gguf").startswith(f"key '{key}' is {content}, expected ")


@every_architecture
@pytest.mark.parametrize("name", INTEGER_KEYS)
@pytest.mark.parametrize("content", [1, 2, 3, 31, 33, 63, 96, 1000])
def test_a_wrong_size_is_refused_where_tensors_show_it(
    parts: Parts, tmp_path: Path, name: str, content: int
) -> None:
    key = f"{name_of(parts)}.{name}"
    unchanged = struct.unpack_from("<I", parts.pairs[key][1])[0]
    harmless = name == "context_length" or (name == "rope.dimension_count" and content == 2)
    if content == unchanged or harmless:
        content += 2 * 2048
    parts.set(key, U32, content)
    if name == "context_length" and name_of(parts) == "gemma3":
        parts.set("gemma3.attention.sliding_window", U32, 2**20)
    if name == "context_length" and name_of(parts) != "gemma3":
        load(parts.write(tmp_path / "m.gguf"), Way())
        return
    assert refusal(parts, tmp_path / "m.gguf").startswith(("key '", "tensor '"))


BAD_NUMBERS = {
    "attention.layer_norm_rms_epsilon": (0.0, -1e-6, 1.0, 1e30, float("nan"), float("inf")),
    "rope.freq_base": (0.0, -1e4, 0.5, 1e12, 1e300, float("nan"), float("inf"), float("-inf")),
    "rope.scaling.factor": (0.0, -4.0, 1e-30, 1e6, 1e300, float("nan"), float("inf")),
    "rope.scale_linear": (0.0, -4.0, 1e-30, 1e6, float("nan")),
}


@every_architecture
@pytest.mark.parametrize(("name", "number"), [(n, x) for n, numbers in BAD_NUMBERS.items() for x in numbers])
def test_a_number_out_of_bounds_is_refused(parts: Parts, tmp_path: Path, name: str, number: float) -> None:
    key = f"{name_of(parts)}.{name}"
    parts.set(key, F64, number)
    assert refusal(parts, tmp_path / "m.gguf").startswith(f"key '{key}' is ")


UNSUPPORTED: dict[str, tuple[int, Any, Any]] = {
    "attention.causal": (BOOL, False, True),
    "attn_logit_softcapping": (F32, 50.0, 0.0),
    "expert_count": (U32, 8, 0),
    "final_logit_softcapping": (F32, 30.0, 0.0),
    "rope.scaling.attn_factor": (F32, 2.0, 1.0),
}


@every_architecture
@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_would_change_the_answer_is_refused_and_its_neutral_value_is_not(
    parts: Parts, tmp_path: Path, name: str
) -> None:
    key = f"{name_of(parts)}.{name}"
    type_id, effective, neutral = UNSUPPORTED[name]
    parts.set(key, type_id, effective)
    assert refusal(parts, tmp_path / "m.gguf").startswith(f"key '{key}' has a value that is not supported")
    parts.set_array(key, U8, [0] * 9)
    assert refusal(parts, tmp_path / "m.gguf").startswith(f"key '{key}' has a value that is not supported")
    parts.set(key, type_id, neutral)
    load(parts.write(tmp_path / "m.gguf"), Way())


@every_architecture
@pytest.mark.parametrize("kind", ["yarn", "longrope", "", "x" * 1000, "line\nbreak", "\x1b[31m"])
def test_another_rope_scaling_is_refused_by_name(parts: Parts, tmp_path: Path, kind: str) -> None:
    key = f"{name_of(parts)}.rope.scaling.type"
    parts.set(key, STRING, kind)
    assert refusal(parts, tmp_path / "m.gguf").startswith(f"key '{key}' is '")


@llama_only
@pytest.mark.parametrize("architecture", ["mamba", "", "Llama", "x" * 1000, "line\nbreak"])
def test_another_architecture_is_refused_by_name(parts: Parts, tmp_path: Path, architecture: str) -> None:
    parts.set("general.architecture", STRING, architecture)
    message = refusal(parts, tmp_path / "m.gguf")
    assert message.startswith("key 'general.architecture' is '")
    assert "supported are gemma3, llama, qwen2" in message


@gemma3_only
@pytest.mark.parametrize("window", [0, 65, 2**32 - 1])
def test_a_window_larger_than_the_context_is_refused(parts: Parts, tmp_path: Path, window: int) -> None:
    key = "gemma3.attention.sliding_window"
    parts.set(key, U32, window)
    assert refusal(parts, tmp_path / "m.gguf").startswith(f"key '{key}' is {window}, expected 1 to 64")


@gemma3_only
def test_a_pattern_of_layers_that_is_none_is_refused(parts: Parts, tmp_path: Path) -> None:
    key = "gemma3.attention.sliding_window_pattern"
    parts.set(key, U32, 0)
    assert refusal(parts, tmp_path / "m.gguf").startswith(f"key '{key}' is 0")
    parts.set_array(key, BOOL, [True])
    assert refusal(parts, tmp_path / "m.gguf").startswith(f"key '{key}' is array of bool, expected integer")


@every_architecture
def test_every_missing_tensor_is_named(parts: Parts, tmp_path: Path) -> None:
    optional = {"output.weight", *(name for name in parts.tensors if name.endswith(".bias"))}
    for name in parts.tensors.keys() - optional:
        without = Parts(parts.pairs, {n: t for n, t in parts.tensors.items() if n != name})
        assert refusal(without, tmp_path / "m.gguf") == f"tensor '{name}' is missing"


def reshaped(shape: tuple[int, ...], how: str) -> tuple[int, ...]:
    match how:
        case "one more row":
            return (*shape[:-1], shape[-1] + 1)
        case "twice as wide":
            return (shape[0] * 2, *shape[1:])
        case "three dimensions":
            return (*shape, *[1] * (2 - len(shape)), 2)
        case "transposed":
            return (shape[-1] + 5, *shape[:-1], 1) if len(shape) == 1 else (shape[1], shape[0] + 1)
        case _:
            return ()


@every_architecture
@pytest.mark.parametrize("how", ["one more row", "twice as wide", "three dimensions", "transposed", "scalar"])
def test_every_tensor_of_another_shape_is_named(parts: Parts, tmp_path: Path, how: str) -> None:
    for name, stored in parts.tensors.items():
        changed = parts.copy()
        changed.set_tensor(name, reshaped(stored.shape, how))
        message = refusal(changed, tmp_path / "m.gguf")
        if name == "token_embd.weight" and how in ("one more row", "transposed"):
            assert message.startswith("key 'tokenizer.ggml.tokens' holds 271 tokens")
        else:
            assert message.startswith(f"tensor '{name}' has shape [")


@every_architecture
def test_every_vector_of_a_quantised_type_is_named(parts: Parts, tmp_path: Path) -> None:
    for name, stored in parts.tensors.items():
        if len(stored.shape) == 1:
            changed = parts.copy()
            changed.set_tensor(name, stored.shape, 8)
            message = refusal(changed, tmp_path / "m.gguf")
            assert message.startswith(f"tensor '{name}' has type Q8_0; norms and biases must be F32")


@every_architecture
def test_every_matrix_of_an_unsupported_type_is_named(parts: Parts, tmp_path: Path) -> None:
    i8 = 24
    assert not _native.supports_type(i8)
    for name, stored in parts.tensors.items():
        if len(stored.shape) == 2:
            changed = parts.copy()
            changed.tensors[name] = Stored(stored.shape, i8, bytes(stored.shape[0] * stored.shape[1]))
            message = refusal(changed, tmp_path / "m.gguf")
            assert message.startswith(f"tensor '{name}' has type I8, which is not supported")


@every_architecture
@pytest.mark.parametrize(
    "name", ["blk.1.attn_q.weight", "blk.0.attn_sinks.weight", "blk.0.attn_norm.bias", "other", "x" * 200]
)
def test_a_tensor_nothing_reads_is_refused(parts: Parts, tmp_path: Path, name: str) -> None:
    parts.set_tensor(name, (32,))
    message = refusal(parts, tmp_path / "m.gguf")
    assert message.startswith("tensor '")
    assert f"is not part of the {name_of(parts)} architecture" in message


@llama_only
@pytest.mark.parametrize("values", [[0.0], [-1.0], [float("nan")], [float("inf")], [0.5]])
def test_rope_factors_must_be_factors(parts: Parts, tmp_path: Path, values: list[float]) -> None:
    parts.set_tensor("rope_freqs.weight", (16,))
    parts.set_floats("rope_freqs.weight", np.array([1.0] * 15 + values, np.float32))
    message = refusal(parts, tmp_path / "m.gguf")
    assert message.startswith("tensor 'rope_freqs.weight' must hold finite factors of at least 0.75")


@llama_only
@pytest.mark.parametrize(("shape", "type_id"), [((32,), 2), ((15,), 0), ((17,), 0), ((16,), 1), ((), 0)])
def test_rope_factors_must_be_one_float_for_each_pair(
    parts: Parts, tmp_path: Path, shape: tuple[int, ...], type_id: int
) -> None:
    parts.set_tensor("rope_freqs.weight", shape, type_id)
    message = refusal(parts, tmp_path / "m.gguf")
    assert message.startswith("tensor 'rope_freqs.weight' is ")
    assert "expected 16 x F32" in message


@gemma3_only
def test_gemma3_has_no_rope_factors(parts: Parts, tmp_path: Path) -> None:
    parts.set_tensor("rope_freqs.weight", (16,))
    parts.set_floats("rope_freqs.weight", np.ones(16, np.float32))
    message = refusal(parts, tmp_path / "m.gguf")
    assert message.startswith("tensor 'rope_freqs.weight' is not part of the gemma3 architecture")


@every_architecture
@pytest.mark.parametrize("n_tokens", [0, 270, 272])
def test_a_vocabulary_of_another_size_than_the_logits_is_refused(
    parts: Parts, tmp_path: Path, n_tokens: int
) -> None:
    parts.set_array("tokenizer.ggml.tokens", STRING, [f"t{i}" for i in range(n_tokens)])
    message = refusal(parts, tmp_path / "m.gguf")
    assert message.startswith(
        f"key 'tokenizer.ggml.tokens' holds {n_tokens} tokens, but the embedding has 271 rows"
    )


@every_architecture
def test_the_longest_context_takes_no_memory_before_it_is_used(parts: Parts, tmp_path: Path) -> None:
    parts.set(f"{name_of(parts)}.context_length", U32, 2**20)
    path = parts.write(tmp_path / "m.gguf")
    with memory_bounded(MOST_MEMORY):
        runner = load(path, Way(sequences=64))
    assert runner.n_blocks == 64 * 2**16
    assert runner.kv_bytes == 2**33


@llama_only
def test_more_context_than_a_process_can_address_is_refused(parts: Parts, tmp_path: Path) -> None:
    parts.set("llama.context_length", U32, 2**20)
    path = parts.write(tmp_path / "m.gguf")
    for sequences in (65, 2**20, 2**40, 2**62):
        with pytest.raises(RunnerConfigError) as caught:
            load(path, Way(sequences=sequences))
        message = str(caught.value)
        assert message.isprintable()
        assert f"{sequences} sequences of 1048576 positions" in message
