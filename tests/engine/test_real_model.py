"""Strict schemas, free text and log-probabilities in one batch of a real model."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from ferrite.engine import Delta, GenerationRequest, TokenLogprob
from ferrite.gguf import open_gguf
from ferrite.grammar import Grammar, GrammarCompiler
from ferrite.models import trace_model
from ferrite.program.runner import NativeRunner, RunnerConfig, load_runner
from ferrite.program.step import StepBatch
from ferrite.sampling import SamplingParams
from ferrite.tokenizer import Tokenizer, load_tokenizer
from tests.engine.bench import Bench, Reader
from tests.engine.fakes import request

pytestmark = pytest.mark.model

POSITIONS = 256
SEQUENCES = 12

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 16},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["kind", "tall", "loud"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
POINT = {
    "type": "object",
    "properties": {
        "x": {"type": "integer", "minimum": -9, "maximum": 9},
        "label": {"enum": ["a", "b", None]},
    },
    "required": ["x", "label"],
    "additionalProperties": False,
}
DATES = {
    "type": "array",
    "items": {"type": "string", "pattern": "^20[0-9]{2}-[01][0-9]$"},
    "minItems": 1,
    "maxItems": 3,
}
CHOICE = {"anyOf": [{"const": "yes"}, {"const": "no"}, {"type": "null"}]}
PROMPTS = [
    "A person as JSON, with name, age and tags:\n",
    "The next point of the curve is ",
    "Months in which it rained, as a list: ",
    "Is the sky blue? Answer: ",
]
SCHEMAS: list[dict[str, Any]] = [PERSON, POINT, DATES, CHOICE]
FREE = ["The capital of France is", "Once upon a time", "1, 2, 3, 4,"]


@dataclass
class Loaded:
    runner: NativeRunner
    tokenizer: Tokenizer
    grammars: list[Grammar]

    def bench(self, **limits: Any) -> Bench:
        detokenizer = self.tokenizer.detokenizer
        return Bench(self.runner, detokenizer=detokenizer, max_concurrent=SEQUENCES, **limits)

    def serve(self, asked: Sequence[GenerationRequest], **limits: Any) -> list[Reader]:
        with self.bench(**limits) as bench:
            readers = [bench.submit(one) for one in asked]
            for _ in range(600):
                if all(reader.outcome for reader in readers):
                    break
                bench.step()
            bench.step()
            bench.check_idle()
            return readers

    def constrained(self, index: int) -> GenerationRequest:
        """Eight of them: each schema greedily and at a temperature, on a prompt of its own or another's."""
        sampling = SamplingParams(temperature=1.5 * (index >= 4), seed=index)
        grammar = self.grammars[index % 4]
        return self.asked(PROMPTS[index % 4], 220, sampling, constraint=grammar.constraint())

    def free(self, index: int) -> GenerationRequest:
        sampling = SamplingParams(temperature=1.0 * (index % 2), seed=index, top_p=0.9)
        return self.asked(FREE[index], 40, sampling, top_logprobs=3)

    def asked(
        self, prompt: str, max_tokens: int, sampling: SamplingParams, **changes: object
    ) -> GenerationRequest:
        tokens = self.tokenizer.encode(prompt, parse_special=False, add_bos=True)
        end_ids = self.tokenizer.end_ids
        return request(tokens, max_tokens, prompt[:8], sampling=sampling, end_ids=end_ids, **changes)


@pytest.fixture(scope="module")
def loaded(smollm2_path: Path) -> Loaded:
    with open_gguf(smollm2_path) as file:
        tokenizer = load_tokenizer(file.metadata)
        config = RunnerConfig(threads=2, context_length=POSITIONS, sequences=SEQUENCES)
        runner = load_runner(file, trace_model(file), config)
    compiler = GrammarCompiler(tokenizer)
    grammars = [compiler.compile_json_schema(schema, strict=True) for schema in SCHEMAS]
    return Loaded(runner, tokenizer, grammars)


def told(reader: Reader) -> list[TokenLogprob]:
    return [one for event in reader.events if isinstance(event, Delta) for one in event.logprobs or ()]


def test_strict_answers_validate_and_free_ones_are_those_of_the_request_alone(loaded: Loaded) -> None:
    together = loaded.serve(
        [
            *(loaded.constrained(n) for n in range(8)),
            *(loaded.free(n) for n in range(3)),
            loaded.constrained(0),
        ]
    )
    for index, reader in enumerate(together[:8]):
        assert reader.finished is not None
        assert reader.finished.reason == "stop", reader.text
        jsonschema.validate(json.loads(reader.text), SCHEMAS[index % 4])
        (alone,) = loaded.serve([loaded.constrained(index)])
        assert reader.token_ids == alone.token_ids
    assert together[11].token_ids == together[0].token_ids
    for index, reader in enumerate(together[8:11]):
        (alone,) = loaded.serve([loaded.free(index)])
        assert reader.token_ids == alone.token_ids
        assert told(reader) == told(alone)


def test_log_probabilities_are_the_log_softmax_of_the_logits(loaded: Loaded) -> None:
    sampling = SamplingParams(temperature=0.8, seed=4)
    asked = loaded.asked("The quick brown fox", 20, sampling, top_logprobs=4, prompt_logprobs=True)
    others = [loaded.constrained(3), loaded.free(0)]
    reader, *_ = loaded.serve([asked, *others])
    tokens = asked.prompt_tokens + reader.token_ids
    rows = np.arange(len(tokens), dtype=np.int32)
    batch = StepBatch(
        token_ids=np.array(tokens, np.int32),
        positions=rows,
        sequences=np.zeros(len(tokens), np.int32),
        block_tables=[list(range(16))],
        sample_rows=rows,
        samplers=(),
    )
    logits = loaded.runner.logits(batch).astype(np.float64)
    expected = logits - logits.max(axis=1, keepdims=True)
    expected -= np.log(np.exp(expected).sum(axis=1, keepdims=True))
    assert reader.finished is not None
    assert reader.finished.prompt_logprobs is not None
    found = [*reader.finished.prompt_logprobs, *told(reader)]
    assert found[0] is None
    for position, one in enumerate(found[1:]):
        assert one is not None
        assert one.token == tokens[position + 1]
        assert one.logprob == pytest.approx(expected[position, one.token], abs=1e-6)
        assert len(one.top) == 4
        assert [logprob for _, logprob in one.top] == pytest.approx(
            np.sort(expected[position])[::-1][:4], abs=1e-6
        )
        for token, logprob in one.top:
            assert logprob == pytest.approx(expected[position, token], abs=1e-6)


def test_drafts_change_nothing_but_the_number_of_steps(loaded: Loaded) -> None:
    lines = "".join(f"{n}. {name} was here.\n" for n, name in enumerate(("Ada", "Bo", "Cy", "Di"), 1))
    ways = (SamplingParams(temperature=0.0), SamplingParams(temperature=0.7, seed=3, presence_penalty=0.2))
    asked = [
        loaded.asked(f"{lines}\nAgain:\n{lines[:start]}", 32, sampling, top_logprobs=top)
        for start in (10, 30)
        for sampling in ways
        for top in (None, 1)
    ]
    plain = loaded.serve(asked)
    drafted = loaded.serve(asked, speculation="ngram", drafts_are_free=True)
    for one, other in zip(plain, drafted, strict=True):
        assert one.token_ids == other.token_ids
        assert one.events[:-1] == other.events[:-1]
    first = loaded.serve(asked[:1], speculation="ngram")[0]
    assert first.token_ids == plain[0].token_ids
