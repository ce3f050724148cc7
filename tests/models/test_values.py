"""Weights that are not finite or out of range, and files changed at random: ids of -1, never a crash."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ferrite import _native
from ferrite.gguf import GGUFError
from tests.gguf.build import BOOL, F32, STRING, U32
from tests.models.files import Parts
from tests.models.small import MOST_MEMORY, every_architecture, name_of, step
from tests.models.support import memory_bounded

NOT_FINITE = (float("nan"), float("inf"), float("-inf"))


@every_architecture
@pytest.mark.parametrize("number", NOT_FINITE)
def test_a_weight_that_is_not_finite_samples_nothing(parts: Parts, tmp_path: Path, number: float) -> None:
    for name in parts.tensors:
        if name == "token_embd.weight":
            continue
        changed = parts.copy()
        values = changed.floats(name)
        values[len(values) // 2] = number
        changed.set_floats(name, values)
        path = changed.write(tmp_path / "m.gguf")
        for provider in _native.providers():
            assert step(path, [7, 8, 9], provider=provider) == [-1, -1], (name, provider)
        if name.endswith(("attn_k.weight", "attn_v.weight")):
            assert step(path, [7, 8, 9], kv_dtype="q8_0") == [-1, -1], name


@every_architecture
def test_an_embedding_that_is_not_finite_spoils_only_sequences_that_hold_its_token(
    parts: Parts, tmp_path: Path
) -> None:
    values = parts.floats("token_embd.weight").reshape(271, 32)
    values[8, 3] = float("nan")
    parts.set_floats("token_embd.weight", values)
    path = parts.write(tmp_path / "m.gguf")
    assert step(path, [7, 8, 9]) == [-1, -1]
    assert min(step(path, [7, 9])) >= 0


@every_architecture
@pytest.mark.parametrize("type_id", [1, 2, 8])
def test_scales_that_are_not_finite_sample_nothing(parts: Parts, tmp_path: Path, type_id: int) -> None:
    """All bytes 0xFF: every value of F16 and every scale of Q4_0 and Q8_0 is a NaN."""
    for name, stored in parts.tensors.items():
        if len(stored.shape) == 2 and name != "token_embd.weight":
            changed = parts.copy()
            changed.set_tensor(name, stored.shape, type_id)
            changed.tensors[name].data = b"\xff" * len(changed.tensors[name].data)
            assert step(changed.write(tmp_path / "m.gguf"), [7, 8]) == [-1, -1], name


@every_architecture
@pytest.mark.parametrize("size", [3e38, 1e20, 1e-38, 0.0])
def test_weights_at_the_edges_of_float32_do_no_harm(parts: Parts, tmp_path: Path, size: float) -> None:
    for name in list(parts.tensors):
        values = parts.floats(name)
        parts.set_floats(name, np.where(values > 0.1, np.float32(size), values))
    ids = step(parts.write(tmp_path / "m.gguf"), [7, 8, 9])
    assert all(-1 <= i < 271 for i in ids)


MUTATIONS = 400
INTERESTING = (0, 1, 2, 3, 7, 16, 31, 32, 64, 255, 2**16, 2**20, 2**31, 2**32 - 1)


def mutate(parts: Parts, draw: random.Random) -> None:
    """Change one thing: a metadata value's bytes or number, a tensor's shape, type, bytes or name."""
    keys = [k for k in parts.pairs if not k.startswith("tokenizer.")]
    names = list(parts.tensors)

    def bytes_of_value() -> None:
        key = draw.choice(keys)
        type_id, payload = parts.pairs[key]
        if type_id not in (STRING, BOOL):
            parts.pairs[key] = (type_id, draw.randbytes(len(payload)))

    def number() -> None:
        key = draw.choice(keys)
        parts.set(key, *draw.choice([(U32, draw.choice(INTERESTING)), (F32, draw.uniform(-2, 2))]))

    def shape() -> None:
        stored = parts.tensors[draw.choice(names)]
        changed = list(stored.shape)
        changed[draw.randrange(len(changed))] = draw.choice([1, 2, 16, 31, 32, 64, 96])
        stored.shape = tuple(changed)
        stored.data = (stored.data * 4)[: 4 * int(np.prod(changed))]

    def type_() -> None:
        parts.set_tensor(name := draw.choice(names), parts.tensors[name].shape, draw.choice([0, 1, 2, 8, 30]))

    def data() -> None:
        stored = parts.tensors[draw.choice(names)]
        at = draw.randrange(len(stored.data))
        stored.data = stored.data[:at] + draw.randbytes(8) + stored.data[at + 8 :]

    def swap() -> None:
        one, other = draw.sample(names, 2)
        parts.tensors[one], parts.tensors[other] = parts.tensors[other], parts.tensors[one]

    def forget_key() -> None:
        del parts.pairs[draw.choice(keys)]

    def forget_tensor() -> None:
        del parts.tensors[draw.choice(names)]

    changes: list[Callable[[], None]] = [bytes_of_value, number, shape, type_, data, swap]
    changes += [forget_key, forget_tensor]
    draw.choice(changes)()


@every_architecture
def test_any_change_of_a_file_is_refused_in_one_line_or_runs(parts: Parts, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    refusals, samples = [], []
    with memory_bounded(MOST_MEMORY):
        for seed in range(MUTATIONS):
            draw = random.Random(f"{name_of(parts)} {seed}")
            changed = parts.copy()
            for _ in range(draw.choice([1, 1, 1, 2, 3])):
                mutate(changed, draw)
            try:
                samples.append(step(changed.write(path), [draw.randrange(16) for _ in range(3)]))
            except GGUFError as error:
                refusals.append(str(error))
    assert all(message.isprintable() for message in refusals)
    assert all(-1 <= i < 271 for ids in samples for i in ids)
    assert min(len(refusals), len(samples)) > MUTATIONS // 10
