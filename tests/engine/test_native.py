"""The engine on the native runner: shared, cached and batched requests answer as they do alone."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ferrite.engine import Delta, GenerationRequest
from ferrite.gguf import open_gguf
from ferrite.kv import PrefixLimits
from ferrite.models import trace_model
from ferrite.program.runner import NativeRunner, RunnerConfig, load_runner
from ferrite.sampling import SamplingParams
from tests.engine.bench import Bench, Reader
from tests.engine.fakes import request
from tests.reference.tiny import write_tiny_model

Answers = dict[tuple[tuple[int, ...], SamplingParams], tuple[int, ...]]

POSITIONS = 96
PROMPT = tuple((7 * n) % 250 for n in range(41))
SAMPLED = SamplingParams(temperature=1.0, seed=11, repetition_penalty=1.2)
GREEDY = SamplingParams(temperature=0.0)


class AnyDetokenizer:
    """No text: the ids are what is compared, and a tiny model has more of them than bytes."""

    def push(self, token_id: int) -> str:
        return f"{token_id},"

    def finish(self) -> str:
        return ""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("engine") / "tiny.gguf"
    write_tiny_model(path, "llama", n_layers=2, n_embd=64, n_heads=2, n_kv_heads=1, head_size=32, n_ff=64)
    return path


def runner(path: Path, sequences: int, spare_blocks: int = 0, **changes: Any) -> NativeRunner:
    with open_gguf(path) as file:
        program = trace_model(file)
        config = RunnerConfig(threads=1, context_length=POSITIONS, sequences=sequences, **changes)
        sparing = load_runner(file, program, config)
        spare_bytes = spare_blocks * sparing.block_bytes
        return load_runner(file, program, replace(config, spare_bytes=spare_bytes))


def serve(bench: Bench, asked: Sequence[GenerationRequest], steps: int = 100) -> list[Reader]:
    readers = [bench.submit(one) for one in asked]
    bench.step(steps)
    assert all(reader.finished for reader in readers)
    return readers


def ask(prompt: tuple[int, ...], sampling: SamplingParams, namespace: str = "") -> GenerationRequest:
    return request(prompt, 12, sampling=sampling, cache_namespace=namespace)


@pytest.fixture(scope="module")
def alone(path: Path) -> Answers:
    """The answer to each prompt and way to sample, in an engine of its own."""
    answers = {}
    for prompt in (PROMPT, PROMPT[:20], (*PROMPT[:30], 3, 3, 3)):
        for sampling in (GREEDY, SAMPLED):
            with Bench(runner(path, 1), detokenizer=AnyDetokenizer) as bench:
                answers[prompt, sampling] = serve(bench, [ask(prompt, sampling)])[0].token_ids
    assert len(set(answers.values())) > 3
    return answers


@pytest.mark.parametrize("queue", [2, 64])
@pytest.mark.parametrize("kv_dtype", ["f16", "q8_0"])
def test_drafts_change_no_token(path: Path, kv_dtype: str, queue: int) -> None:
    ways = (
        GREEDY,
        SamplingParams(temperature=0.0, logit_bias=((7, 3.0),), frequency_penalty=0.3),
        # Nearly greedy: it repeats itself now and then.
        SamplingParams(temperature=0.02, seed=5, top_p=0.9),
        SAMPLED,
    )
    asked = [
        request(prompt, 40, sampling=sampling, top_logprobs=top, stop=stop, cache_namespace="k")
        for prompt in (PROMPT, (*PROMPT[:20], *PROMPT[:20]))
        for sampling in ways
        for top, stop in ((None, ()), (2, ("17,",)))
    ]
    answers = []
    for speculation in ("off", "ngram"):
        with Bench(
            runner(path, 4, spare_blocks=24, kv_dtype=kv_dtype),
            detokenizer=AnyDetokenizer,
            drafts_are_free=speculation == "ngram",
            max_concurrent=4,
            inference_wait_seconds=float("inf"),
            event_queue=queue,
            prefix_cache=PrefixLimits(8, 1 << 40),
            speculation=speculation,
        ) as bench:
            events = [
                reader.events
                for group in (asked[:1], asked[:4], asked[4:8], asked[8:])
                for reader in serve(bench, group, 400)
            ]
            answers.append([[event for event in each if isinstance(event, Delta)] for each in events])
            stats = bench.engine.speculation_stats()
            bench.check_idle()
    assert answers[0] == answers[1]
    assert stats is not None
    assert 0 < stats.accepted_tokens < stats.drafted_tokens


@pytest.mark.parametrize("chunk", [8, 128])
def test_equal_prompts_share_rows_and_blocks(path: Path, alone: Answers, chunk: int) -> None:
    with Bench(runner(path, 6), detokenizer=AnyDetokenizer, max_concurrent=6, prefill_chunk=chunk) as bench:
        asked = [ask(PROMPT, sampling) for sampling in (GREEDY, SAMPLED, SAMPLED, GREEDY)]
        asked += [ask(PROMPT[:20], SAMPLED), ask(PROMPT[:20], GREEDY)]
        for reader in serve(bench, asked):
            assert reader.token_ids == alone[reader.asked.prompt_tokens, reader.asked.sampling]
        assert bench.engine.batcher().prefill_tokens == len(PROMPT) + 20
        bench.check_idle()


@pytest.mark.parametrize("backend", ["vec", "locus"])
@pytest.mark.parametrize("kv_dtype", ["f16", "f32", "q8_0"])
def test_cached_answer_is_the_uncached_one(path: Path, alone: Answers, backend: str, kv_dtype: str) -> None:
    native = runner(path, 2, spare_blocks=24, kv_backend=backend, kv_dtype=kv_dtype)
    with Bench(
        native,
        detokenizer=AnyDetokenizer,
        max_concurrent=2,
        inference_wait_seconds=float("inf"),
        prefix_cache=PrefixLimits(8, 1 << 40),
    ) as bench:
        cold = {}
        for prompt in (PROMPT, PROMPT[:20], (*PROMPT[:30], 3, 3, 3)):
            for sampling in (GREEDY, SAMPLED):
                cold[prompt, sampling] = serve(bench, [ask(prompt, sampling)])[0].token_ids
        if kv_dtype == "f16":
            assert cold == alone
        cached = []
        for _ in range(2):
            for reader in serve(bench, [ask(*key, "k") for key in cold]):
                assert reader.finished is not None
                assert reader.token_ids == cold[reader.asked.prompt_tokens, reader.asked.sampling]
                cached.append(reader.finished.usage.cached_tokens)
        assert cached[-6:] == [len(prompt) - 1 for prompt, _ in cold]
        bench.check_idle()
