"""What a request's row says, on a clock that stands still unless it is moved."""

from dataclasses import dataclass

import pytest

from ferrite.api.records import RequestRecord
from ferrite.engine.events import Delta, Event, Finished, Timings, Usage
from ferrite.telemetry import RequestRing, RequestRow, ServingStats


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Case:
    """One record with its clock and its counters."""

    def __post_init__(self) -> None:
        self.clock = Clock()
        self.stats = ServingStats(RequestRing())
        self.record = RequestRecord(
            self.stats, "r-1", "/v1/completions", streamed=True, clock=self.clock, wall_clock=lambda: 5.0
        )

    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds

    def row(self) -> RequestRow:
        (row,) = self.stats.ring.rows()
        return row


@pytest.fixture
def case() -> Case:
    return Case()


def finished(reason: str = "stop", cached: int = 2) -> Event:
    assert reason in ("stop", "length")
    timings = Timings(queue_seconds=0.5, prefill_seconds=1.5, decode_seconds=2.5)
    return Finished("stop" if reason == "stop" else "length", Usage(7, 4, cached), timings, (1, 2, 3), None)


def test_a_completed_request_has_the_engine_s_times(case: Case) -> None:
    case.pass_time(1)
    case.record.taken(7)
    assert case.stats.in_flight == 1
    case.record.admitted()
    case.record.add(0, Delta("a", (1, 2)))
    case.record.add(0, finished())
    case.pass_time(9)
    assert case.record.end(finish_reasons=["tool_calls"]) is True
    row = case.row()
    assert (row.request_id, row.endpoint, row.started_at, row.streamed) == (
        "r-1",
        "/v1/completions",
        5.0,
        True,
    )
    assert (row.queue_ms, row.prefill_ms, row.decode_ms, row.total_ms) == (500, 1500, 2500, 10_000)
    assert row.ttft_ms == 2000
    assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (7, 2, 4)
    assert (row.finish_reason, row.error, row.cancelled) == ("tool_calls", None, False)
    assert (case.stats.in_flight, case.stats.completed) == (0, 1)


def test_it_ends_once(case: Case) -> None:
    case.record.taken(7)
    case.record.admitted()
    case.record.add(0, finished())
    assert case.record.end()
    assert case.record.end(cancelled=True)
    assert (case.stats.completed, case.stats.aborted, case.stats.ring.recorded_total) == (1, 0, 1)


def test_what_the_engine_never_took_has_no_row(case: Case) -> None:
    assert case.record.end(error="invalid") is False
    assert (case.stats.ring.recorded_total, case.stats.in_flight, case.stats.failed) == (0, 0, 0)


def test_cancelled_in_line(case: Case) -> None:
    case.record.taken(7)
    case.pass_time(3)
    case.record.end(cancelled=True)
    row = case.row()
    assert (row.queue_ms, row.prefill_ms, row.decode_ms, row.total_ms) == (None, None, None, 3000)
    assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (None, None, None)
    assert row.ttft_ms is None
    assert (row.cancelled, case.stats.aborted, case.stats.prompt_tokens_total) == (True, 1, 0)


def test_cancelled_in_prefill(case: Case) -> None:
    case.record.taken(7)
    case.pass_time(1)
    case.record.admitted()
    case.pass_time(2)
    case.record.end(cancelled=True)
    row = case.row()
    assert (row.queue_ms, row.prefill_ms, row.prompt_tokens) == (1000, None, None)


def test_cancelled_while_it_generates(case: Case) -> None:
    case.record.taken(7)
    case.record.admitted()
    case.pass_time(2)
    case.record.add(0, Delta("a", (1,)))
    case.pass_time(2)
    case.record.add(0, Delta("b", (2, 3)))
    case.record.end(cancelled=True, error="request_timeout")
    row = case.row()
    assert (row.queue_ms, row.prefill_ms, row.decode_ms) == (0, 2000, None)
    assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (7, None, 3)
    assert (row.finish_reason, row.error) == (None, "request_timeout")


def test_the_prompts_of_a_request_add_up(case: Case) -> None:
    for reason in ("stop", "length", "stop"):
        case.record.taken(7)
        case.record.admitted()
        case.record.add(0, finished(reason))
    case.record.end(finish_reasons=["stop", "length", "stop"])
    row = case.row()
    assert (row.queue_ms, row.prefill_ms, row.decode_ms) == (1500, 4500, 7500)
    # The client has its first token long before the last prompt is evaluated.
    assert row.ttft_ms == 2000
    assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (21, 6, 12)
    assert row.finish_reason == "stop,length"
    assert case.stats.completed == 1


def test_a_phase_that_did_not_end_for_every_prompt_has_no_duration(case: Case) -> None:
    case.record.taken(7)
    case.record.admitted()
    case.record.add(0, finished())
    case.record.taken(9)
    case.record.admitted()
    case.record.end(error="internal_error")
    row = case.row()
    assert (row.queue_ms, row.prefill_ms, row.decode_ms, row.ttft_ms) == (500, None, None, 2000)
    assert (row.prompt_tokens, row.completion_tokens, row.finish_reason) == (7, 4, None)
    assert (case.stats.failed, case.stats.prompt_tokens_total) == (1, 7)


def test_a_completion_of_nothing_has_no_phases(case: Case) -> None:
    case.record.taken(7)
    case.record.add(0, Finished("length", Usage(7, 0), Timings(0.0, 0.0, 0.0), (), None))
    case.record.end()
    row = case.row()
    assert (row.queue_ms, row.prefill_ms, row.decode_ms, row.ttft_ms) == (None, None, None, None)
    assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (7, 0, 0)


def test_the_choices_of_a_prompt_run_together(case: Case) -> None:
    case.record.taken(7, 3)
    assert case.stats.in_flight == 1
    case.record.admitted()
    for choice in range(3):
        case.record.add(choice, Delta("a", (1, 2)))
        case.record.add(choice, finished())
    case.record.end(finish_reasons=["stop", "length", "stop"])
    row = case.row()
    assert (row.queue_ms, row.prefill_ms, row.decode_ms, row.ttft_ms) == (500, 1500, 2500, 2000)
    assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (7, 2, 12)
    assert row.finish_reason == "stop,length"
