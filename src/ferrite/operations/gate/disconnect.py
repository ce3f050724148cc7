"""Disconnect probe: a client that leaves is noticed, its work is stopped, and its room is given back."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial

from ferrite.operations.answers import AnswerReader
from ferrite.operations.client import Exchange, retry_after_seconds
from ferrite.operations.gate.prompts import COUNTING, long_prompt
from ferrite.operations.gate.session import COMPLETIONS, POLL_SECONDS, Session
from ferrite.operations.gate.settings import GateSettings
from ferrite.operations.gate.stats import Counters

SECTION = "disconnect"
BUDGET = 256
"""The server's usual limit: long enough to be left in the middle."""
LONG_PROMPT_TOKENS = 2048
MOST_AT_ONCE = 64
ATTEMPTS = 5
"""A short answer may end before the connection is closed; a busy server may refuse."""
_CHUNKS_BEFORE_LEAVING = 3
_WATCH_SECONDS = 0.01
"""Short beside the generation that is to be caught while it runs."""
_NO_COUNTERS = "the server does not tell `in_flight` and `aborted` in /v1/stats"


def describe(settings: GateSettings) -> list[str]:
    """Return what the section would send."""
    return [
        f"1 stream of at most {BUDGET} tokens, left behind its third chunk",
        f"1 stream of a prompt of at most {LONG_PROMPT_TOKENS} tokens, left while that is evaluated",
        f"1 whole answer of at most {BUDGET} tokens, left while it is generated",
        f"up to {MOST_AT_ONCE} completions of at most {BUDGET} tokens, until one waits in line; all are left",
        f"each: in flight back to 0 and one more aborted within {settings.settle_seconds:g} s",
    ]


@dataclass(frozen=True, slots=True)
class Departure:
    """What became of an attempt to leave: ``left``, ``ended before``, or the status of a refusal."""

    outcome: str
    prompt_tokens: int | None = None
    """Of a prompt that must not have been evaluated to its end; None where that does not matter."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One moment at which a client leaves, and how it gets there."""

    name: str
    leave: Callable[[Session, int, Counters], Awaitable[Departure]]
    """Sends a request with this token budget and leaves; knows the counters before."""


async def probe_disconnects(session: Session) -> None:
    """Leave at each stage and look at the counters."""
    counters, idle = await session.settled(lambda now: now.in_flight in (0, None))
    if counters.in_flight is None or counters.aborted is None:
        session.record.check(SECTION, "counters are there", passed=None, problems=[_NO_COUNTERS])
        return
    if not idle:
        session.record.check(SECTION, "the server is idle before", passed=False, **counters.evidence())
        return
    budget = await session.accepted_budget(BUDGET)
    for stage in (
        Stage("in the middle of a stream", _leave_stream),
        Stage("during prefill", _leave_prefill),
        Stage("before a whole answer", _leave_whole),
    ):
        if not await _probe_stage(session, stage, budget):
            # Nothing that comes behind a request that never ends would say anything new.
            return
    await _probe_line(session, budget)
    await session.serves_as_before(SECTION)


async def _probe_stage(session: Session, stage: Stage, budget: int) -> bool:
    """Leave at one stage, again if that came too late; return whether the server is idle behind it."""
    attempts: list[str] = []
    stopped = in_prefill = False
    before = after = Counters()
    while len(attempts) < ATTEMPTS and not (stopped and in_prefill):
        before = await session.counters()
        departure = await stage.leave(session, budget, before)
        attempts.append(departure.outcome)
        if departure.outcome != "left":
            continue
        after, ended = await session.settled(partial(_ended, before))
        stopped = ended and _stopped(before, after)
        in_prefill = _left_in_prefill(departure, before, after)
        if not ended:
            break
    rest, blocks_back = await session.settled(lambda now: now.kv_blocks_free == before.kv_blocks_free)
    await asyncio.sleep(POLL_SECONDS)
    standing = (await session.counters()).decode_steps == rest.decode_steps
    session.record.check(
        SECTION,
        f"leaving {stage.name} stops the request",
        passed=stopped and in_prefill and blocks_back and standing,
        attempts=attempts,
        stopped=stopped,
        left_in_time=in_prefill,
        blocks_given_back=blocks_back,
        decoding_stands_still=standing,
        before=before.evidence(),
        after=after.evidence(),
    )
    return not after.in_flight


async def _probe_line(session: Session, budget: int) -> None:
    """Leave while waiting in line, where the server has one."""
    for _ in range(ATTEMPTS):
        before = await session.counters()
        requests: list[asyncio.Task[Exchange]] = []
        try:
            waits = await _fill_until_one_waits(session, budget, requests)
            if waits:
                requests[-1].cancel()
                after, left = await session.settled(lambda now: now.queue_depth == 0)
        finally:
            for request in requests:
                request.cancel()
            await asyncio.wait(requests)
        _, idle = await session.settled(lambda now: now.in_flight == 0)
        if not waits:
            session.record.remark(SECTION, "no request waited in line, so none could leave it")
            return
        # When one of the others has ended meanwhile, the line may have become shorter without the leaving.
        if not left or after.completed == before.completed:
            break
    session.record.check(
        SECTION,
        "leaving the line frees the place",
        passed=left and idle and after.completed == before.completed,
        at_once=len(requests),
        before=before.evidence(),
        after=after.evidence(),
    )


async def _fill_until_one_waits(
    session: Session, budget: int, requests: list[asyncio.Task[Exchange]]
) -> bool:
    """Start requests until the last waits; return whether one does."""
    body = session.body(prompt=COUNTING, max_tokens=budget)
    while len(requests) < MOST_AT_ONCE:
        requests.append(asyncio.create_task(session.client.generate(COMPLETIONS, body)))
        count = len(requests)
        now, _ = await session.settled(
            lambda now: any(each.done() for each in requests) or (now.in_flight or 0) >= count  # noqa: B023
        )
        if now.queue_depth:
            # Every request is in line for a moment; one that waits is still there after this.
            await asyncio.sleep(POLL_SECONDS)
            now = await session.counters()
        if now.queue_depth:
            return True
        if any(request.done() for request in requests):
            return False
    return False


def _ended(before: Counters, now: Counters) -> bool:
    """Return whether nothing runs and the one request was counted, as aborted or as completed."""
    return now.in_flight == 0 and (_stopped(before, now) or _grew(before.completed, now.completed))


def _left_in_prefill(departure: Departure, before: Counters, after: Counters) -> bool:
    if departure.prompt_tokens is None or before.prefill_tokens is None or after.prefill_tokens is None:
        return True
    return 0 < after.prefill_tokens - before.prefill_tokens < departure.prompt_tokens


def _stopped(before: Counters, now: Counters) -> bool:
    """Return whether one more request was aborted, and stopped by the scheduler where that is told."""
    by_scheduler = before.scheduler_aborted is None or _grew(before.scheduler_aborted, now.scheduler_aborted)
    return by_scheduler and _grew(before.aborted, now.aborted)


def _grew(before: int | None, now: int | None) -> bool:
    return before is not None and now is not None and now > before


async def _leave_stream(session: Session, budget: int, _: Counters) -> Departure:
    reader = AnswerReader()
    body = session.body(prompt=COUNTING, max_tokens=budget, stream=True)
    async with session.client.stream(COMPLETIONS, body) as live:
        if live.status != 200:
            return await _refused(live.status, live.headers)
        async for event in live.events():
            reader.add_event(event, 0.0)
            if len(reader.content_times) >= _CHUNKS_BEFORE_LEAVING:
                return Departure("left")
    return Departure("ended before")


async def _leave_prefill(session: Session, budget: int, before: Counters) -> Departure:
    length = LONG_PROMPT_TOKENS
    if session.context_length is not None:
        length = max(1, min(length, session.context_length - budget))
    while True:
        body = session.body(prompt=long_prompt(length), max_tokens=budget, stream=True)
        # The head of a stream comes with the admission, before the prompt is evaluated.
        async with session.client.stream(COMPLETIONS, body) as live:
            if live.status == 200:
                while before.prefill_tokens is not None:
                    now = (await session.counters()).prefill_tokens
                    if now != before.prefill_tokens:
                        break
                    await asyncio.sleep(_WATCH_SECONDS)
                return Departure("left", length)
            if live.status != 400 or length == 1:
                return await _refused(live.status, live.headers)
        # The KV limits may leave less room than the context.
        length //= 2


async def _leave_whole(session: Session, budget: int, before: Counters) -> Departure:
    body = session.body(prompt=COUNTING, max_tokens=budget)
    request = asyncio.create_task(session.client.generate(COMPLETIONS, body))
    try:
        while not request.done():
            now = await session.counters()
            if now.in_flight and (
                before.decode_steps is None or _grew(before.decode_steps, now.decode_steps)
            ):
                return Departure("left")
            await asyncio.wait((request,), timeout=_WATCH_SECONDS)
        exchange = request.result()
        return Departure("ended before") if exchange.ok else await _refused(exchange.status, exchange.headers)
    finally:
        request.cancel()
        await asyncio.wait((request,))


async def _refused(status: int | None, headers: Mapping[str, str]) -> Departure:
    if status == 429:
        await asyncio.sleep(retry_after_seconds(headers))
    return Departure(f"status {status}")
