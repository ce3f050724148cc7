"""Prefill and decode times of one loaded model, and the line protocol that other programs drive it by."""

import json
import sys
import time
from collections.abc import Iterable
from typing import TextIO

import numpy as np

from ferrite.bench.rows import Lines
from ferrite.program.runner import NativeRunner
from ferrite.program.step import StepError
from ferrite.sampling import SamplingParams

PREFILL_CHUNK = 512
MOST_STREAMS = 16
"""Sequences the benchmark reserves KV blocks for."""
MOST_COUNT = 1 << 17
"""Tokens, steps or depth of one measurement, above the longest context of the models it is for."""


class Rates:
    """Times prefill and greedy decode on random tokens. One object, one loaded model."""

    def __init__(self, runner: NativeRunner, *, streams: int = MOST_STREAMS, seed: int = 0) -> None:
        """``streams``: the sequences that the KV store is divided into."""
        self._runner = runner
        self._random = np.random.default_rng(seed)
        self._blocks_each = runner.n_blocks // streams
        self._filled = [0] * streams
        """By sequence: how many positions have keys and values."""

    def prefill(self, tokens: int, *, record: bool = False) -> float:
        """Seconds to evaluate ``tokens`` fresh tokens of one sequence and sample after the last.

        With ``record`` the runner records where the time of these steps goes.
        """
        lines = Lines(1, -(-tokens // self._runner.block_tokens))
        ids = self._draw(tokens)
        if record:
            self._runner.record_times()
        started = time.perf_counter()
        self._extend(lines, 0, ids)
        return time.perf_counter() - started

    def decode(self, *, streams: int, steps: int, depth: int, record: bool = False) -> float:
        """Seconds for ``steps`` steps that advance ``streams`` sequences, each ``depth`` tokens deep.

        ``record`` as for ``prefill``.
        """
        self._fill(streams, depth)
        lines = Lines(streams, self._blocks_each)
        for line in lines.lines:
            line.length = depth
        samplers = [self._runner.sampler(SamplingParams(), [], 0) for _ in range(streams)]
        tokens = self._draw(streams)
        if record:
            self._runner.record_times()
        started = time.perf_counter()
        for _ in range(steps):
            rows = [(index, [tokens[index]]) for index in range(streams)]
            tokens = self._runner.step(lines.batch(rows, logits="last", samplers=samplers)).tolist()
        return time.perf_counter() - started

    def _fill(self, streams: int, depth: int) -> None:
        """Evaluate one sequence up to ``depth`` where that is new, and copy its KV blocks to the others.

        Time depends on how much is read, not on what it is: later measurements read what earlier ones left.
        """
        if streams > len(self._filled):
            raise StepError(f"{streams} streams, and KV blocks for {len(self._filled)}")
        if self._filled[0] < depth:
            lines = Lines(1, self._blocks_each)
            self._extend(lines, 0, self._draw(depth))
            self._filled = [0] * len(self._filled)
            self._filled[0] = depth
        for index in range(1, streams):
            if self._filled[index] < depth:
                for block in range(-(-depth // self._runner.block_tokens)):
                    self._runner.copy_block(block, index * self._blocks_each + block)
                self._filled[index] = depth

    def _extend(self, lines: Lines, index: int, ids: list[int]) -> None:
        sampler = self._runner.sampler(SamplingParams(), [], 0)
        for at in range(0, len(ids), PREFILL_CHUNK):
            rows = [(index, ids[at : at + PREFILL_CHUNK])]
            self._runner.step(lines.batch(rows, logits="last", samplers=[sampler]))

    def _draw(self, count: int) -> list[int]:
        return [int(token) for token in self._random.integers(0, self._runner.vocab_size, count)]


def serve_worker(rates: Rates, requests: Iterable[str], answers: TextIO = sys.stdout) -> None:
    """Answer one JSON line for each JSON line, after a ready line.

    ``{"op": "prefill", "tokens": N}`` and ``{"op": "decode", "streams": B, "steps": K, "depth": D}`` give
    ``{"seconds": S}``; anything else, and what does not fit the KV store, gives ``{"error": ...}``.
    """
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in requests:
        print(json.dumps(_answer(rates, line)), file=answers, flush=True)


def _answer(rates: Rates, line: str) -> dict[str, float | str]:
    try:
        request = json.loads(line)
    except ValueError as error:
        return {"error": f"not JSON: {error}"}
    counts = request.values() if isinstance(request, dict) else ()
    if any(isinstance(count, int) and not 0 < count <= MOST_COUNT for count in counts):
        return {"error": f"numbers must be from 1 to {MOST_COUNT}: {request!r}"}
    try:
        match request:
            case {"op": "prefill", "tokens": int(tokens)}:
                return {"seconds": rates.prefill(tokens)}
            case {"op": "decode", "streams": int(streams), "steps": int(steps), "depth": int(depth)}:
                return {"seconds": rates.decode(streams=streams, steps=steps, depth=depth)}
    except StepError as error:
        return {"error": str(error)}
    return {"error": f"unknown request {request!r}"}
