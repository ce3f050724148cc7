"""Sequences in one KV store: copied blocks, shared prefixes, batches of any shape, positions taken back."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from ferrite.program.runner import KvBackend, KvDtype, NativeRunner
from ferrite.program.step import Float32Array, StepBatch
from ferrite.sampling import SamplingParams
from tests.models.support import Way, load, logits, token_ids
from tests.reference.tiny import Architecture, write_tiny_model

ARCHITECTURES: tuple[Architecture, ...] = ("llama", "qwen2", "gemma3")
CONTEXT = 320


@pytest.fixture(scope="module", params=ARCHITECTURES)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sequences") / "tiny.gguf"
    n_layers = 6 if request.param == "gemma3" else 2
    write_tiny_model(
        path, request.param, quantisation="Q4_0", n_layers=n_layers, context_length=CONTEXT, sliding_window=24
    )
    return path


def rows(
    *sequences: tuple[Sequence[int], int, Sequence[int]], wanted: Sequence[int] | None = None
) -> StepBatch:
    """A batch of (tokens, first position, block table) each, with logits of every row or of ``wanted``."""
    tokens = [token for ids, _, _ in sequences for token in ids]
    return StepBatch(
        token_ids=np.array(tokens, np.int32),
        positions=np.array([start + i for ids, start, _ in sequences for i in range(len(ids))], np.int32),
        sequences=np.array([n for n, (ids, _, _) in enumerate(sequences) for _ in ids], np.int32),
        block_tables=[table for _, _, table in sequences],
        sample_rows=np.array(range(len(tokens)) if wanted is None else wanted, np.int32),
        samplers=(),
    )


@pytest.mark.parametrize("block_tokens", [16, 32, 64])
@pytest.mark.parametrize("kv_dtype", get_args(KvDtype))
def test_a_copied_block_continues_either_way_like_a_fresh_computation(
    path: Path, block_tokens: int, kv_dtype: KvDtype
) -> None:
    shared = block_tokens + 5
    prefix, one, other = token_ids(shared), [3, 1, 4, 1, 5], [2, 7, 1, 8, 2]
    runner = load(path, Way(block_tokens=block_tokens, kv_dtype=kv_dtype, sequences=4))
    runner.logits(rows((prefix, 0, [0, 1])))
    runner.copy_block(1, 5)
    first = runner.logits(rows((one, shared, [0, 1])))
    second = runner.logits(rows((other, shared, [0, 5])))
    way = Way(block_tokens=block_tokens, kv_dtype=kv_dtype)
    np.testing.assert_array_equal(first, logits(path, prefix + one, way)[shared:])
    np.testing.assert_array_equal(second, logits(path, prefix + other, way)[shared:])


def test_whole_shared_blocks_need_no_copy(path: Path) -> None:
    prefix, one, other = token_ids(32), [3, 1, 4], [2, 7, 1, 8]
    runner = load(path, Way(threads=2, sequences=4))
    runner.logits(rows((prefix, 0, [7, 3])))
    both = runner.logits(rows((one, 32, [7, 3, 0]), (other, 32, [7, 3, 9])))
    np.testing.assert_array_equal(both[:3], logits(path, prefix + one, Way())[32:])
    np.testing.assert_array_equal(both[3:], logits(path, prefix + other, Way())[32:])


def test_where_a_block_lies_changes_nothing(path: Path) -> None:
    ids = token_ids(70)
    runner = load(path, Way(sequences=1))
    table = [19, 0, 7, 2, 11]
    np.testing.assert_array_equal(runner.logits(rows((ids, 0, table))), logits(path, ids, Way(chunk=70)))


@pytest.mark.parametrize("kv_backend", get_args(KvBackend))
@pytest.mark.parametrize("kv_dtype", get_args(KvDtype))
def test_returned_blocks_serve_the_next_sequence(
    path: Path, kv_backend: KvBackend, kv_dtype: KvDtype
) -> None:
    """Beside a sequence that keeps its blocks, in blocks that were given back after a longer one."""
    ids, kept, other = token_ids(70), token_ids(40)[::-1], token_ids(45)[::-1]
    way = Way(kv_backend=kv_backend, kv_dtype=kv_dtype, sequences=2)
    runner = load(path, way)
    runner.logits(rows((ids, 0, [6, 5, 4, 3, 2]), (kept[:20], 0, [0, 1, 9])))
    runner.return_blocks([3, 6, 2, 4, 5])
    both = runner.logits(rows((other, 0, [4, 2, 6]), (kept[20:], 20, [0, 1, 9])))
    np.testing.assert_array_equal(both[:45], logits(path, other, way))
    np.testing.assert_array_equal(both[45:], logits(path, kept, way)[20:])


def test_positions_may_be_written_again(path: Path) -> None:
    """A sequence taken back to an earlier position forgets what came behind."""
    ids, other = token_ids(40), [9, 8, 7, 6]
    runner = load(path, Way())
    table = [0, 1, 2]
    runner.logits(rows((ids, 0, table)))
    again = runner.logits(rows((other, 20, table)))
    np.testing.assert_array_equal(again, logits(path, ids[:20] + other, Way())[20:])


def test_only_the_wanted_rows_get_logits_in_the_wanted_order(path: Path) -> None:
    ids = token_ids(30)
    runner = load(path, Way())
    some = runner.logits(rows((ids, 0, [0, 1]), wanted=[29, 0, 7, 7]))
    np.testing.assert_array_equal(some, logits(path, ids, Way())[[29, 0, 7, 7]])
    none = runner.logits(rows((ids, 0, [0, 1]), wanted=[]))
    assert none.shape == (0, runner.vocab_size)


def chunks(lengths: list[int], draw: random.Random) -> Iterator[list[tuple[int, int, int]]]:
    """Steps of (sequence, from, to): in each, some sequences advance by some rows, until all are through."""
    at = [0] * len(lengths)
    while at != lengths:
        step = []
        for index, length in enumerate(lengths):
            if at[index] < length and draw.random() < 0.6:
                to = min(length, at[index] + draw.choice([1, 1, 2, 7, 16, 40]))
                step.append((index, at[index], to))
                at[index] = to
        if step:
            yield step


@pytest.mark.parametrize("seed", range(4))
def test_any_mix_of_prefill_and_decode_gives_each_sequence_its_own_bits(path: Path, seed: int) -> None:
    draw = random.Random(seed)
    lengths = [1, 17, 40, 64, 270] if seed == 0 else [draw.randrange(1, 80) for _ in range(4)]
    prompts = [[draw.randrange(271) for _ in range(length)] for length in lengths]
    way = Way(threads=draw.choice([1, 2, 3]), sequences=len(prompts))
    runner = load(path, way)
    blocks = list(range(runner.n_blocks))
    draw.shuffle(blocks)
    tables = [[blocks.pop() for _ in range(-(-length // 16))] for length in lengths]
    found: list[list[Float32Array]] = [[] for _ in prompts]
    for step in chunks(lengths, draw):
        batch = rows(*((prompts[i][start:stop], start, tables[i]) for i, start, stop in step))
        parts = np.split(runner.logits(batch), np.cumsum([stop - start for _, start, stop in step])[:-1])
        for (index, _, _), part in zip(step, parts, strict=True):
            found[index].append(part)
    for prompt, parts in zip(prompts, found, strict=True):
        np.testing.assert_array_equal(np.concatenate(parts), logits(path, prompt, Way(chunk=512)))


def generate(runner: NativeRunner, prompt: list[int], count: int, params: SamplingParams) -> list[int]:
    """Tokens sampled one after the other in blocks from 0 on."""
    sampler = runner.sampler(params, prompt, seed=5)
    table = list(range(-(-(len(prompt) + count) // runner.block_tokens)))
    tokens, at = list(prompt), 0
    for _ in range(count):
        batch = rows((tokens[at:], at, table), wanted=[len(tokens) - at - 1])
        at = len(tokens)
        sampled = runner.step(replace(batch, samplers=[sampler]))
        tokens.append(int(sampled[0]))
    return tokens[len(prompt) :]


def test_greedy_tokens_are_the_argmax_of_the_logits(path: Path) -> None:
    prompt = token_ids(20)
    generated = generate(load(path, Way()), prompt, 30, SamplingParams())
    expected = logits(path, prompt + generated, Way()).argmax(axis=1)
    assert generated == expected[19:-1].tolist()


def test_a_seed_gives_the_same_tokens_alone_and_beside_others(path: Path) -> None:
    params = SamplingParams(temperature=1.0, top_p=0.9, repetition_penalty=1.1, seed=-3)
    prompt = token_ids(12)
    alone = generate(load(path, Way()), prompt, 12, params)
    runner = load(path, Way(threads=3, sequences=3, provider="portable"))
    mine = runner.sampler(params, prompt, seed=99)
    tokens, at = list(prompt), 0
    for step in range(12):
        others = [(token_ids(step + 2), 0, [5, 6]), (token_ids(1 + step % 3), 0, [8])]
        batch = rows((tokens[at:], at, [0, 1]), *others, wanted=[len(tokens) - at - 1, 0])
        noise = runner.sampler(SamplingParams(temperature=2.0), [], seed=step)
        at = len(tokens)
        sampled = runner.step(replace(batch, samplers=[mine, noise]))
        tokens.append(int(sampled[0]))
    assert tokens[12:] == alone
