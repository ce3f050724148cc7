"""Masks that other threads make, and the samplers that wait for them."""

import threading
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from ferrite._native import MaskSlot, Sampler
from ferrite.grammar import Constraint, ConstraintError, Grammar, MaskTarget, MaskWorkers
from tests.grammar.support import compiler, of_schema, spelt, tokenizer

VOCAB_SIZE = tokenizer().vocab_size + 37
"""More logits than tokens, as in models that pad their vocabulary"""


def make_sampler(
    slot: MaskSlot, *, seed: int, temperature: float, bias: dict[int, float] | None = None
) -> Sampler:
    return Sampler(
        vocab_size=VOCAB_SIZE,
        temperature=temperature,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        repetition_penalty=1.0,
        frequency_penalty=0.0,
        presence_penalty=0.0,
        logit_bias=list((bias or {}).items()),
        seed=seed,
        prompt_tokens=[],
        mask=slot,
    )


class Sequence:
    """One generation as an engine runs it: a mask begun, a sampler that waits for it, a token accepted."""

    def __init__(
        self, grammar: Grammar, seed: int, *, temperature: float = 1.5, bias: dict[int, float] | None = None
    ) -> None:
        self.constraint = grammar.constraint()
        self.slot = MaskSlot(VOCAB_SIZE)
        self.sampler = make_sampler(self.slot, seed=seed, temperature=temperature, bias=bias)
        self.tokens: list[int] = []

    def step(self, logits: npt.NDArray[np.float32]) -> None:
        token = self.sampler.sample(logits)
        assert token >= 0
        self.sampler.observe(token)
        self.constraint.accept(token)
        self.tokens.append(token)

    @property
    def text(self) -> str:
        return tokenizer().decode(self.tokens)


def logits_of(step: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(step).normal(0, 3, VOCAB_SIZE).astype(np.float32)


@pytest.fixture
def workers() -> Iterator[MaskWorkers]:
    made = MaskWorkers(2)
    yield made
    made.close()


GRAMMARS = [
    compiler().compile_json_object(),
    of_schema({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 5}),
    of_schema({"type": "object", "properties": {"v": {"enum": ["x", "yy"]}}, "required": ["v"]}),
]


def run_all(workers: MaskWorkers, sequences: list[Sequence], steps: int) -> None:
    for step in range(steps):
        running = [sequence for sequence in sequences if not sequence.constraint.is_complete]
        workers.start((sequence.constraint, sequence.slot) for sequence in running)
        for sequence in running:
            sequence.step(logits_of(step))


def test_tokens_do_not_depend_on_what_else_is_masked(workers: MaskWorkers) -> None:
    together = [Sequence(grammar, seed) for grammar in GRAMMARS for seed in range(3)]
    run_all(workers, together, 40)
    for index, sequence in enumerate(together):
        alone = Sequence(GRAMMARS[index // 3], index % 3)
        run_all(workers, [alone], 40)
        assert alone.tokens == sequence.tokens
        assert sequence.text


def test_a_forced_answer_comes_at_any_temperature_and_against_any_bias(workers: MaskWorkers) -> None:
    schema = {
        "type": "object",
        "properties": {"v": {"enum": ["x"]}},
        "required": ["v"],
        "additionalProperties": False,
    }
    ban = dict.fromkeys(spelt('{"v:x}'), -100.0)
    for temperature in (0.0, 2.0):
        for bias in (None, ban, {300: 100.0, 7: 100.0}):
            sequence = Sequence(of_schema(schema), 1, temperature=temperature, bias=bias)
            run_all(workers, [sequence], 120)
            assert "".join(sequence.text.split()) == '{"v":"x"}'


def test_a_failed_mask_gives_no_token(workers: MaskWorkers) -> None:
    sequence = Sequence(GRAMMARS[0], 1)
    with pytest.raises(ConstraintError):
        sequence.constraint.accept(*b"x")
    workers.start([(sequence.constraint, sequence.slot)])
    assert sequence.sampler.sample(logits_of(0)) == -1
    assert sequence.slot.state == "failed"
    assert not sequence.constraint.is_exhausted


def test_no_mask_gives_no_token() -> None:
    assert Sequence(GRAMMARS[0], 1).sampler.sample(logits_of(0)) == -1


def test_a_worker_outlives_whatever_goes_wrong(workers: MaskWorkers) -> None:
    class Broken(Constraint):
        def __init__(self) -> None:
            pass

        def fill(self, target: MaskTarget) -> bool:
            raise MemoryError

    slots = [MaskSlot(VOCAB_SIZE) for _ in range(4)]
    workers.start((Broken(), slot) for slot in slots)
    assert [slot.wait() for slot in slots] == [False] * 4
    sequence = Sequence(GRAMMARS[0], 1)
    workers.start([(sequence.constraint, sequence.slot)])
    assert sequence.slot.wait()


def test_closing_finishes_what_was_begun() -> None:
    before = threading.active_count()
    workers = MaskWorkers(3)
    sequences = [Sequence(GRAMMARS[0], seed) for seed in range(20)]
    workers.start((sequence.constraint, sequence.slot) for sequence in sequences)
    workers.close()
    assert {sequence.slot.state for sequence in sequences} == {"ready"}
    assert threading.active_count() == before
