"""A server in this process on a complete model: real tokenizer, template, grammars, engine and kernels."""

import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from ferrite.api import Address, LoadedModel, ServerConfig, ServerState
from ferrite.api.serving import Server, bind_listener, listener_address
from ferrite.cli.load import load_model
from tests.api.reading import choices_of, chunks_of, plain_choices
from tests.api.support import WAIT_SECONDS
from tests.api.test_responses import events_of

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
TOKENIZE, RENDER = "/v1/tokenize", "/v1/chat/completions/render"
MODEL_ID = "ferrite-local"


@dataclass(frozen=True)
class Served:
    """A server that answers, and the client that asks it."""

    model: LoadedModel
    http: httpx.Client

    def send(self, path: str, **fields: Any) -> httpx.Response:
        return self.http.post(path, json={"model": MODEL_ID, **fields})

    def answer(self, path: str, **fields: Any) -> dict[str, Any]:
        response = self.send(path, **fields)
        assert response.status_code == 200, response.text
        whole: dict[str, Any] = response.json()
        return whole

    def choice(self, path: str, **fields: Any) -> dict[str, Any]:
        (choice,) = self.answer(path, **fields)["choices"]
        found: dict[str, Any] = choice
        return found

    def chat(self, text: str, **fields: Any) -> dict[str, Any]:
        return self.answer(CHAT, messages=user(text), **fields)

    def refusal(self, path: str, **fields: Any) -> dict[str, Any]:
        response = self.send(path, **fields)
        assert response.status_code == 400, response.text
        assert response.headers["content-type"] == "application/json"
        error: dict[str, Any] = response.json()["error"]
        assert error["type"] == "invalid_request_error"
        return error

    def together(self, path: str, bodies: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Ask all at the same time."""
        with ThreadPoolExecutor(len(bodies)) as callers:
            return list(callers.map(lambda body: self.answer(path, **body), bodies))

    def get(self, path: str) -> Any:
        return self.http.get(path).json()


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def only(value: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object with nothing but ``v``."""
    return {"type": "object", "properties": {"v": value}, "required": ["v"], "additionalProperties": False}


def force(text: str) -> dict[str, Any]:
    """The chat field that leaves a model nothing to write but ``{"v":text}``."""
    form = {"name": "f", "strict": True, "schema": only({"enum": [text]})}
    return {"response_format": {"type": "json_schema", "json_schema": form}}


def force_response(text: str) -> dict[str, Any]:
    """The same for Responses."""
    form = {"type": "json_schema", "name": "f", "strict": True, "schema": only({"enum": [text]})}
    return {"text": {"format": form}}


@contextmanager
def serving(path: Path, *, send_buffer: int | None = None, **options: Any) -> Iterator[Served]:
    """Serve the file at ``path`` until the block ends; ``send_buffer``: bytes kept for a connection."""
    options = {"threads": 1, "bind": Address("127.0.0.1", 0), "default_max_tokens": 64, **options}
    config = ServerConfig(model=str(path), model_id=MODEL_ID, **options)
    model = load_model(config)
    listener = bind_listener(config.bind)
    if send_buffer is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    ready = threading.Event()
    server = Server(config, ServerState(model), ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        assert ready.wait(WAIT_SECONDS)
        url = f"http://{listener_address(listener)}"
        with httpx.Client(base_url=url, timeout=WAIT_SECONDS, trust_env=False, verify=False) as http:
            yield Served(model, http)
    finally:
        server.config.timeout_graceful_shutdown = 1
        server.should_exit = True
        thread.join(WAIT_SECONDS)
        model.engine.stop()
        listener.close()
        assert not thread.is_alive()


@dataclass(frozen=True)
class Outcome:
    """What a request generated, in one form for every route."""

    text: str
    reason: str
    prompt_tokens: int
    completion_tokens: int
    entries: tuple[Any, ...]
    """Of the log-probabilities, in the route's own form; one for each token."""


def question(path: str, text: str, *, logprobs: int | None = None, limit: int = 64) -> dict[str, Any]:
    """Ask ``text`` in the words of a route; ``logprobs``: alternatives of each token."""
    body: dict[str, Any] = {"model": MODEL_ID}
    if path == CHAT:
        shown = {} if logprobs is None else {"logprobs": True, "top_logprobs": logprobs}
        return {**body, "messages": user(text), "max_tokens": limit, **shown}
    if path == COMPLETIONS:
        return {**body, "prompt": text, "max_tokens": limit, "logprobs": logprobs}
    if logprobs is not None:
        body |= {"include": ["message.output_text.logprobs"], "top_logprobs": logprobs}
    return {**body, "input": text, "max_output_tokens": limit}


def whole(http: httpx.Client, path: str, body: dict[str, Any]) -> Outcome:
    """Ask without a stream."""
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    answer = response.json()
    if path == RESPONSES:
        return _of_response(answer)
    (choice,) = plain_choices(answer).values()
    return _of_choice(choice, answer["usage"])


def streamed(http: httpx.Client, path: str, body: dict[str, Any]) -> Outcome:
    """Ask for a stream and join what came in its pieces."""
    if path != RESPONSES:
        chunks = chunks_of(http, path, {**body, "stream_options": {"include_usage": True}})
        (choice,) = choices_of(chunks).values()
        return _of_choice(choice, chunks[-1]["usage"])
    events = events_of(http, body)
    text = "".join(event["delta"] for event in events if event["type"].endswith("output_text.delta"))
    entries = [
        entry
        for event in events
        if event["type"].endswith("output_text.delta")
        for entry in event["logprobs"]
    ]
    outcome = _of_response(events[-1]["response"])
    assert (text, tuple(entries)) == (outcome.text, outcome.entries)
    return outcome


def _of_choice(choice: dict[str, Any], usage: dict[str, int]) -> Outcome:
    return Outcome(
        choice["text"],
        choice["finish_reason"],
        usage["prompt_tokens"],
        usage["completion_tokens"],
        tuple(choice["logprobs"]),
    )


def _of_response(answer: dict[str, Any]) -> Outcome:
    parts = [part for item in answer["output"] if item["type"] == "message" for part in item["content"]]
    usage = answer["usage"]
    return Outcome(
        "".join(part["text"] for part in parts),
        {"completed": "stop", "incomplete": "length"}[answer["status"]],
        usage["input_tokens"],
        usage["output_tokens"],
        tuple(entry for part in parts for entry in part["logprobs"]),
    )
