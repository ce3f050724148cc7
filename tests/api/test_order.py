"""In which order a request is checked: the first check that fails is the answer, whatever else is wrong."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from ferrite.api import services
from tests.api.support import Running, batching, chat_body, completion_body, gated_server

KEY = "k"
MAX_BODY = 1000
GENERATION: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", chat_body(), "max_tokens"),
    ("/v1/completions", completion_body(), "max_tokens"),
    ("/v1/responses", {"model": chat_body()["model"], "input": "Hi"}, "max_output_tokens"),
]
COUNTING: list[tuple[str, dict[str, Any], str | None]] = [
    ("/v1/tokenize", chat_body(), "max_tokens"),
    ("/v1/tokenize", completion_body(), None),
    ("/v1/detokenize", {"model": chat_body()["model"], "tokens": [65]}, None),
    ("/v1/chat/completions/render", chat_body(), "max_tokens"),
]


@pytest.fixture(scope="module")
def full() -> Iterator[Running]:
    """A server that can take nothing more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(services, "MAX_COUNTING", 0)
        with gated_server(**batching(1, 0), api_key=KEY, max_body_bytes=MAX_BODY) as (running, gate):
            endless = completion_body(stream=True, max_tokens=400)
            with running.client() as http, http.stream("POST", "/v1/completions", json=endless):
                gate.wait_until_reached()
                yield running
                gate.open()


@pytest.mark.parametrize(("path", "body", "budget"), [*GENERATION, *COUNTING])
def test_what_is_checked_first_is_told_first(
    full: Running, path: str, body: dict[str, Any], budget: str | None
) -> None:
    """Each request has the faults of the ones before and one more, which is checked earlier."""
    model = full.state.model
    good = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}

    def answer(content: bytes, headers: dict[str, str]) -> tuple[int, str | None, str | None]:
        found = httpx.post(full.url + path, content=content, headers=headers, trust_env=False)
        error = found.json()["error"]
        return found.status_code, error["code"], error["param"]

    def written(**faults: Any) -> bytes:
        return json.dumps({**body, **faults}).encode()

    beyond: dict[str, Any] = {} if budget is None else {budget: 1000}
    try:
        assert answer(written(), good) == (429, "rate_limit_exceeded", None)
        full.state.model = None
        assert answer(written(), good) == (503, "not_ready", None)
        if budget is not None:
            assert answer(written(**beyond), good) == (400, None, budget)
        faults = {**beyond, "model": "other"}
        assert answer(written(**faults), good) == (404, "model_not_found", "model")
        faults["num_ctx"] = 1
        assert answer(written(**faults), good) == (400, "unknown_field", "num_ctx")
        broken = written(**faults)[:-1]
        assert answer(broken, good) == (400, "invalid_json", None)
        large = broken + b" " * MAX_BODY
        assert answer(large, good) == (413, "request_too_large", None)
        plain = {**good, "content-type": "text/plain"}
        assert answer(large, plain) == (415, "unsupported_media_type", None)
        assert answer(large, {"content-type": "text/plain"}) == (401, "invalid_api_key", None)
    finally:
        full.state.model = model
