"""Queue probe: a full server says so with 429 and ``Retry-After``, serves whom it admitted, and recovers."""

import asyncio
from collections.abc import Sequence
from typing import Any

from ferrite.operations.client import Exchange
from ferrite.operations.gate.prompts import COUNTING
from ferrite.operations.gate.session import COMPLETIONS, Session, outline
from ferrite.operations.gate.settings import GateSettings

SECTION = "queue"
MOST_AT_ONCE = 64
BUDGET = 48
"""Long enough that a burst arrives while the first of it still runs."""


def describe(_: GateSettings) -> list[str]:
    """Return what the section would send."""
    return [
        f"1 completion of at most {BUDGET} tokens alone, then 2, 4, ... {MOST_AT_ONCE} of it at once "
        "(every other one streamed), until some are refused"
    ]


async def probe_queue(session: Session) -> None:
    """Send more and more requests at once, until the server is full."""
    check = session.record.check
    budget = await session.accepted_budget(BUDGET)
    body = session.body(prompt=COUNTING, max_tokens=budget)
    alone = await session.send(COMPLETIONS, body)
    check(SECTION, "one request alone is served", passed=alone.ok, **outline(alone))
    if not alone.ok:
        return
    before, _ = await session.settled(lambda now: now.in_flight in (0, None))
    burst: list[Exchange] = []
    sizes = []
    while len(burst) < MOST_AT_ONCE and all(exchange.ok for exchange in burst):
        sizes.append(max(2, 2 * len(burst)))
        burst = await _burst(session, body, sizes[-1])
    _check_burst(session, alone, burst, sizes)
    after, idle = await session.settled(
        lambda now: (
            now.in_flight in (0, None)
            and now.queue_depth in (0, None)
            and now.kv_blocks_free == before.kv_blocks_free
        )
    )
    known = after.in_flight is not None or after.queue_depth is not None
    check(
        SECTION,
        "the server is idle again, its blocks are free",
        passed=idle if known else None,
        before=before.evidence(),
        after=after.evidence(),
    )
    refused = sum(exchange.busy for exchange in burst)
    if before.queue_rejected is not None and after.queue_rejected is not None and refused:
        counted = after.queue_rejected - before.queue_rejected
        check(
            SECTION, "every refusal is counted", passed=counted == refused, refused=refused, counted=counted
        )
    await session.serves_as_before(SECTION)


async def _burst(session: Session, body: dict[str, Any], size: int) -> list[Exchange]:
    bodies = [{**body, "stream": True} if index % 2 else body for index in range(size)]
    return await asyncio.gather(*(session.client.generate(COMPLETIONS, each) for each in bodies))


def _check_burst(session: Session, alone: Exchange, burst: Sequence[Exchange], sizes: Sequence[int]) -> None:
    refused = [exchange for exchange in burst if exchange.busy]
    served = [exchange for exchange in burst if exchange.ok]
    others = [exchange for exchange in burst if not exchange.busy and not exchange.ok]
    session.record.check(
        SECTION,
        f"more requests than there is room for (at most {MOST_AT_ONCE}) are refused with 429",
        passed=True if refused else None if not others else False,
        sizes=list(sizes),
        refused=len(refused),
        served=len(served),
    )
    problems = sorted({problem for exchange in refused for problem in busy_problems(exchange)})
    session.record.check(
        SECTION,
        "every refusal is OpenAI's rate-limit error with Retry-After",
        passed=not problems,
        problems=problems,
        retry_after=sorted({exchange.headers.get("retry-after", "") for exchange in refused}),
    )
    right = [exchange for exchange in served if exchange.answer.text == alone.answer.text]
    session.record.check(
        SECTION,
        "every admitted request completes with the answer it has alone",
        passed=bool(served) and not others and len(right) == len(served),
        served=len(served),
        right=len(right),
        failures=sorted({exchange.failure or "" for exchange in others}),
    )


def busy_problems(exchange: Exchange) -> list[str]:
    """Return what is wrong with a refusal for want of room."""
    problems = []
    if not exchange.headers.get("content-type", "").startswith("application/json"):
        problems.append("not JSON")
    if exchange.error is None:
        problems.append("no error object with message, type, param and code")
    elif exchange.error.type != "rate_limit_error" or not exchange.error.message:
        problems.append(f"type {exchange.error.type!r} instead of 'rate_limit_error'")
    written = exchange.headers.get("retry-after", "")
    if not (written.isascii() and written.isdigit() and int(written[:9]) >= 1):
        problems.append("no whole Retry-After of at least 1 second")
    return problems
