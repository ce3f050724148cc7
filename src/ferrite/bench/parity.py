"""The bit contract, checked: one digest of all logits for every way to run the same prompts."""

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ferrite import _native
from ferrite.bench.rows import Lines
from ferrite.program.ops import Program
from ferrite.program.runner import KvDtype, NativeRunner, RunnerConfig
from ferrite.program.weights import LoadedWeights

Prompt = Sequence[int]


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run the prompts; every field but ``residual`` and ``kv_dtype`` may change, no bit may."""

    provider: str
    threads: int = 1
    together: bool = False
    """all prompts in the same steps, their rows interleaved chunk by chunk; otherwise one after another"""
    chunk: int = 512
    """prompt rows a step takes from one sequence"""
    block_tokens: int = 16
    residual: bool = False
    """residual activations: another policy, whose digest is another"""
    kv_dtype: KvDtype = "f16"
    """the same holds for the number format of the KV cache"""


def variants(*, residual: bool = False, kv_dtype: KvDtype = "f16") -> Iterator[Variant]:
    """Every kernel table of this machine, then thread counts, batch shapes, chunkings and KV blocks."""
    providers = _native.providers()
    best = Variant(providers[0], residual=residual, kv_dtype=kv_dtype)
    for provider in providers:
        yield replace(best, provider=provider, threads=2)
    for threads in (1, 2, 3):
        yield replace(best, threads=threads, together=True)
    for chunk in (1, 7, 64, 100):
        yield replace(best, threads=2, chunk=chunk)
        yield replace(best, threads=3, chunk=chunk, together=True)
    yield replace(best, threads=1)
    yield replace(best, threads=3)
    yield replace(best, threads=2, chunk=33, block_tokens=64)
    yield replace(best, provider="portable", threads=3, chunk=48, together=True)


def prompt_set(vocab_size: int, *, seed: int = 7) -> list[Prompt]:
    """Random token ids: lengths around the KV cell and block, and one past the attention partition."""
    draw = random.Random(seed)  # noqa: S311 - test data
    return [[draw.randrange(vocab_size) for _ in range(length)] for length in (1, 15, 16, 33, 270)]


def digest(program: Program, weights: LoadedWeights, prompts: Sequence[Prompt], variant: Variant) -> str:
    """SHA-256 (first 16 hex digits) over the logits of every position of every prompt, prompt by prompt."""
    longest = max(map(len, prompts))
    config = RunnerConfig(
        threads=variant.threads,
        provider=variant.provider,
        residual_activations=variant.residual,
        kv_dtype=variant.kv_dtype,
        block_tokens=variant.block_tokens,
        context_length=longest,
        sequences=len(prompts),
    )
    runner = NativeRunner(program, weights, config)
    hashes = [hashlib.sha256() for _ in prompts]
    lines = Lines(len(prompts), -(-longest // variant.block_tokens))
    for step in _steps(prompts, variant):
        logits = runner.logits(lines.batch(step, logits="all"))
        at = 0
        for index, tokens in step:
            hashes[index].update(np.ascontiguousarray(logits[at : at + len(tokens)]).view(np.uint8).data)
            at += len(tokens)
    return hashlib.sha256(b"".join(h.digest() for h in hashes)).hexdigest()[:16]


def _steps(prompts: Sequence[Prompt], variant: Variant) -> Iterator[list[tuple[int, Prompt]]]:
    groups = [range(len(prompts))] if variant.together else [[index] for index in range(len(prompts))]
    for group in groups:
        for start in range(0, max(len(prompts[index]) for index in group), variant.chunk):
            step = [(index, prompts[index][start : start + variant.chunk]) for index in group]
            yield [(index, tokens) for index, tokens in step if tokens]
