"""The gate from its first check to its verdict, or only its plan."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import aiohttp

from ferrite.operations.client import Client, Target, TransportError, reason
from ferrite.operations.discovery import ToolError, find_model
from ferrite.operations.gate import cache, conversation, disconnect, errors, finish, queue
from ferrite.operations.gate.checks import Record, verdict
from ferrite.operations.gate.prompts import CONTINUED
from ferrite.operations.gate.session import BASELINE_TOKENS, COMPLETIONS, Session, outline
from ferrite.operations.gate.settings import GateSettings
from ferrite.operations.sse import SseError

SERVER = "server"
CONNECTIONS = queue.MOST_AT_ONCE + 8
_DESCRIPTIONS: dict[str, Callable[[GateSettings], list[str]]] = {
    conversation.SECTION: conversation.describe,
    finish.SECTION: finish.describe,
    cache.SECTION: cache.describe,
    errors.SECTION: errors.describe,
    disconnect.SECTION: disconnect.describe,
    queue.SECTION: queue.describe,
}


@dataclass(frozen=True, slots=True)
class GateResult:
    """What a run found."""

    record: Record
    problems: list[str]
    """Why the gate fails, one line each."""
    seconds: float


def plan_lines(settings: GateSettings) -> list[str]:
    """Return what a run would send, section by section, a line each."""
    lines = [
        f"{SERVER}: GET /v1/models, 1 completion of {BASELINE_TOKENS} tokens, repeated behind each probe"
    ]
    for section, describe in _DESCRIPTIONS.items():
        if section in settings.probes or section in (conversation.SECTION, finish.SECTION, cache.SECTION):
            lines += [f"{section}: {line}" for line in describe(settings)]
    required = ", ".join(sorted(settings.require_probes)) or "none"
    return [*lines, f"required probes: {required}"]


async def run_gate(
    target: Target, asked_model: str | None, settings: GateSettings, record: Record, run_id: str
) -> GateResult:
    """Run every section; ``run_id`` makes the prefix-cache keys of this run new.

    A server that stops answering fails the section in which it did, and the gate.
    """
    started = time.monotonic()
    async with Client(target, connections=CONNECTIONS, keep_alive=False) as client:
        try:
            model_id, context_length = await find_model(client, asked_model)
        except (ToolError, TransportError) as error:
            record.check(SERVER, "has a model", passed=False, problems=[str(error)])
        else:
            session = Session(client, settings, record, model_id, context_length)
            record.note("server", model=model_id, context_length=context_length)
            await _sections(session, target, run_id)
    problems = verdict(record, settings.require_probes)
    seconds = time.monotonic() - started
    record.note("result", passed=not problems, problems=problems, seconds=round(seconds, 3))
    return GateResult(record, problems, seconds)


async def _sections(session: Session, target: Target, run_id: str) -> None:
    if not await _guarded(session, SERVER, lambda: _baseline(session)):
        return
    await _guarded(session, conversation.SECTION, lambda: _conversations(session, run_id))
    probes: dict[str, Callable[[], Awaitable[None]]] = {
        errors.SECTION: lambda: errors.probe_errors(session, target.api_key),
        disconnect.SECTION: lambda: disconnect.probe_disconnects(session),
        queue.SECTION: lambda: queue.probe_queue(session),
    }
    for section, probe in probes.items():
        if section in session.settings.probes:
            await _guarded(session, section, probe)


async def _baseline(session: Session) -> None:
    exchange = await session.ask(COMPLETIONS, prompt=CONTINUED, max_tokens=BASELINE_TOKENS)
    session.baseline = exchange
    session.record.check(SERVER, "answers", passed=exchange.ok, **outline(exchange))


async def _conversations(session: Session, run_id: str) -> None:
    key = session.settings.prompt_cache_key
    keys = [None, None] if key is None else [f"{key}-{run_id}-{run}" for run in ("whole", "streamed")]
    whole = await conversation.converse(session, stream=False, cache_key=keys[0])
    streamed = await conversation.converse(session, stream=True, cache_key=keys[1])
    await conversation.check_conversation(session, whole, streamed)
    await finish.check_finishes(session, whole)
    await cache.check_cache(session, (whole, streamed))


async def _guarded(session: Session, section: str, work: Callable[[], Awaitable[None]]) -> bool:
    """Run a section; return whether the server was there to its end and no check of it failed."""
    try:
        await work()
    except (TransportError, aiohttp.ClientError, TimeoutError, OSError, SseError) as error:
        said = str(error) if isinstance(error, TransportError) else reason(error)
        session.record.check(section, "the server answers to the end", passed=False, problems=[said])
    return session.record.outcome(section) == "passed"
