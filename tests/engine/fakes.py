"""A runner, detokenizers and a clock with known behaviour."""

import codecs
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from ferrite.engine import GenerationRequest
from ferrite.engine.speculation import StepTimes
from ferrite.grammar import ConstraintError
from ferrite.program.step import Int32Array, Logprobs, MaskSlot, StepBatch
from ferrite.sampling import SamplingParams


def next_token(history: Sequence[int]) -> int:
    """A letter's code that depends on every token before it and on their order; often an earlier one."""
    state = 7
    for token in history:
        state = (state * 31 + token + 1) % 1_000_003
    if state % 3 and len(history) > 4 and history[-4] >= ord("a"):
        return history[-4]
    return ord("a") + state % 26


def expected_completion(prompt: Sequence[int], count: int) -> tuple[int, ...]:
    """What a request alone must generate."""
    history = list(prompt)
    for _ in range(count):
        history.append(next_token(history))
    return tuple(history[len(prompt) :])


def logprobs_after(history: Sequence[int], token: int, top: int) -> Logprobs:
    """Something that depends on every token before and on the token itself."""
    likeliest = [next_token(history), *range(300, 320)][:top]
    score = -sum(history) % 97 / 8 - token
    return score, [(other, score + rank) for rank, other in enumerate(likeliest)]


class FakeMaskSlot:
    """The native one's handshake, for up to 512 tokens."""

    def __init__(self) -> None:
        self.words: npt.NDArray[np.uint32] = np.zeros(16, np.uint32)
        self.state: Literal["empty", "pending", "ready", "failed"] = "empty"
        self._settled = threading.Event()

    def begin(self) -> None:
        assert self.state != "pending"
        self.state = "pending"
        self._settled.clear()

    def publish(self) -> None:
        self._settle("ready")

    def fail(self) -> None:
        self._settle("failed")

    def _settle(self, state: Literal["ready", "failed"]) -> None:
        self.state = state
        self._settled.set()

    def take(self) -> set[int] | None:
        """Wait for a mask; returns the tokens that it allows."""
        assert self.state != "empty"
        assert self._settled.wait(timeout=30)
        if self.state == "failed":
            return None
        self.state = "empty"
        return set(np.nonzero(np.unpackbits(self.words.view(np.uint8), bitorder="little"))[0].tolist())


class FakeConstraint:
    """Allows the tokens that ``allowed`` gives for those before, and is complete after ``length``."""

    def __init__(self, allowed: Callable[[tuple[int, ...]], Collection[int]], length: int = 1000) -> None:
        self.tokens: tuple[int, ...] = ()
        self.is_exhausted = False
        self._allowed = allowed
        self._length = length
        self._in_use = threading.Lock()

    @property
    def is_complete(self) -> bool:
        return len(self.tokens) >= self._length

    def fill(self, target: MaskSlot) -> bool:
        with self._exclusively():
            allowed = self._allowed(self.tokens)
            words = target.words
            words[:] = 0
            for token in allowed:
                words[token // 32] |= np.uint32(1 << token % 32)
            self.is_exhausted = not allowed
            return not self.is_exhausted

    def accept(self, token: int) -> None:
        with self._exclusively():
            if token not in self._allowed(self.tokens):
                raise ConstraintError(f"token {token} is not of the grammar")
            self.tokens += (token,)

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        assert self._in_use.acquire(blocking=False)
        try:
            yield
        finally:
            self._in_use.release()


def vowels(tokens: tuple[int, ...]) -> bytes:
    """A rule without an end."""
    return b"aeiou"


def three_digits(tokens: tuple[int, ...]) -> bytes:
    """A rule whose answers reach a bound."""
    return b"123" if len(tokens) < 3 else b""


def broken(tokens: tuple[int, ...]) -> bytes:
    """A rule that cannot be followed beyond two tokens."""
    if len(tokens) >= 2:
        raise ConstraintError("too complex")
    return b"xyz"


RULES: dict[str, Callable[[], FakeConstraint]] = {
    "endless": lambda: FakeConstraint(vowels),
    "complete": lambda: FakeConstraint(vowels, length=4),
    "bounded": lambda: FakeConstraint(three_digits),
    "broken": lambda: FakeConstraint(broken),
}


def expected_answer(prompt: Sequence[int], count: int, rule: str | None) -> tuple[tuple[int, ...], str]:
    """What a request alone must generate, and why it ends."""
    constraint = RULES[rule]() if rule else FakeConstraint(lambda tokens: range(256))
    history = list(prompt)
    while not constraint.is_complete and len(history) < len(prompt) + count:
        try:
            allowed = constraint._allowed(constraint.tokens)
        except ConstraintError:
            return constraint.tokens, "failed"
        if not allowed:
            break
        token = next_token(history)
        history.append(token if token in allowed else min(allowed))
        constraint.accept(history[-1])
    return constraint.tokens, "stop" if constraint.is_complete else "length"


@dataclass
class FakeSampler:
    params: SamplingParams
    prompt: tuple[int, ...]
    seed: int
    mask: FakeMaskSlot | None = None
    top_logprobs: int | None = None
    logprobs: list[Logprobs] = field(default_factory=list)


@dataclass
class FakeScorer:
    tokens: tuple[int, ...]
    top_logprobs: int
    logprobs: list[Logprobs | None] = field(default_factory=list)


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
    run_blocks: int = 32
    sample: Callable[[tuple[int, ...]], int] = next_token
    """History to token."""
    before_step: Callable[[StepBatch], None] = lambda batch: None
    cells: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    batches: list[StepBatch] = field(default_factory=list)
    returned: list[tuple[int, ...]] = field(default_factory=list)
    samplers: list[FakeSampler] = field(default_factory=list)

    def sampler(
        self,
        params: SamplingParams,
        prompt_tokens: Sequence[int],
        seed: int,
        *,
        mask: MaskSlot | None = None,
        top_logprobs: int | None = None,
    ) -> FakeSampler:
        assert mask is None or isinstance(mask, FakeMaskSlot)
        sampler = FakeSampler(params, tuple(prompt_tokens), seed, mask, top_logprobs)
        self.samplers.append(sampler)
        return sampler

    def mask_slot(self) -> FakeMaskSlot:
        return FakeMaskSlot()

    def scorer(self, tokens: Sequence[int], top_logprobs: int) -> FakeScorer:
        return FakeScorer(tuple(tokens), top_logprobs)

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
        drafted = batch.drafted or [0] * len(batch.samplers)
        for row, sampler, drafts in zip(batch.sample_rows.tolist(), batch.samplers, drafted, strict=True):
            assert isinstance(sampler, FakeSampler)
            assert self._history(batch, row)[: len(sampler.prompt)] == sampler.prompt
            sampler.logprobs = []
            run = [self._sampled(self._history(batch, row), sampler)]
            for ahead in range(1, drafts + 1):
                if run[-1] != int(batch.token_ids[row + ahead]):
                    break
                run.append(self._sampled(self._history(batch, row + ahead), sampler))
            sampled += run + [-1] * (1 + drafts - len(run))
        for first, scorer in batch.scored:
            assert isinstance(scorer, FakeScorer)
            for row, token in enumerate(scorer.tokens, first):
                history = self._history(batch, row)
                scorer.logprobs.append(logprobs_after(history, token, scorer.top_logprobs))
        return np.array(sampled, dtype=np.int32)

    def _sampled(self, history: tuple[int, ...], sampler: FakeSampler) -> int:
        token = self.sample(history)
        # What is no token of the vocabulary is a fault that a test planned.
        if 0 <= token < self.vocab_size and sampler.mask is not None:
            allowed = sampler.mask.take()
            if allowed is None:
                return -1
            token = token if token in allowed else min(allowed)
        if sampler.top_logprobs is not None:
            sampler.logprobs.append(logprobs_after(history, token, sampler.top_logprobs))
        return token

    def _cell(self, table: Sequence[int] | Int32Array, position: int) -> tuple[int, int]:
        return int(table[position // self.block_tokens]), position % self.block_tokens

    def _history(self, batch: StepBatch, row: int) -> tuple[int, ...]:
        table = batch.block_tables[int(batch.sequences[row])]
        cells = [self.cells[self._cell(table, p)] for p in range(int(batch.positions[row]) + 1)]
        assert [position for position, _ in cells] == list(range(len(cells)))
        return tuple(token for _, token in cells)

    def _check(self, batch: StepBatch) -> None:
        for numbers in (batch.token_ids, batch.positions, batch.sequences, batch.sample_rows):
            assert np.asarray(numbers).dtype == np.int32
            assert np.asarray(numbers).ndim == 1
        rows, sequences = np.asarray(batch.positions), np.asarray(batch.sequences)
        assert len(batch.token_ids) == len(batch.positions) == len(batch.sequences) > 0
        assert set(batch.sequences.tolist()) == set(range(len(batch.block_tables)))
        blocks = Counter(int(block) for table in batch.block_tables for block in table)
        assert all(0 <= block < self.n_blocks for block in blocks)
        for index, position in zip(batch.sequences.tolist(), batch.positions.tolist(), strict=True):
            assert blocks[self._cell(batch.block_tables[index], position)[0]] == 1
        for index, table in enumerate(batch.block_tables):
            positions = rows[sequences == index].tolist()
            assert positions == list(range(positions[0], positions[0] + len(positions)))
            # Drafts that did not come true may have left more.
            assert len(table) > positions[-1] // self.block_tokens
        assert np.all(np.diff(sequences) >= 0)
        assert np.all(np.diff(batch.sample_rows) >= 0)


class FreeDrafts(StepTimes):
    """Times by which every draft pays."""

    def knows(self, sequences: int) -> bool:
        return True

    def ratio(self, sequences: int, rows: int) -> float:
        return 1.0


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
    fields = {"sampling": SamplingParams(), **changes}
    return GenerationRequest(request_id, tuple(prompt), max_tokens, **fields)  # type: ignore[arg-type]
