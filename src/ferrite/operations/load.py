"""Closed-loop load: so many workers, each of which sends its next request when its last one has ended."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from ferrite.operations.client import Client, Exchange, retry_after_seconds

Endpoint = Literal["chat", "completions"]
PATHS: dict[Endpoint, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What to send. Request ``i`` has prompt ``i`` and budget ``i``, each list taken round and round."""

    endpoint: Endpoint
    model_id: str
    prompts: tuple[str, ...]
    max_tokens: tuple[int, ...]
    requests: int
    concurrency: int
    stream: bool
    stream_usage: bool
    token_ids: bool
    """Ask for the ids of what was generated."""
    prompt_cache_key: str | None
    temperature: float | None
    seed: int | None
    retry_busy: bool
    """Send a refused request again after the time that a 429 names."""
    patience_seconds: float
    """How long one request may be sent again."""

    def prompt_index(self, request: int) -> int:
        """Return which prompt a request has."""
        return request % len(self.prompts)

    def budget(self, request: int) -> int:
        """Return how many tokens a request may generate."""
        return self.max_tokens[request % len(self.max_tokens)]

    def body(self, request: int) -> dict[str, Any]:
        """Return the body of a request."""
        prompt = self.prompts[self.prompt_index(request)]
        content: dict[str, Any] = (
            {"messages": [{"role": "user", "content": prompt}]}
            if self.endpoint == "chat"
            else {"prompt": prompt}
        )
        options = {
            "stream": True if self.stream else None,
            "stream_options": {"include_usage": True} if self.stream_usage else None,
            "return_token_ids": True if self.token_ids else None,
            "prompt_cache_key": self.prompt_cache_key,
            "temperature": self.temperature,
            "seed": self.seed,
        }
        given = {name: value for name, value in options.items() if value is not None}
        return {"model": self.model_id, **content, "max_tokens": self.budget(request), **given}


@dataclass(frozen=True, slots=True)
class Sample:
    """One request of the load: the last exchange, and the 429s before it."""

    prompt_index: int
    max_tokens: int
    exchange: Exchange
    busy_answers: int
    busy_seconds: float
    """Spent waiting to send it again."""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """All requests in the order in which they ended, and how long the load took."""

    samples: tuple[Sample, ...]
    seconds: float


async def run_load(client: Client, plan: LoadPlan) -> LoadResult:
    """Send every request of the plan."""
    waiting = iter(range(plan.requests))
    samples: list[Sample] = []
    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(min(plan.concurrency, plan.requests)):
            group.create_task(_work(client, plan, waiting, samples))
    return LoadResult(tuple(samples), time.perf_counter() - started)


async def _work(client: Client, plan: LoadPlan, waiting: Iterator[int], samples: list[Sample]) -> None:
    for request in waiting:
        samples.append(await _send(client, plan, request))  # noqa: PERF401 - others append between


async def _send(client: Client, plan: LoadPlan, request: int) -> Sample:
    body = plan.body(request)
    deadline = time.perf_counter() + plan.patience_seconds
    busy_answers, waited = 0, 0.0
    while True:
        exchange = await client.generate(PATHS[plan.endpoint], body)
        if exchange.busy:
            busy_answers += 1
            pause = retry_after_seconds(exchange.headers)
            if plan.retry_busy and time.perf_counter() + pause < deadline:
                await asyncio.sleep(pause)
                waited += pause
                continue
        return Sample(plan.prompt_index(request), plan.budget(request), exchange, busy_answers, waited)
