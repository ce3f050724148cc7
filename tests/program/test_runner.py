"""The native runner: its protocol, bad settings, bad batches that cost nobody else, and its samplers."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ferrite import _native
from ferrite.gguf import open_gguf
from ferrite.models import trace_model
from ferrite.program.runner import NativeRunner, RunnerConfig, RunnerConfigError, load_runner
from ferrite.program.step import Int32Array, Runner, StepBatch, StepError
from ferrite.program.weights import load_weights
from ferrite.sampling import SamplingParams
from tests.reference.tiny import write_tiny_model


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runner") / "tiny.gguf"
    write_tiny_model(path, "llama", quantisation="Q8_0", context_length=100)
    return path


def runner_of(path: Path, **settings: Any) -> NativeRunner:
    with open_gguf(path) as file:
        return load_runner(file, trace_model(file), RunnerConfig(**{"threads": 1, **settings}))


@pytest.fixture(scope="module")
def runner(path: Path) -> NativeRunner:
    return runner_of(path, threads=2, sequences=2)


def ints(*values: int) -> Int32Array:
    return np.array(values, np.int32)


def batch(runner: Runner, params: SamplingParams | None = None) -> StepBatch:
    """Three rows of one sequence; a token is sampled after the last."""
    return StepBatch(
        token_ids=ints(5, 6, 7),
        positions=ints(0, 1, 2),
        sequences=ints(0, 0, 0),
        block_tables=[[3]],
        sample_rows=ints(2),
        samplers=[runner.sampler(params or SamplingParams(), [5, 6, 7], seed=1)],
    )


POSITION_BYTES = {"f16": 2 * 2 * 128 * 2, "f32": 2 * 2 * 128 * 4, "q8_0": 2 * 2 * 128 * 17 // 16}
"""Two layers, K and V, two heads of 64; int8 has two bytes more for each 32."""


def test_a_runner_says_what_it_is(path: Path, runner: Runner) -> None:
    assert (runner.vocab_size, runner.context_length, runner.block_tokens) == (271, 100, 16)
    assert runner.n_blocks == 2 * 7
    assert runner.block_bytes == 16 * POSITION_BYTES["f16"]


def test_its_memory_and_work_are_those_of_the_program(path: Path) -> None:
    runner = runner_of(path, kv_dtype="f32", block_tokens=32, context_length=65, sequences=3)
    assert runner.n_blocks == 9
    positions, kv_heads, head_size, n_layers = 9 * 32, 2, 64, 2
    assert runner.kv_bytes == positions * n_layers * 2 * kv_heads * head_size * 4
    assert runner.session_bytes * 3 == runner.kv_bytes == runner.block_bytes * 9
    rows = 271 + 2 * (256 + 2 * 128 + 2 * 512)
    assert runner.multiply_adds == 256 * rows + 2 * (256 * 256 + 512 * 256)
    assert runner.step_bytes < runner.weight_bytes


BLOCK_COUNTS: dict[str, tuple[dict[str, Any], int]] = {
    "whole context": ({}, 7),
    "a session's capacity": ({"session_positions": 33}, 3),
    "capacity above the context": ({"session_positions": 2**62}, 7),
    "capacity of several": ({"session_positions": 33, "sequences": 4, "block_tokens": 32}, 8),
    "spare bytes below a block": ({"spare_bytes": 16383}, 7),
    "spare bytes of a block": ({"spare_bytes": 16384}, 8),
    "spare bytes beside sequences": ({"spare_bytes": 3 * 32768, "sequences": 2, "kv_dtype": "f32"}, 17),
}


@pytest.mark.parametrize("case", BLOCK_COUNTS)
def test_the_store_holds_every_session_at_its_capacity_and_what_is_spared(path: Path, case: str) -> None:
    settings, expected = BLOCK_COUNTS[case]
    runner = runner_of(path, **settings)
    assert runner.n_blocks == expected
    assert runner.context_length == 100


@pytest.mark.parametrize("kv_dtype", POSITION_BYTES)
def test_locus_blocks_are_whole_pages(path: Path, kv_dtype: str) -> None:
    vec, locus = (runner_of(path, kv_dtype=kv_dtype, kv_backend=backend) for backend in ("vec", "locus"))
    page = os.sysconf("SC_PAGE_SIZE")
    assert vec.block_bytes == 16 * POSITION_BYTES[kv_dtype]
    assert locus.block_bytes == -(-vec.block_bytes // page) * page
    assert locus.n_blocks == vec.n_blocks
    assert locus.run_blocks == vec.run_blocks == 32


@pytest.mark.parametrize("provider", ["auto", *_native.providers()])
def test_a_provider_is_chosen_by_name(path: Path, provider: str) -> None:
    expected = _native.providers()[0] if provider == "auto" else provider
    assert runner_of(path, provider=provider).provider == expected


BAD_SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "provider": ({"provider": "riscv"}, "kernel provider 'riscv' does not run on this machine"),
    "block of 0": ({"block_tokens": 0}, "block_tokens is 0, expected a multiple of 16"),
    "block of 24": ({"block_tokens": 24}, "block_tokens is 24, expected a multiple of 16"),
    "context of 0": ({"context_length": 0}, "context_length is 0, expected at least 1"),
    "negative context": ({"context_length": -5}, "context_length is -5, expected at least 1"),
    "no sequences": ({"sequences": 0}, "sequences is 0, expected at least 1"),
    "endless context": ({"context_length": 2**60}, f"1 sequences of {2**60} positions"),
    "endless block": ({"block_tokens": 2**60}, f"block_tokens is {2**60}, expected a multiple of 16"),
    "session of 0": ({"session_positions": 0}, "session_positions is 0, expected at least 1"),
    "negative spare": ({"spare_bytes": -1}, "spare_bytes is -1, expected at least 0"),
    "endless spare": (
        {"spare_bytes": 2**60},
        "lower the context length, the number of sequences or the spare",
    ),
    "unknown type": ({"kv_dtype": "q4_0"}, "unknown type 'q4_0'"),
    "unknown backend": ({"kv_backend": "malloc"}, "unknown backend 'malloc'"),
}


@pytest.mark.parametrize("case", BAD_SETTINGS)
def test_a_setting_that_cannot_be_is_named_in_one_line(path: Path, case: str) -> None:
    settings, expected = BAD_SETTINGS[case]
    with pytest.raises(RunnerConfigError) as caught:
        runner_of(path, **settings)
    assert expected in str(caught.value)
    assert str(caught.value).isprintable()


def test_int8_keys_need_heads_of_whole_groups(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path, "llama", head_size=48)
    with pytest.raises(RunnerConfigError) as caught:
        runner_of(path, kv_dtype="q8_0")
    assert str(caught.value) == (
        "kv_dtype q8_0 needs a head size that is a multiple of 32, and this model's is 48"
    )


@pytest.mark.parametrize("threads", [0, -1, 1025])
def test_a_number_of_threads_out_of_bounds_is_refused(path: Path, threads: int) -> None:
    with open_gguf(path) as file:
        program = trace_model(file)
        weights = load_weights(file, program, threads=1)
    with pytest.raises(RunnerConfigError, match="threads must be between 1 and 1024"):
        NativeRunner(program, weights, RunnerConfig(threads=threads))


BAD_BATCHES: dict[str, tuple[Callable[[StepBatch], StepBatch], str]] = {
    "negative token": (lambda b: replace(b, token_ids=ints(5, -1, 7)), "token id out of range"),
    "token beyond": (lambda b: replace(b, token_ids=ints(5, 271, 7)), "token id out of range"),
    "short positions": (lambda b: replace(b, positions=ints(0, 1)), "row arrays differ in length"),
    "long sequences": (lambda b: replace(b, sequences=ints(0, 0, 0, 0)), "row arrays differ in length"),
    "gap": (lambda b: replace(b, positions=ints(0, 1, 3)), "not consecutive"),
    "repeated position": (lambda b: replace(b, positions=ints(0, 1, 1)), "not consecutive"),
    "negative position": (lambda b: replace(b, positions=ints(-1, 0, 1)), "beyond the block table"),
    "beyond the table": (lambda b: replace(b, positions=ints(14, 15, 16)), "beyond the block table"),
    "last position": (
        lambda b: replace(b, positions=ints(*range(2**31 - 3, 2**31))),
        "beyond the block table",
    ),
    "no such sequence": (lambda b: replace(b, sequences=ints(0, 0, 1)), "sequence out of range"),
    "sequences backwards": (
        lambda b: replace(b, sequences=ints(1, 0, 0), positions=ints(0, 0, 1), block_tables=[[0], [1]]),
        "not in order",
    ),
    "no such block": (lambda b: replace(b, block_tables=[[14]]), "KV block out of range"),
    "negative block": (lambda b: replace(b, block_tables=[[-1]]), "KV block out of range"),
    "no blocks": (lambda b: replace(b, block_tables=[[]]), "beyond the block table"),
    "no such row": (lambda b: replace(b, sample_rows=ints(3)), "logit row out of range"),
    "no sampler": (lambda b: replace(b, samplers=[]), "one sampler for each logit row"),
    "two samplers": (lambda b: replace(b, samplers=[*b.samplers] * 2), "one sampler for each logit row"),
}


@pytest.mark.parametrize("case", BAD_BATCHES)
def test_a_bad_batch_is_a_step_error_and_the_next_step_is_as_ever(runner: NativeRunner, case: str) -> None:
    expected = runner.step(batch(runner)).tolist()
    change, message = BAD_BATCHES[case]
    with pytest.raises(StepError, match=message):
        runner.step(change(batch(runner)))
    assert runner.step(batch(runner)).tolist() == expected


def test_an_empty_batch_is_a_step_error(runner: NativeRunner) -> None:
    with pytest.raises(StepError, match="row"):
        runner.step(StepBatch(ints(), ints(), ints(), [], ints(), []))


def test_a_step_may_sample_nothing(runner: NativeRunner) -> None:
    assert runner.step(replace(batch(runner), sample_rows=ints(), samplers=[])).tolist() == []


def test_only_blocks_of_the_store_are_copied(runner: NativeRunner) -> None:
    runner.copy_block(0, 13)
    for source, target in ((0, 14), (14, 0), (-1, 0), (0, -1)):
        with pytest.raises(IndexError, match="KV block out of range"):
            runner.copy_block(source, target)


@pytest.mark.parametrize("kv_backend", ["vec", "locus"])
def test_only_blocks_of_the_store_are_returned(path: Path, kv_backend: str) -> None:
    runner = runner_of(path, kv_backend=kv_backend)
    expected = runner.step(batch(runner)).tolist()
    runner.return_blocks([])
    runner.return_blocks((0, 1, 2))
    for blocks in ([7], [0, -1]):
        with pytest.raises(IndexError, match="KV block out of range"):
            runner.return_blocks(blocks)
    runner.return_blocks([3])
    assert runner.step(batch(runner)).tolist() == expected


def test_a_row_serves_several_samplers(runner: NativeRunner) -> None:
    """As when several requests with one prompt take their first token: each as if it were alone."""
    wanted = [replace(RANDOM, seed=1), replace(RANDOM, seed=2), SamplingParams(), replace(RANDOM, seed=1)]
    samplers = [runner.sampler(params, [5, 6, 7], seed=0) for params in wanted]
    together = runner.step(replace(batch(runner), sample_rows=ints(2, 2, 2, 2), samplers=samplers)).tolist()
    assert together == [int(runner.step(batch(runner, params))[0]) for params in wanted]
    assert together[0] == together[3]


def draws(runner: NativeRunner, params: SamplingParams, *, seed: int, count: int = 24) -> list[int]:
    """Tokens of one sampler on the same logits."""
    sampler = runner.sampler(params, [5, 6, 7], seed)
    return [int(runner.step(replace(batch(runner), samplers=[sampler]))[0]) for _ in range(count)]


RANDOM = SamplingParams(temperature=2.0)


def test_the_request_s_own_seed_beats_the_engine_s(runner: NativeRunner) -> None:
    own = replace(RANDOM, seed=7)
    assert draws(runner, own, seed=1) == draws(runner, own, seed=2)
    assert draws(runner, RANDOM, seed=7) == draws(runner, own, seed=1)
    assert draws(runner, RANDOM, seed=1) != draws(runner, RANDOM, seed=2)


def test_every_64_bit_seed_is_a_stream_of_its_own(runner: NativeRunner) -> None:
    seeds = (0, 1, -1, 2**32, -(2**32), 2**63 - 1, -(2**63))
    streams = {tuple(draws(runner, replace(RANDOM, seed=seed), seed=0)) for seed in seeds}
    assert len(streams) == len(seeds)
    assert draws(runner, RANDOM, seed=2**64 - 1) == draws(runner, replace(RANDOM, seed=-1), seed=0)


def test_seed_zero_is_a_seed_and_not_the_absence_of_one(runner: NativeRunner) -> None:
    zero = replace(RANDOM, seed=0)
    assert draws(runner, zero, seed=1) == draws(runner, zero, seed=2)


def test_more_candidates_than_tokens_are_all_tokens(runner: NativeRunner) -> None:
    unlimited = draws(runner, RANDOM, seed=3)
    for top_k in (271, 272, 2**31 - 1, 2**31, 2**63):
        assert draws(runner, replace(RANDOM, top_k=top_k), seed=3) == unlimited


def test_a_sampler_refuses_ids_outside_the_vocabulary(runner: NativeRunner) -> None:
    for token in (-1, 271):
        with pytest.raises(ValueError, match=f"^prompt: token {token} is outside the vocabulary of 271$"):
            runner.sampler(SamplingParams(), [token], 0)
        with pytest.raises(ValueError, match=f"^logit_bias: token {token} is outside the vocabulary of 271$"):
            runner.sampler(SamplingParams(logit_bias=((token, 1.0),)), [], 0)


def test_a_sampler_says_how_likely_its_token_was(runner: NativeRunner) -> None:
    logits = runner.logits(batch(runner))[0]
    for top in (0, 4, 20):
        sampler = runner.sampler(RANDOM, [5, 6, 7], seed=3, top_logprobs=top)
        token = int(runner.step(replace(batch(runner), samplers=[sampler]))[0])
        assert sampler.logprobs == [_native.token_logprobs(logits, token, top)]
    with pytest.raises(ValueError, match="top_logprobs: 21 is above 20"):
        runner.sampler(RANDOM, [], 0, top_logprobs=21)


def test_a_sampler_takes_what_its_mask_allows(runner: NativeRunner) -> None:
    slot = runner.mask_slot()
    sampler = runner.sampler(SamplingParams(), [5, 6, 7], seed=3, mask=slot, top_logprobs=0)
    slot.begin()
    slot.words[:] = 0
    slot.words[4] = 1 << 2
    slot.publish()
    assert runner.step(replace(batch(runner), samplers=[sampler])).tolist() == [4 * 32 + 2]
    logits = runner.logits(batch(runner))[0]
    assert sampler.logprobs == [_native.token_logprobs(logits, 4 * 32 + 2, 0)]
    slot.begin()
    slot.fail()
    assert runner.step(replace(batch(runner), samplers=[sampler])).tolist() == [-1]
    assert slot.state == "failed"


def test_a_draft_has_to_be_of_the_rows_behind_its_own(runner: NativeRunner) -> None:
    rows = replace(
        batch(runner),
        sequences=ints(0, 0, 1),
        positions=ints(0, 1, 0),
        block_tables=[[3], [4]],
        sample_rows=ints(0),
    )
    for drafted in ([2], [-1], [3], [1, 0]):
        with pytest.raises(StepError, match="draft"):
            runner.step(replace(rows, drafted=drafted))
    first = int(runner.step(rows)[0])
    assert runner.step(replace(rows, drafted=[1])).tolist() == [first, -1]
    assert first != 6
    came = replace(rows, token_ids=ints(5, first, 7), samplers=batch(runner).samplers, drafted=[1])
    alone = replace(rows, token_ids=ints(5, first, 7), samplers=batch(runner).samplers, sample_rows=ints(1))
    assert runner.step(came).tolist() == [first, *runner.step(alone).tolist()]


def test_rows_score_tokens_beside_samplers(runner: NativeRunner) -> None:
    all_rows = replace(batch(runner), sample_rows=ints(0, 1, 2))
    logits = runner.logits(all_rows)
    expected = runner.step(batch(runner)).tolist()
    scorer = runner.scorer([6, 7], 3)
    assert runner.step(replace(batch(runner), scored=[(0, scorer)])).tolist() == expected
    assert scorer.logprobs == [_native.token_logprobs(logits[n], token, 3) for n, token in enumerate([6, 7])]
    scorer = runner.scorer([8], 0)
    with pytest.raises(StepError, match="scored row out of range"):
        runner.step(replace(batch(runner), scored=[(3, scorer)]))
    assert scorer.logprobs == [None]


def test_a_runner_outlives_the_file_and_the_weights_it_was_made_from(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(path.read_bytes())
    with open_gguf(copy) as file:
        program = trace_model(file)
        weights = load_weights(file, program, threads=2)
        runner = NativeRunner(program, weights, RunnerConfig(threads=1))
    copy.unlink()
    del weights
    again = runner_of(path)
    assert runner.step(batch(runner)).tolist() == again.step(batch(again)).tolist()


def test_two_runners_share_weights_but_no_state(path: Path) -> None:
    with open_gguf(path) as file:
        program = trace_model(file)
        weights = load_weights(file, program, threads=1)
    one, other = (NativeRunner(program, weights, RunnerConfig(threads=1)) for _ in range(2))
    expected = one.step(batch(one)).tolist()
    other.step(replace(batch(other), token_ids=ints(9, 9, 9)))
    follow = replace(
        batch(one),
        token_ids=ints(int(expected[0])),
        positions=ints(3),
        sequences=ints(0),
        sample_rows=ints(0),
    )
    fresh = runner_of(path)
    fresh.step(batch(fresh))
    assert one.step(follow).tolist() == fresh.step(replace(follow, samplers=batch(fresh).samplers)).tolist()
