"""The parity check: equal digests for every way to run, and another one for any other model."""

from dataclasses import replace
from pathlib import Path

import pytest

from ferrite import _native
from ferrite.bench.parity import Variant, digest, prompt_set, variants
from ferrite.gguf import open_gguf
from ferrite.models import trace_model
from ferrite.program.ops import Program
from ferrite.program.weights import LoadedWeights, load_weights
from tests.models.files import take_apart
from tests.reference.tiny import write_tiny_model

PROMPTS = [[7], [1, 2, 3], [(13 * i) % 271 for i in range(20)]]


def loaded(path: Path) -> tuple[Program, LoadedWeights]:
    with open_gguf(path) as file:
        program = trace_model(file)
        return program, load_weights(file, program, threads=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path, "llama", n_layers=1, n_embd=64, n_heads=2, n_kv_heads=1, head_size=32, n_ff=64)
    return path


def test_at_least_twelve_ways_cover_every_provider_and_setting() -> None:
    ways = list(variants())
    assert len(set(ways)) == len(ways) >= 12
    assert {way.provider for way in ways} == set(_native.providers())
    assert {way.threads for way in ways} == {1, 2, 3}
    assert {way.together for way in ways} == {True, False}
    assert len({way.chunk for way in ways}) > 4
    assert {way.block_tokens for way in ways} == {16, 64}


def test_prompts_reach_past_a_cell_a_block_and_a_partition_of_attention() -> None:
    lengths = [len(prompt) for prompt in prompt_set(100)]
    assert lengths == sorted(lengths)
    assert lengths[0] == 1
    assert {15, 16} < set(lengths)
    assert lengths[-1] > 256
    assert prompt_set(100) == prompt_set(100)
    assert prompt_set(100, seed=1) != prompt_set(100, seed=2)
    assert all(0 <= token < 3 for prompt in prompt_set(3) for token in prompt)


def test_every_way_gives_one_digest_for_each_policy(tmp_path: Path) -> None:
    path = tmp_path / "quantised.gguf"
    write_tiny_model(
        path, "qwen2", quantisation="Q8_0", n_layers=1, n_embd=64, n_heads=2, head_size=32, n_ff=64
    )
    program, weights = loaded(path)
    plain, residual = (
        {digest(program, weights, PROMPTS, variant) for variant in variants(residual=policy)}
        for policy in (False, True)
    )
    assert len(plain) == len(residual) == 1
    assert plain != residual


def test_a_thousandth_of_one_weight_gives_another_digest(path: Path) -> None:
    before = digest(*loaded(path), PROMPTS, Variant("portable"))
    parts = take_apart(path)
    values = parts.floats("blk.0.ffn_down.weight")
    values[5] *= 1.001
    parts.set_floats("blk.0.ffn_down.weight", values)
    after = digest(*loaded(parts.write(path)), PROMPTS, Variant("portable"))
    assert before != after
    assert len(before) == len(after) == 16


def test_a_digest_covers_every_position_of_every_prompt_in_order(path: Path) -> None:
    model = loaded(path)
    variant = Variant("portable")
    digests = [
        digest(*model, prompts, variant)
        for prompts in (PROMPTS, PROMPTS[::-1], PROMPTS[:2], [*PROMPTS[:2], PROMPTS[2][:-1]])
    ]
    assert len(set(digests)) == len(digests)
    assert digests[0] == digest(*model, PROMPTS, replace(variant, together=True, chunk=2))
