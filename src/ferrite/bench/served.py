"""The bit contract through the engine: one digest of all logits sampled from, however requests are served."""

import asyncio
import hashlib
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from ferrite import _native
from ferrite.engine import Engine, EngineConfig, Finished, GenerationRequest
from ferrite.kv import PrefixLimits
from ferrite.program.ops import Program
from ferrite.program.runner import KvBackend, KvDtype, NativeRunner, RunnerConfig
from ferrite.program.step import Int32Array, Logprobs, MaskSlot, Sampler, Scorer, StepBatch
from ferrite.program.weights import LoadedWeights
from ferrite.sampling import SamplingParams

COMPLETION_TOKENS = 8
SHARED_TOKENS = 200
"""How much of the longest prompt the last one repeats: enough for a hit that ends inside a KV block."""
_CACHE = PrefixLimits(max_entries=64, max_bytes=1 << 40)
_CACHE_BYTES = 1 << 27


class ParityError(RuntimeError):
    """A way of serving that did not do what it is there to show; one line."""


@dataclass(frozen=True, slots=True)
class Service:
    """One way to serve the requests; every field but ``residual`` and ``kv_dtype`` may change, no bit may."""

    streams: int = 1
    """sequences that run at once; with one, requests come one after another"""
    chunk: int = 128
    """most prompt rows of a step"""
    cached: bool = False
    """with a prefix cache, and served twice: the second time, when every prompt is a hit, counts"""
    backend: KvBackend = "vec"
    block_tokens: int = 16
    threads: int = 2
    residual: bool = False
    kv_dtype: KvDtype = "f16"


def services(*, residual: bool = False, kv_dtype: KvDtype = "f16") -> Iterator[Service]:
    """Permits, batches, cache hits and both KV policies."""
    alone = Service(residual=residual, kv_dtype=kv_dtype)
    yield alone
    yield replace(alone, streams=8)
    yield replace(alone, streams=3, chunk=7, threads=3)
    yield replace(alone, cached=True)
    yield replace(alone, streams=8, cached=True, chunk=48)
    yield replace(alone, backend="locus", block_tokens=32)
    yield replace(alone, streams=8, backend="locus", cached=True)


def request_set(
    prompts: Sequence[Sequence[int]], vocab_size: int, *, seed: int = 11
) -> list[GenerationRequest]:
    """One request a prompt, every other one sampled, and one that begins like the longest prompt."""
    draw = random.Random(seed)  # noqa: S311 - test data
    longest = max(prompts, key=len)
    related = [*longest[:SHARED_TOKENS], *(draw.randrange(vocab_size) for _ in range(20))]
    return [
        GenerationRequest(
            request_id=f"parity-{index}",
            prompt_tokens=tuple(prompt),
            max_tokens=COMPLETION_TOKENS,
            sampling=SamplingParams(temperature=index % 2, seed=seed, repetition_penalty=1.1),
            cache_namespace="parity",
        )
        for index, prompt in enumerate([*prompts, related])
    ]


def served_digest(
    program: Program, weights: LoadedWeights, requests: Sequence[GenerationRequest], service: Service
) -> str:
    """SHA-256 (first 16 hex digits) over the logits of every sampled row, request by request.

    Raises ``ParityError`` when a way that is there for its cache hits had none.
    """
    positions = max(len(request.prompt_tokens) + request.max_tokens for request in requests)
    native = NativeRunner(
        program,
        weights,
        RunnerConfig(
            threads=service.threads,
            residual_activations=service.residual,
            kv_dtype=service.kv_dtype,
            kv_backend=service.backend,
            block_tokens=service.block_tokens,
            context_length=positions,
            sequences=service.streams,
            spare_bytes=_CACHE_BYTES if service.cached else 0,
        ),
    )
    runner = RecordingRunner(native)
    config = EngineConfig(
        max_concurrent=service.streams,
        inference_wait_seconds=math.inf,
        waiting_limit=len(requests),
        prefill_chunk=service.chunk,
        session_positions=positions if service.backend == "locus" else None,
        prefix_cache=_CACHE if service.cached else None,
    )
    engine = Engine(runner, _NoText, config)
    engine.start()
    try:
        for _ in range(2 if service.cached else 1):
            runner.forget()
            endings = asyncio.run(_serve(engine, requests))
    finally:
        engine.stop()
    for request, finished in zip(requests, endings, strict=True):
        if service.cached and finished.usage.cached_tokens != len(request.prompt_tokens) - 1:
            raise ParityError(
                f"{request.request_id}: {finished.usage.cached_tokens} prompt tokens were cached"
            )
    return hashlib.sha256(b"".join(runner.digest(request) for request in requests)).hexdigest()[:16]


async def _serve(engine: Engine, requests: Sequence[GenerationRequest]) -> list[Finished]:
    generations = [engine.submit(request) for request in requests]
    endings = []
    for generation in generations:
        events = [event async for event in generation]
        assert isinstance(events[-1], Finished)
        endings.append(events[-1])
    return endings


class RecordingRunner:
    """A runner that samples as the native one does, and keeps a hash of the logits each sampler saw."""

    def __init__(self, native: NativeRunner) -> None:
        self._native = native
        self._seen: dict[tuple[int, ...], list[_RecordedSampler]] = {}
        self.vocab_size = native.vocab_size
        self.context_length = native.context_length
        self.block_tokens = native.block_tokens
        self.n_blocks = native.n_blocks
        self.block_bytes = native.block_bytes
        self.run_blocks = native.run_blocks

    def sampler(
        self,
        params: SamplingParams,
        prompt_tokens: Sequence[int],
        seed: int,
        *,
        mask: MaskSlot | None = None,
        top_logprobs: int | None = None,
    ) -> Sampler:
        """Create a sampler that is recorded under its prompt."""
        native = self._native.sampler(params, prompt_tokens, seed, mask=mask, top_logprobs=top_logprobs)
        recorded = _RecordedSampler(cast("_native.Sampler", native))
        self._seen.setdefault(tuple(prompt_tokens), []).append(recorded)
        return recorded

    def mask_slot(self) -> MaskSlot:
        """Create the place of one request's masks."""
        return self._native.mask_slot()

    def scorer(self, tokens: Sequence[int], top_logprobs: int) -> Scorer:
        """Create a scorer, which no step of this runner fills."""
        return self._native.scorer(tokens, top_logprobs)

    def step(self, batch: StepBatch) -> Int32Array:
        """Run the rows and return the sampled ids."""
        rows = self._native.logits(batch)
        samplers = cast("Sequence[_RecordedSampler]", batch.samplers)
        return np.array([s.sample(row) for s, row in zip(samplers, rows, strict=True)], np.int32)

    def copy_block(self, source: int, target: int) -> None:
        """Copy one KV block."""
        self._native.copy_block(source, target)

    def return_blocks(self, blocks: Sequence[int]) -> None:
        """Pass on that the blocks are free."""
        self._native.return_blocks(blocks)

    def forget(self) -> None:
        """Start over with what is recorded."""
        self._seen.clear()

    def digest(self, request: GenerationRequest) -> bytes:
        """Return the hash of all logits that the request's sampler saw."""
        (recorded,) = self._seen[request.prompt_tokens]
        return recorded.hash.digest()


class _RecordedSampler:
    def __init__(self, native: _native.Sampler) -> None:
        self._native = native
        self.hash = hashlib.sha256()

    @property
    def logprobs(self) -> Sequence[Logprobs]:
        return self._native.logprobs

    def sample(self, logits: np.ndarray[tuple[int], np.dtype[np.float32]]) -> int:
        self.hash.update(np.ascontiguousarray(logits).view(np.uint8).data)
        token = self._native.sample(logits)
        if token >= 0:
            self._native.observe(token)
        return token


class _NoText:
    """Tokens without text: only their logits matter here."""

    def push(self, _: int, /) -> str:
        return ""

    def finish(self) -> str:
        return ""
