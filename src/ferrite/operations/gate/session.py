"""What the sections of the gate share: requests that may meet a busy server, and waiting with a bound."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ferrite.operations.client import Client, Exchange, retry_after_seconds
from ferrite.operations.gate.checks import Record
from ferrite.operations.gate.prompts import CONTINUED, long_prompt
from ferrite.operations.gate.settings import GateSettings
from ferrite.operations.gate.stats import Counters, read_counters
from ferrite.operations.summary import ids_digest

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
POLL_SECONDS = 0.05
BASELINE_TOKENS = 8
_MESSAGE_CHARACTERS = 300


@dataclass
class Session:
    """One run of the gate against one server."""

    client: Client
    settings: GateSettings
    record: Record
    model_id: str
    context_length: int | None
    """None where the server does not say."""
    baseline: Exchange | None = field(default=None)
    """The first answer to the request that is repeated behind every probe."""

    def body(self, **fields: Any) -> dict[str, Any]:
        """Return a greedy request for this model."""
        return {"model": self.model_id, "temperature": 0, "return_token_ids": True, **fields}

    async def ask(self, path: str, **fields: Any) -> Exchange:
        """Send a greedy request; one that finds the server busy is sent again for a while."""
        return await self.send(path, self.body(**fields))

    async def send(self, path: str, body: Mapping[str, Any]) -> Exchange:
        """Send a body as it is; again when the server is busy, as long as the settings say."""
        deadline = time.monotonic() + self.settings.patience_seconds
        while True:
            exchange = await self.client.generate(path, body)
            pause = retry_after_seconds(exchange.headers)
            if not exchange.busy or time.monotonic() + pause > deadline:
                return exchange
            await asyncio.sleep(pause)

    async def counters(self) -> Counters:
        """Read the server's counters."""
        return await read_counters(self.client)

    async def settled(self, condition: Callable[[Counters], bool]) -> tuple[Counters, bool]:
        """Wait until the counters meet a condition, within the settle time; return the last reading."""
        deadline = time.monotonic() + self.settings.settle_seconds
        while True:
            counters = await self.counters()
            if condition(counters):
                return counters, True
            if time.monotonic() >= deadline:
                return counters, False
            await asyncio.sleep(POLL_SECONDS)

    async def accepted_budget(self, wanted: int) -> int:
        """Return a token budget that the server takes: ``wanted`` or a half, a quarter, ... of it.

        Nothing is generated: the prompt fills the context alone, so that the request is refused for its
        budget or, when that is accepted, for its length.
        """
        if self.context_length is None:
            return wanted
        prompt = long_prompt(self.context_length)
        budget = wanted
        while budget > 1:
            exchange = await self.ask(COMPLETIONS, prompt=prompt, max_tokens=budget)
            if exchange.error is None or exchange.error.param != "max_tokens":
                break
            budget //= 2
        return budget

    async def serves_as_before(self, section: str) -> None:
        """Check that the repeated request is answered, and answered with the same tokens."""
        exchange = await self.ask(COMPLETIONS, prompt=CONTINUED, max_tokens=BASELINE_TOKENS)
        same = self.baseline is not None and exchange.answer == self.baseline.answer
        self.record.check(
            section, "the next request is served as before", passed=exchange.ok and same, **outline(exchange)
        )


def outline(exchange: Exchange) -> dict[str, Any]:
    """Return the evidence of one exchange, without the text."""
    answer, usage = exchange.answer, exchange.answer.usage
    found: dict[str, Any] = {"status": exchange.status, "failure": exchange.failure}
    if exchange.error is not None:
        found["message"] = exchange.error.message[:_MESSAGE_CHARACTERS]
    if exchange.ok:
        found |= {
            "finish_reason": answer.finish_reason,
            "prompt_tokens": None if usage is None else usage.prompt,
            "cached_tokens": None if usage is None else usage.cached,
            "completion_tokens": None if usage is None else usage.completion,
            "ids_digest": None if answer.token_ids is None else ids_digest(answer.token_ids),
            "text_bytes": len(answer.text.encode()),
        }
    return found
