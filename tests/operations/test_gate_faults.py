"""The gate passes a right server and fails each wrong one, by the check that is about it."""

import asyncio
import io
import json
from typing import Any

import pytest

from ferrite.operations.client import Target
from ferrite.operations.gate.checks import Record
from ferrite.operations.gate.run import GateResult, run_gate
from ferrite.operations.gate.settings import FINISHES, PROBES, GateSettings
from tests.operations.scripted import MODEL, Scripted, scripted_server

CONVERSATION = GateSettings(turns=4)
CACHED = GateSettings(turns=4, prompt_cache_key="key")


def probing(*probes: str) -> GateSettings:
    return GateSettings(turns=1, probes=frozenset(probes), settle_seconds=0.5, patience_seconds=1.5)


def gate(
    server: Scripted, settings: GateSettings, *, model: str | None = None, key: bool = True
) -> GateResult:
    async def run() -> GateResult:
        async with scripted_server(server) as target:
            used = target if key else Target(target.base_url, None, target.timeout_seconds)
            return await run_gate(used, model, settings, Record(), "run")

    return asyncio.run(run())


@pytest.mark.parametrize("api_key", [None, "secret"])
@pytest.mark.parametrize(("permits", "waiting"), [(1, 0), (3, 2)])
def test_a_right_server_passes(api_key: str | None, permits: int, waiting: int) -> None:
    settings = GateSettings(
        turns=4,
        prompt_cache_key="key",
        probes=frozenset(PROBES),
        require_probes=frozenset(PROBES),
        require_finish=frozenset(FINISHES),
    )
    result = gate(Scripted(permits=permits, waiting=waiting, prefix_cache=True, api_key=api_key), settings)
    assert result.problems == []
    assert {check.outcome for check in result.record.checks} == {"passed"}
    assert list(result.record.sections()) == [
        "server", "conversation", "finish", "cache", "error", "disconnect", "queue",
    ]  # fmt: skip
    names = {check.name for check in result.record.checks}
    assert ("no API key" in names) == (api_key is not None)
    assert ("leaving the line frees the place" in names) == (waiting > 0)


FAULTS: list[tuple[str, GateSettings, str]] = [
    ("unstable", CONVERSATION, "conversation: turn 1 streamed is the same answer: failed"),
    ("unstable_streams", CONVERSATION, "conversation: turn 2 streamed is the same answer: failed"),
    ("cuts_history", CONVERSATION, "conversation: turn 4 adds its messages to the prompt: failed"),
    ("remembers", CONVERSATION, "conversation: turn 1 streamed is the same answer: failed"),
    ("empty", CONVERSATION, "conversation: turn 1 is answered: failed"),
    ("short_of_budget", CONVERSATION, "conversation: turn 1 is answered: failed"),
    ("no_end_mark", CONVERSATION, "conversation: turn 1 streamed is the same answer: failed"),
    ("leaks_stop", CONVERSATION, "finish: a stop string ends the answer before it: failed"),
    ("ignores_stop", CONVERSATION, "finish: a stop string ends the answer before it: failed"),
    ("cached_without_key", CONVERSATION, "cache: cached tokens of the whole turns: failed"),
    ("cached_at_once", CACHED, "cache: cached tokens of the whole turns: failed"),
    ("cached_never", CACHED, "cache: cached tokens of the streamed turns: failed"),
    ("cached_too_much", CACHED, "cache: cached tokens of the whole turns: failed"),
    ("no_stats", CACHED, "cache: cached tokens of the whole turns: inconclusive"),
    ("bare_errors", probing("error"), "error: bad JSON: failed"),
    ("errors_without_param", probing("error"), "error: unknown field: failed"),
    ("cuts_prompts", probing("error"), "error: too long a prompt: failed"),
    (
        "deaf",
        probing("disconnect"),
        "disconnect: leaving in the middle of a stream stops the request: failed",
    ),
    (
        "uncounted_aborts",
        probing("disconnect"),
        "disconnect: leaving during prefill stops the request: failed",
    ),
    (
        "scheduler_goes_on",
        probing("disconnect"),
        "disconnect: leaving during prefill stops the request: failed",
    ),
    (
        "leaks_permits",
        probing("disconnect"),
        "disconnect: leaving in the middle of a stream stops the request: failed",
    ),
    (
        "leaks_blocks",
        probing("disconnect"),
        "disconnect: leaving before a whole answer stops the request: failed",
    ),
    ("no_stats", probing("disconnect"), "disconnect: counters are there: inconclusive"),
    (
        "no_retry_after",
        probing("queue"),
        "queue: every refusal is OpenAI's rate-limit error with Retry-After: failed",
    ),
    (
        "bare_errors",
        probing("queue"),
        "queue: every refusal is OpenAI's rate-limit error with Retry-After: failed",
    ),
    (
        "endless_room",
        probing("queue"),
        "queue: more requests than there is room for (at most 64) are refused with 429: inconclusive",
    ),
    (
        "drops_admitted",
        probing("queue"),
        "queue: every admitted request completes with the answer it has alone: failed",
    ),
    ("stuck_after_crowd", probing("queue"), "queue: the server is idle again, its blocks are free: failed"),
    ("uncounted_refusals", probing("queue"), "queue: every refusal is counted: failed"),
    ("no_stats", probing("queue"), "queue: the server is idle again, its blocks are free: inconclusive"),
]


@pytest.mark.parametrize(
    ("fault", "settings", "problem"), FAULTS, ids=[f"{f}-{p[:20]}" for f, _, p in FAULTS]
)
def test_each_fault_fails_its_check(fault: str, settings: GateSettings, problem: str) -> None:
    server = Scripted(faults=frozenset({fault}), prefix_cache=settings.prompt_cache_key is not None)
    assert problem in gate(server, settings).problems


def test_a_key_that_the_server_does_not_ask_for_is_not_probed() -> None:
    server = Scripted(faults=frozenset({"open"}), api_key="secret")
    result = gate(server, probing("error"))
    assert result.problems == []
    assert "no API key" not in {check.name for check in result.record.checks}


def test_a_line_that_keeps_the_places_of_those_who_left_fails() -> None:
    server = Scripted(faults=frozenset({"leaks_the_line"}), waiting=2)
    assert (
        "disconnect: leaving the line frees the place: failed" in gate(server, probing("disconnect")).problems
    )


def test_a_required_finish_that_was_not_seen_fails() -> None:
    server = Scripted(faults=frozenset({"never_ends"}))
    required = GateSettings(turns=1, require_finish=frozenset({"end_token", "length"}))
    assert gate(server, required).problems == ["finish: end_token was seen: failed"]
    assert gate(server, GateSettings(turns=1)).problems == []


def test_a_required_probe_that_did_not_run_fails() -> None:
    settings = GateSettings(
        turns=1, probes=frozenset({"error"}), require_probes=frozenset({"error", "queue"})
    )
    assert gate(Scripted(), settings).problems == ["queue: required, but did not run"]


def test_a_server_without_ids_is_compared_by_text() -> None:
    assert gate(Scripted(faults=frozenset({"no_ids"})), CONVERSATION).problems == []


def test_a_missing_key_and_a_choice_of_models_end_the_run() -> None:
    (problem,) = gate(Scripted(api_key="secret"), CONVERSATION, key=False).problems
    assert problem == "server: has a model: failed"
    two = frozenset({"two_models"})
    assert gate(Scripted(faults=two), CONVERSATION).problems == ["server: has a model: failed"]
    assert gate(Scripted(faults=two), GateSettings(turns=1), model=MODEL).problems == []


def test_every_conversation_has_its_own_new_key() -> None:
    server = Scripted(prefix_cache=True)
    assert gate(server, CACHED).problems == []
    keys = {body.get("prompt_cache_key") for body in server.bodies}
    assert keys == {None, "key-run-whole", "key-run-streamed"}


def test_the_proof_log_has_every_check_and_no_generated_text() -> None:
    log = io.StringIO()
    server = Scripted()

    async def run() -> GateResult:
        async with scripted_server(server) as target:
            return await run_gate(target, None, probing(*PROBES), Record(log), "run")

    result = asyncio.run(run())
    lines: list[dict[str, Any]] = [json.loads(line) for line in log.getvalue().splitlines()]
    checks = [line for line in lines if line["event"] == "check"]
    assert [(line["section"], line["name"]) for line in checks] == [
        (check.section, check.name) for check in result.record.checks
    ]
    assert all(line["evidence"] for line in checks)
    assert lines[-1] == {"event": "result", "passed": True, "problems": [], "seconds": lines[-1]["seconds"]}
    remarks = {line["section"]: line["text"] for line in lines if line["event"] == "remark"}
    assert remarks["finish"] == "seen: length, stop_string, end_token"
    assert remarks["cache"] == "the server's prefix cache is off"
    # What a scripted answer looks like: seven letters further each time.
    assert "ahovcjqx" not in log.getvalue()


def test_an_end_token_is_not_claimed_without_ids() -> None:
    result = gate(Scripted(faults=frozenset({"no_ids"})), GateSettings(turns=1))
    assert ("finish", "seen: length, stop_string") in result.record.remarks
