"""The benchmark's worker protocol, and the steps it takes."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ferrite.bench.evaluate import evaluate, teacher_forced
from ferrite.bench.rates import MOST_COUNT, MOST_STREAMS, Rates, serve_worker
from ferrite.bench.rows import Lines
from ferrite.gguf import open_gguf
from ferrite.models import trace_model
from ferrite.program.runner import NativeRunner, RunnerConfig, load_runner
from ferrite.program.step import StepError
from tests.reference.tiny import write_tiny_model


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rates") / "tiny.gguf"
    write_tiny_model(path, "llama", n_layers=1, n_embd=64, n_heads=2, n_kv_heads=1, head_size=32, n_ff=64)
    return path


@pytest.fixture(scope="module")
def runner(path: Path) -> NativeRunner:
    with open_gguf(path) as file:
        config = RunnerConfig(threads=1, context_length=64, sequences=MOST_STREAMS)
        return load_runner(file, trace_model(file), config)


def answers(runner: NativeRunner, *requests: object) -> list[dict[str, Any]]:
    """What the worker says to these requests, after its ready line; text goes as it is."""
    out = io.StringIO()
    lines = [request if isinstance(request, str) else json.dumps(request) for request in requests]
    serve_worker(Rates(runner), lines, out)
    ready, *said = map(json.loads, out.getvalue().splitlines())
    assert ready == {"ready": True}
    assert len(said) == len(requests)
    return said


def test_the_worker_times_prefill_and_decode(runner: NativeRunner) -> None:
    for answer in answers(
        runner,
        {"op": "prefill", "tokens": 40},
        {"op": "decode", "streams": 3, "steps": 4, "depth": 5},
        {"op": "decode", "streams": MOST_STREAMS, "steps": 1, "depth": 63},
        {"op": "prefill", "tokens": 1},
    ):
        assert answer.keys() == {"seconds"}
        assert answer["seconds"] > 0


BAD_REQUESTS: list[object] = [
    "",
    "not json",
    "[]",
    "null",
    '"prefill"',
    {},
    {"op": "rest"},
    {"op": "prefill"},
    {"op": "prefill", "tokens": "40"},
    {"op": "prefill", "tokens": 1.5},
    {"op": "prefill", "tokens": 0},
    {"op": "prefill", "tokens": -1},
    {"op": "prefill", "tokens": MOST_COUNT + 1},
    {"op": "prefill", "tokens": 10**30},
    {"op": "prefill", "tokens": 64 * MOST_STREAMS + 1},
    {"op": "decode", "streams": 1, "steps": 4},
    {"op": "decode", "streams": 0, "steps": 4, "depth": 5},
    {"op": "decode", "streams": MOST_STREAMS + 1, "steps": 4, "depth": 5},
    {"op": "decode", "streams": 1, "steps": 0, "depth": 5},
    {"op": "decode", "streams": 1, "steps": 2, "depth": 63},
    {"op": "decode", "streams": 1, "steps": 1, "depth": -5},
]


@pytest.mark.parametrize("request_", BAD_REQUESTS, ids=str)
def test_a_bad_request_is_answered_and_the_next_one_too(runner: NativeRunner, request_: object) -> None:
    said, after = answers(runner, request_, {"op": "prefill", "tokens": 2})
    assert said.keys() == {"error"}
    assert said["error"].isprintable()
    assert after.keys() == {"seconds"}


def test_lines_number_rows_of_each_sequence_through(runner: NativeRunner) -> None:
    lines = Lines(3, 2)
    first = lines.batch([(0, [1, 2]), (2, [3])], logits="last")
    assert first.token_ids.tolist() == [1, 2, 3]
    assert first.positions.tolist() == [0, 1, 0]
    assert first.sequences.tolist() == [0, 0, 1]
    assert [list(table) for table in first.block_tables] == [[0, 1], [4, 5]]
    assert first.sample_rows.tolist() == [1, 2]
    second = lines.batch([(0, [4]), (1, [5, 6])], logits="all")
    assert second.positions.tolist() == [2, 0, 1]
    assert second.sample_rows.tolist() == [0, 1, 2]


def test_a_line_that_is_full_is_a_step_error(runner: NativeRunner) -> None:
    lines = Lines(1, 1)
    sampler = Rates(runner)
    assert sampler.prefill(64 * MOST_STREAMS) > 0
    with pytest.raises(ValueError, match="beyond the block table"):
        runner.logits(lines.batch([(0, list(range(17)))], logits="last"))
    with pytest.raises(StepError, match="KV block out of range"):
        sampler.prefill(64 * MOST_STREAMS + 1)


def test_evaluate_is_the_teacher_forced_logits_whatever_the_chunk(path: Path, runner: NativeRunner) -> None:
    ids = [(7 * i) % 271 for i in range(60)]
    expected = evaluate(path, ids)
    assert expected.shape == (60, 271)
    for chunk in (1, 17, 64):
        np.testing.assert_array_equal(teacher_forced(runner, ids, chunk=chunk), expected)
