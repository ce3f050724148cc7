"""A runner, detokenizers and a clock with known behaviour."""

import codecs
import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ferrite.engine import GenerationRequest
from ferrite.program.step import Int32Array, StepBatch
from ferrite.sampling import SamplingParams


def next_token(history: Sequence[int]) -> int:
    """A letter's code that depends on every token before it and on their order."""
    state = 7
    for token in history:
        state = (state * 31 + token + 1) % 1_000_003
    return ord("a") + state % 26


def expected_completion(prompt: Sequence[int], count: int) -> tuple[int, ...]:
    """What a request alone must generate."""
    history = list(prompt)
    for _ in range(count):
        history.append(next_token(history))
    return tuple(history[len(prompt) :])


@dataclass
class FakeSampler:
    params: SamplingParams
    prompt: tuple[int, ...]
    seed: int


@dataclass
class FakeRunner:
    """Keeps every written token with its position, and samples from what the block table really leads to.

    A wrong block, position, order or missing row therefore changes the tokens or fails an assertion.
    """

    vocab_size: int = 256
    context_length: int = 4096
    block_tokens: int = 4
    n_blocks: int = 64
    block_bytes: int = 1 << 20
    sample: Callable[[tuple[int, ...]], int] = next_token
    """History to token."""
    before_step: Callable[[StepBatch], None] = lambda batch: None
    cells: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    batches: list[StepBatch] = field(default_factory=list)
    returned: list[tuple[int, ...]] = field(default_factory=list)
    samplers: list[FakeSampler] = field(default_factory=list)

    def sampler(self, params: SamplingParams, prompt_tokens: Sequence[int], seed: int) -> FakeSampler:
        sampler = FakeSampler(params, tuple(prompt_tokens), seed)
        self.samplers.append(sampler)
        return sampler

    def copy_block(self, source: int, target: int) -> None:
        for offset in range(self.block_tokens):
            if (source, offset) in self.cells:
                self.cells[target, offset] = self.cells[source, offset]

    def return_blocks(self, blocks: Sequence[int]) -> None:
        """Forget what is in them: a block that somebody still holds would then lack its cells."""
        self.returned.append(tuple(blocks))
        for block in blocks:
            for offset in range(self.block_tokens):
                self.cells.pop((block, offset), None)

    def step(self, batch: StepBatch) -> Int32Array:
        self.batches.append(batch)
        self.before_step(batch)
        self._check(batch)
        for token, position, index in zip(
            batch.token_ids.tolist(), batch.positions.tolist(), batch.sequences.tolist(), strict=True
        ):
            block, offset = self._cell(batch.block_tables[index], position)
            self.cells[block, offset] = (position, token)
        sampled = []
        for row, sampler in zip(batch.sample_rows.tolist(), batch.samplers, strict=True):
            history = self._history(batch, row)
            assert isinstance(sampler, FakeSampler)
            assert history[: len(sampler.prompt)] == sampler.prompt
            sampled.append(self.sample(history))
        return np.array(sampled, dtype=np.int32)

    def _cell(self, table: Sequence[int] | Int32Array, position: int) -> tuple[int, int]:
        return int(table[position // self.block_tokens]), position % self.block_tokens

    def _history(self, batch: StepBatch, row: int) -> tuple[int, ...]:
        table = batch.block_tables[int(batch.sequences[row])]
        cells = [self.cells[self._cell(table, p)] for p in range(int(batch.positions[row]) + 1)]
        assert [position for position, _ in cells] == list(range(len(cells)))
        return tuple(token for _, token in cells)

    def _check(self, batch: StepBatch) -> None:
        for array in (batch.token_ids, batch.positions, batch.sequences, batch.sample_rows):
            assert array.dtype == np.int32
            assert array.ndim == 1
        assert len(batch.token_ids) == len(batch.positions) == len(batch.sequences) > 0
        assert set(batch.sequences.tolist()) == set(range(len(batch.block_tables)))
        blocks = Counter(int(block) for table in batch.block_tables for block in table)
        assert all(0 <= block < self.n_blocks for block in blocks)
        for index, position in zip(batch.sequences.tolist(), batch.positions.tolist(), strict=True):
            assert blocks[self._cell(batch.block_tables[index], position)[0]] == 1
        for index, table in enumerate(batch.block_tables):
            positions = batch.positions[batch.sequences == index].tolist()
            assert positions == list(range(positions[0], positions[0] + len(positions)))
            assert len(table) == positions[-1] // self.block_tokens + 1
        assert np.all(np.diff(batch.sequences) >= 0)
        assert np.all(np.diff(batch.sample_rows) >= 0)


def scripted(prompt_length: int, tokens: Sequence[int]) -> Callable[[tuple[int, ...]], int]:
    """Sample ``tokens`` in order after a prompt of that length, then the last one for ever."""
    return lambda history: tokens[min(len(history) - prompt_length, len(tokens) - 1)]


class ByteDetokenizer:
    """Token id = byte."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(bytes([token_id]))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class PieceDetokenizer:
    """Token id = index of a piece of text."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self._pieces = pieces

    def push(self, token_id: int) -> str:
        return self._pieces[token_id]

    def finish(self) -> str:
        return ""


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def request(
    prompt: Sequence[int] = (1, 2, 3), max_tokens: int = 4, request_id: str = "r", **changes: object
) -> GenerationRequest:
    plain = GenerationRequest(request_id, tuple(prompt), max_tokens, SamplingParams())
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]
