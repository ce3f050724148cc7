"""Shares of a step's time, and what the executor records for them."""

from dataclasses import astuple, dataclass

import pytest

from ferrite.bench.breakdown import Breakdown, breakdown
from ferrite.bench.measure import Limits, measure
from ferrite.bench.rates import Rates
from ferrite.bench.rows import Lines
from ferrite.bench.works import Work, need, works
from ferrite.gguf import open_gguf
from ferrite.models import trace_model
from ferrite.program.runner import NativeRunner, RunnerConfig, load_runner
from tests.bench.support import FixedMachine
from tests.reference.tiny import write_tiny_model


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> NativeRunner:
    path = tmp_path_factory.mktemp("times") / "tiny.gguf"
    write_tiny_model(path, "llama", quantisation="Q8_0", context_length=128)
    with open_gguf(path) as file:
        return load_runner(file, trace_model(file), RunnerConfig(threads=2, sequences=4))


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> NativeRunner:
    path = tmp_path_factory.mktemp("times") / "gemma.gguf"
    write_tiny_model(path, "gemma3", n_layers=7, sliding_window=16)
    with open_gguf(path) as file:
        return load_runner(file, trace_model(file), RunnerConfig(threads=1))


@dataclass(frozen=True)
class Times:
    linear: float = 0.0
    attention: float = 0.0
    norm: float = 0.0
    other: float = 0.0
    wait: float = 0.0


def test_what_is_not_inside_a_step_is_outside() -> None:
    times = Times(linear=2.0, attention=1.0, norm=0.5, other=0.25, wait=0.25)
    assert breakdown(times, 2.5, 2) == Breakdown(0.4, 0.2, 0.1, 0.05, 0.05, outside=1.0 - 4.0 / 5.0)
    assert breakdown(Times(linear=5.001), 2.5, 2).outside == 0.0


def test_recorded_times_are_those_of_the_steps(runner: NativeRunner) -> None:
    rates = Rates(runner, streams=4)
    seconds = rates.decode(streams=3, steps=5, depth=40, record=True)
    times = runner.recorded_times()
    assert times.steps == 5
    assert 0 < times.seconds <= times.span_seconds <= seconds
    parts = (times.linear, times.attention, times.norm, times.other)
    assert min(parts) > 0
    assert times.wait >= 0
    # Nothing is counted twice and nothing is left out: two threads for as long as the steps took.
    assert sum(parts) + times.wait == pytest.approx(2 * times.seconds, rel=1e-3)


def test_each_recording_starts_from_nothing_and_ends(runner: NativeRunner) -> None:
    rates = Rates(runner, streams=4)
    for steps in (3, 1):
        rates.decode(streams=1, steps=steps, depth=4, record=True)
        assert runner.recorded_times().steps == steps
    with pytest.raises(RuntimeError, match="no times are recorded"):
        runner.recorded_times()
    rates.prefill(4)
    runner.record_times()
    assert runner.recorded_times().steps == 0


def test_recording_changes_no_token(runner: NativeRunner) -> None:
    ids = [(7 * i) % 271 for i in range(60)]
    plain = runner.logits(Lines(1, 8).batch([(0, ids)], logits="all"))
    runner.record_times()
    timed = runner.logits(Lines(1, 8).batch([(0, ids)], logits="all"))
    runner.recorded_times()
    assert (plain == timed).all()


def test_the_need_of_decode_counts_every_position_of_every_stream(runner: NativeRunner) -> None:
    position_bytes = 2 * 2 * 2 * 64 * 2  # layers, K and V, heads, head size, float16
    found = need(Work("decode", depth=10, streams=3, steps=2), runner)
    assert found.read_bytes == 2 * runner.step_bytes + 3 * (11 + 12) * position_bytes
    assert found.multiply_adds == 6 * runner.multiply_adds


def test_the_need_of_a_prompt_counts_the_output_matrix_once_a_chunk(runner: NativeRunner) -> None:
    assert runner.logits_multiply_adds == 271 * 256
    found = need(Work("prefill", depth=600), runner)
    assert found.read_bytes == 2 * runner.step_bytes
    assert found.multiply_adds == 600 * (runner.multiply_adds - 271 * 256) + 2 * 271 * 256
    assert found.seconds(1e9, 1e30) == pytest.approx(found.read_bytes / 1e9)
    assert found.seconds(1e30, 1e9) == pytest.approx(found.multiply_adds / 1e9)


def test_a_window_hides_what_lies_before_it(windowed: NativeRunner) -> None:
    layer = windowed.block_bytes // (windowed.block_tokens * 7)
    assert windowed.kv_read_bytes(9) == 7 * 10 * layer
    assert windowed.kv_read_bytes(99) == (6 * 16 + 100) * layer


def test_every_work_has_a_row_whose_shares_add_up(runner: NativeRunner) -> None:
    asked = list(works([20], [1, 3], [8], 2))
    assert [(work.kind, work.depth, work.streams, work.tokens) for work in asked] == [
        ("prefill", 20, 1, 20),
        ("decode", 8, 1, 2),
        ("decode", 8, 3, 6),
    ]
    machine = FixedMachine()
    rows = measure(Rates(runner, streams=4), asked, runner, machine, rounds=1, threads=2)
    assert [(row.work, row.depth, row.streams) for row in rows] == [
        (work.kind, work.depth, work.streams) for work in asked
    ]
    for row in rows:
        assert 0 < row.lowest <= row.tokens_per_second <= row.highest
        assert row.floor_share > 0
        assert sum(astuple(row.time)) == pytest.approx(1.0)
    assert len(machine.bandwidths) == len(asked)
    assert machine.limits() == Limits(read_gb_s=1.0, int8_gmac_s=2.0)


def test_depth_is_filled_once_and_for_every_stream(
    runner: NativeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    real = runner.step

    def step(batch: object) -> object:
        steps.append(len(batch.token_ids))  # type: ignore[attr-defined]
        return real(batch)  # type: ignore[arg-type]

    monkeypatch.setattr(NativeRunner, "step", lambda _, batch: step(batch))
    rates = Rates(runner, streams=4)
    rates.decode(streams=2, steps=1, depth=30)
    rates.decode(streams=4, steps=1, depth=30)
    rates.decode(streams=3, steps=1, depth=20)
    rates.decode(streams=1, steps=1, depth=31)
    assert steps == [30, 2, 4, 3, 31, 1]
