"""Log-probabilities from the native runner: the log-softmax of its logits, the same bits in any company."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from ferrite.engine import Delta, GenerationRequest, TokenLogprob
from ferrite.gguf import open_gguf
from ferrite.kv import PrefixLimits
from ferrite.models import trace_model
from ferrite.program.runner import NativeRunner, RunnerConfig, load_runner
from ferrite.program.step import StepBatch
from ferrite.sampling import SamplingParams
from tests.engine.bench import Bench, Reader
from tests.engine.fakes import request
from tests.engine.test_native import AnyDetokenizer
from tests.reference.tiny import write_tiny_model

Told = tuple[tuple[int, ...], tuple[TokenLogprob, ...], tuple[TokenLogprob | None, ...]]
"""Ids, their log-probabilities and the prompt's."""

POSITIONS = 128
PROMPT = tuple((7 * n) % 250 for n in range(41))
SAMPLED = SamplingParams(temperature=1.3, seed=11, repetition_penalty=1.2, logit_bias=((7, -100.0), (9, 2.0)))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("logprobs") / "tiny.gguf"
    write_tiny_model(path, "qwen2", n_layers=2, n_embd=64, n_heads=2, n_kv_heads=1, head_size=32, n_ff=64)
    return path


def runner(path: Path, threads: int) -> NativeRunner:
    with open_gguf(path) as file:
        config = RunnerConfig(threads=threads, context_length=POSITIONS, sequences=6, spare_bytes=1 << 20)
        return load_runner(file, trace_model(file), config)


def log_softmax(native: NativeRunner, tokens: Sequence[int]) -> npt.NDArray[np.float64]:
    """The oracle: all positions in one step, float64 arithmetic."""
    rows = np.arange(len(tokens), dtype=np.int32)
    batch = StepBatch(
        token_ids=np.array(tokens, np.int32),
        positions=rows,
        sequences=np.zeros(len(tokens), np.int32),
        block_tables=[list(range(-(-len(tokens) // native.block_tokens)))],
        sample_rows=rows,
        samplers=(),
    )
    logits = native.logits(batch).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return logits


def serve(bench: Bench, asked: Sequence[GenerationRequest], steps: int = 60) -> list[Reader]:
    readers = [bench.submit(one) for one in asked]
    bench.step(steps)
    assert all(reader.finished for reader in readers)
    return readers


def told(reader: Reader) -> tuple[TokenLogprob, ...]:
    return tuple(one for event in reader.events if isinstance(event, Delta) for one in event.logprobs or ())


def check_against(rows: npt.NDArray[np.float64], tokens: Sequence[int], told: Sequence[TokenLogprob]) -> None:
    """``rows[n]`` is the distribution that ``tokens[n]`` came from."""
    assert [one.token for one in told] == list(tokens)
    for row, one in zip(rows, told, strict=True):
        assert one.logprob == pytest.approx(row[one.token], abs=1e-6)
        best = np.lexsort((np.arange(len(row)), -row))[: len(one.top)]
        np.testing.assert_allclose([logprob for _, logprob in one.top], row[best], rtol=0, atol=1e-6)
        assert len({token for token, _ in one.top}) == len(one.top)
        for token, logprob in one.top:
            assert logprob == pytest.approx(row[token], abs=1e-6)


@pytest.fixture(scope="module")
def alone(path: Path) -> Told:
    """What one request in an engine of its own is told."""
    asked = request(PROMPT, 12, sampling=SAMPLED, top_logprobs=5, prompt_logprobs=True)
    with Bench(runner(path, 1), detokenizer=AnyDetokenizer) as bench:
        (reader,) = serve(bench, [asked])
        assert reader.finished is not None
        assert reader.finished.prompt_logprobs is not None
        return reader.token_ids, told(reader), reader.finished.prompt_logprobs


def test_they_are_the_log_softmax_of_the_logits_as_they_came(path: Path, alone: Told) -> None:
    ids, generated, of_prompt = alone
    rows = log_softmax(runner(path, 1), PROMPT + ids)
    check_against(rows[len(PROMPT) - 1 : -1], ids, generated)
    assert of_prompt[0] is None
    check_against(rows[: len(PROMPT) - 1], PROMPT[1:], [one for one in of_prompt if one is not None])
    assert all(len(one.top) == 5 for one in generated)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("chunk", [5, 128])
def test_they_have_the_same_bits_in_any_company(
    path: Path,
    alone: Told,
    threads: int,
    chunk: int,
) -> None:
    ids, generated, of_prompt = alone
    plain = request(PROMPT, 12, sampling=SAMPLED, top_logprobs=5)
    keyed = request(PROMPT, 12, sampling=SAMPLED, top_logprobs=5, cache_namespace="k")
    scored = request(PROMPT, 12, sampling=SAMPLED, top_logprobs=5, prompt_logprobs=True)
    other = request(PROMPT[:20], 12, sampling=SamplingParams(temperature=1.0, seed=5))
    with Bench(
        runner(path, threads),
        detokenizer=AnyDetokenizer,
        max_concurrent=6,
        session_positions=POSITIONS,
        prefill_chunk=chunk,
        prefix_cache=PrefixLimits(4, 1 << 20),
    ) as bench:
        first = serve(bench, [plain, scored, keyed, other, plain])
        (cached,) = serve(bench, [keyed])
        assert cached.finished is not None
        assert cached.finished.usage.cached_tokens == len(PROMPT) - 1
        for reader in [*first, cached]:
            if reader.asked is not other:
                assert (reader.token_ids, told(reader)) == (ids, generated)
        assert first[1].finished is not None
        assert first[1].finished.prompt_logprobs == of_prompt
        bench.check_idle()


def test_fewer_alternatives_are_the_first_of_more(path: Path, alone: Told) -> None:
    with Bench(runner(path, 1), detokenizer=AnyDetokenizer) as bench:
        (reader,) = serve(bench, [request(PROMPT, 12, sampling=SAMPLED, top_logprobs=2)])
        expected = tuple(TokenLogprob(one.token, one.logprob, one.top[:2]) for one in alone[1])
        assert told(reader) == expected
