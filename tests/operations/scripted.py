"""A small OpenAI-compatible server of our own whose faults can be switched on, one at a time.

One token is one byte of text; what is generated depends on the whole prompt. It has permits and no queue.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from ferrite.operations.client import Target

MODEL = "scripted/model"
CONTEXT = 4096
HARD_MAX_TOKENS = 256
STEP_SECONDS = 0.001
CHUNK = 64
END_CHARACTERS = 40
"""A chat ends itself behind so many characters."""


@dataclass
class Scripted:
    """State, counters and faults."""

    faults: frozenset[str] = frozenset()
    permits: int = 2
    waiting: int = 0
    """Requests that may wait for a permit."""
    prefix_cache: bool = False
    api_key: str | None = None
    in_flight: int = 0
    queued: int = 0
    completed: int = 0
    aborted: int = 0
    queue_rejected: int = 0
    prefill_tokens: int = 0
    decode_steps: int = 0
    blocks_free: int = 100
    requests: int = 0
    prefixes: dict[str, list[str]] = field(default_factory=dict)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    memory: str = ""

    def has(self, fault: str) -> bool:
        return fault in self.faults

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._check_key])
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/stats", self._stats)
        app.router.add_get("/admin/stats", self._admin)
        app.router.add_route("*", "/v1/chat/completions", self._generate)
        app.router.add_route("*", "/v1/completions", self._generate)
        app.router.add_route("*", "/{rest:.*}", self._unknown)
        return app

    @web.middleware
    async def _check_key(self, request: web.Request, handler: Any) -> web.StreamResponse:
        wanted = f"Bearer {self.api_key}"
        if self.api_key is not None and request.headers.get("authorization") != wanted:
            if self.has("open"):
                return await handler(request)  # type: ignore[no-any-return]
            return self._error(401, "no key", None, headers={"WWW-Authenticate": "Bearer"})
        return await handler(request)  # type: ignore[no-any-return]

    async def _models(self, _: web.Request) -> web.Response:
        models = [{"id": MODEL, "context_length": CONTEXT}]
        if self.has("two_models"):
            models.append({"id": "other", "context_length": 1})
        return web.json_response({"object": "list", "data": models})

    async def _stats(self, _: web.Request) -> web.Response:
        if self.has("no_stats"):
            return self._error(501, "not built", None)
        return web.json_response(
            {
                "in_flight": self.in_flight + self.queued,
                "completed": self.completed,
                "aborted": self.aborted,
                "prefix_cache": {"entries": 0} if self.prefix_cache else None,
            }
        )

    async def _admin(self, _: web.Request) -> web.Response:
        if self.has("no_stats"):
            return self._error(501, "not built", None)
        batcher = {
            "aborted": 0 if self.has("scheduler_goes_on") else self.aborted,
            "queue_depth": self.queued,
            "queue_rejected": self.queue_rejected,
            "prefill_tokens": self.prefill_tokens,
            "decode_steps": self.decode_steps,
            "kv_blocks_total": 100,
            "kv_blocks_free": self.blocks_free,
        }
        return web.json_response({"batcher": batcher})

    async def _unknown(self, request: web.Request) -> web.Response:
        return self._error(404, f"no route {request.path}", None)

    def _error(
        self,
        status: int,
        message: str,
        param: str | None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> web.Response:
        if self.has("bare_errors"):
            return web.Response(status=status, text=message, headers=headers)
        kind = "rate_limit_error" if status == 429 else "invalid_request_error"
        error = {"message": message, "type": kind, "param": param, "code": code}
        if self.has("errors_without_param"):
            error["param"] = None
        return web.json_response({"error": error}, status=status, headers=headers)

    def _refusal(self, request: web.Request, body: Any) -> web.Response | None:
        chat = request.path.endswith("chat/completions")
        if not isinstance(body, dict):
            return self._error(400, "not an object", None)
        known = {
            "model", "messages", "prompt", "max_tokens", "temperature", "stream", "stream_options", "stop",
            "return_token_ids", "prompt_cache_key", "seed",
        }  # fmt: skip
        for name in body:
            if name not in known:
                return self._error(400, "unknown field", name)
        if not -2 <= body.get("temperature", 0) <= 2 or body.get("temperature", 0) < 0:
            return self._error(400, "out of range", "temperature")
        if ("messages" if chat else "prompt") not in body:
            return self._error(400, "missing", "messages" if chat else "prompt")
        for index, message in enumerate(body.get("messages", ())):
            if not isinstance(message["content"], str):
                return self._error(400, "not text", f"messages[{index}].content")
        if body["model"] != MODEL:
            return self._error(404, "no such model", "model", "model_not_found")
        if body["max_tokens"] > HARD_MAX_TOKENS:
            return self._error(400, "too many", "max_tokens")
        if len(body.get("prompt", "")) + body["max_tokens"] > CONTEXT and not self.has("cuts_prompts"):
            return self._error(400, "too long", "prompt", "context_length_exceeded")
        return None

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        if request.method != "POST":
            return self._error(405, "no", None, headers={"Allow": "POST"})
        if request.content_type != "application/json":
            return self._error(415, "no", None)
        try:
            body = json.loads(await request.read())
        except ValueError:
            return self._error(400, "no JSON", None)
        refusal = self._refusal(request, body)
        if refusal is not None:
            return refusal
        if self.in_flight >= self.permits and self.queued < self.waiting:
            await self._wait_in_line()
        elif self.in_flight >= self.permits and not self.has("endless_room"):
            self.queue_rejected += not self.has("uncounted_refusals")
            headers = {} if self.has("no_retry_after") else {"Retry-After": "1"}
            return self._error(429, "busy", None, "rate_limit_exceeded", headers)
        return await self._run(request, body)

    async def _wait_in_line(self) -> None:
        self.queued += 1
        try:
            while self.in_flight >= self.permits:
                await asyncio.sleep(STEP_SECONDS)
        except asyncio.CancelledError:
            self.queued += self.has("leaks_the_line")
            raise
        finally:
            self.queued -= 1

    async def _run(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        self.requests += 1
        self.bodies.append(body)
        self.in_flight += 1
        self.blocks_free -= 1
        work = _Work(self, request, body, self.requests)
        crowded = self.in_flight > 1
        try:
            response = await work.answer(crowded=crowded)
        except (asyncio.CancelledError, ConnectionResetError):
            if self.has("deaf"):
                asyncio.get_running_loop().call_later(0.05, self._forget)
                raise
            self.aborted += not self.has("uncounted_aborts")
            self.in_flight -= not self.has("leaks_permits")
            self.blocks_free += not self.has("leaks_blocks")
            raise
        self.completed += 1
        self.in_flight -= not (self.has("stuck_after_crowd") and crowded)
        self.blocks_free += 1
        return response

    def _forget(self) -> None:
        self.completed += 1
        self.in_flight -= 1
        self.blocks_free += 1


class _Work:
    """One generation."""

    def __init__(self, server: Scripted, request: web.Request, body: dict[str, Any], number: int) -> None:
        self._server, self._request, self._body, self._number = server, request, body, number
        self._chat = "messages" in body

    async def answer(self, *, crowded: bool) -> web.StreamResponse:
        server, body = self._server, self._body
        stream = body.get("stream", False)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        if stream:
            await response.prepare(self._request)
        prompt, shown = self._prompts()
        cached = self._cached(prompt)
        for _ in range(0, len(prompt) - cached, CHUNK):
            await asyncio.sleep(STEP_SECONDS)
            server.prefill_tokens += CHUNK
        text, reason = self._text(prompt)
        for number, character in enumerate(text):
            await asyncio.sleep(STEP_SECONDS)
            server.decode_steps += 1
            if stream:
                await self._send(response, self._chunk(character, None))
            if crowded and server.has("drops_admitted") and number == 3:
                return response
        usage = {
            "prompt_tokens": shown,
            "completion_tokens": len(text) + (reason == "stop"),
            "total_tokens": shown + len(text) + (reason == "stop"),
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        if server.prefix_cache and body.get("prompt_cache_key"):
            server.prefixes.setdefault(body["prompt_cache_key"], []).append(prompt + text)
        if not stream:
            return web.json_response({**self._chunk(text, reason, "message"), "usage": usage})
        await self._send(response, self._chunk("", reason))
        if body.get("stream_options"):
            await self._send(response, {"choices": [], "usage": usage})
        if not server.has("no_end_mark"):
            await response.write(b"data: [DONE]\n\n")
        return response

    def _prompts(self) -> tuple[str, int]:
        """What is evaluated, and how many tokens are claimed."""
        if not self._chat:
            prompt = str(self._body["prompt"])
            return prompt, len(prompt)
        messages = self._body["messages"]
        if self._server.has("cuts_history"):
            messages = messages[-4:]
        prompt = "".join(f"{message['role']}:{message['content']};" for message in messages)
        if self._server.has("remembers"):
            self._server.memory += prompt
            prompt = self._server.memory
        return prompt, len(prompt)

    def _cached(self, prompt: str) -> int:
        server, key = self._server, self._body.get("prompt_cache_key")
        if not server.prefix_cache or not key:
            return 5 if server.has("cached_without_key") else 0
        entries = server.prefixes.get(key, [])
        if server.has("cached_at_once") and not entries:
            return 7
        if server.has("cached_never"):
            return 0
        common = 0
        for entry in entries:
            length = 0
            while length < min(len(entry), len(prompt) - 1) and entry[length] == prompt[length]:
                length += 1
            common = max(common, length)
        return len(prompt) if server.has("cached_too_much") and entries else common

    def _text(self, prompt: str) -> tuple[str, str]:
        state = sum(prompt.encode()) + (self._number if self._server.has("unstable") else 0)
        if self._server.has("unstable_streams") and self._body.get("stream"):
            state += 1
        budget = self._body["max_tokens"]
        whole = "".join(chr(ord("a") + (state + 7 * index) % 26) for index in range(budget))
        if self._server.has("empty"):
            return "", "stop"
        text, reason = whole, "length"
        if self._chat and budget > END_CHARACTERS and not self._server.has("never_ends"):
            text, reason = whole[:END_CHARACTERS], "stop"
        if self._server.has("short_of_budget") and self._chat:
            text = text[:-1]
        for stop in self._body.get("stop", ()):
            if stop in text and not self._server.has("ignores_stop"):
                end = text.index(stop) + (len(stop) if self._server.has("leaks_stop") else 0)
                text, reason = text[:end], "stop"
        return text, reason

    def _chunk(self, text: str, reason: str | None, name: str = "delta") -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": reason}
        if self._chat:
            choice[name] = {"content": text}
        else:
            choice["text"] = text
        if (
            self._body.get("return_token_ids")
            and not self._body.get("stop")
            and not self._server.has("no_ids")
        ):
            choice["token_ids"] = list(text.encode())
        return {"choices": [choice]}

    async def _send(self, response: web.StreamResponse, value: dict[str, Any]) -> None:
        await response.write(b"data: " + json.dumps(value).encode() + b"\n\n")


@asynccontextmanager
async def scripted_server(server: Scripted) -> AsyncIterator[Target]:
    """Serve on a free port of this event loop."""
    runner = web.AppRunner(server.app(), handler_cancellation=True, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        yield Target(f"http://{host}:{port}", server.api_key, timeout_seconds=20.0)
    finally:
        await runner.cleanup()
