"""Where text begins and ends on the routes: stop strings, characters of several tokens, ill-formed bytes."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.api.reading import choices_of, chunks_of, plain_choices
from tests.api.support import END, Running, Script, chat_body, completion_body, running_server

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def forced(text: str) -> dict[str, Any]:
    """Return the response format that leaves nothing but ``{"v":text}``."""
    schema = {
        "type": "object",
        "properties": {"v": {"enum": [text]}},
        "required": ["v"],
        "additionalProperties": False,
    }
    return {
        "type": "json_schema",
        "json_schema": {"name": "f", "strict": True, "schema": schema},
    }


def written(text: str) -> str:
    return json.dumps({"v": text}, ensure_ascii=False, separators=(",", ":"))


@contextmanager
def scripted(tokens: bytes) -> Iterator[httpx.Client]:
    """Serve a model that writes ``tokens``, one byte each, and ends."""
    script = Script("")
    script.tokens = [*tokens, END]
    with running_server(script.runner(), default_max_tokens=200) as running, running.client() as client:
        yield client


def bodies(text: str, **fields: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the requests that all lead to ``{"v":text}``."""
    yield CHAT, chat_body(response_format=forced(text), **fields)
    yield CHAT, chat_body(**fields)
    yield COMPLETIONS, completion_body(**fields)


def answered(client: httpx.Client, path: str, body: dict[str, Any]) -> tuple[str, str, int]:
    """Return text, finish reason and completion tokens, which must be the same streamed and not."""
    whole = client.post(path, json=body).json()
    chunks = chunks_of(client, path, {**body, "stream_options": {"include_usage": True}})
    plain = plain_choices(whole)
    assert choices_of(chunks) == plain
    assert chunks[-1]["usage"] == whole["usage"]
    return plain[0]["text"], plain[0]["finish_reason"], whole["usage"]["completion_tokens"]


@pytest.mark.parametrize(
    ("stops", "end"),
    [
        (["green blue"], "green blue"),
        (["n b"], "n b"),
        # The one that is completed first wins.
        (["green blue", "en"], "en"),
        (["never", "black"], "black"),
    ],
    ids=str,
)
def test_a_stop_string_over_several_tokens_never_shows(stops: list[str], end: str) -> None:
    """Field report 1."""
    text = written("red green blue black")
    at = text.index(end)
    with scripted(text.encode()) as client:
        for path, body in bodies("red green blue black", stop=stops, max_tokens=64):
            assert answered(client, path, body) == (text[:at], "stop", at + len(end))
            for chunk in chunks_of(client, path, body):
                (choice,) = chunk["choices"]
                piece = choice["text"] if "text" in choice else choice["delta"].get("content", "")
                assert piece in text[:at]


@pytest.mark.parametrize(("stop", "shown"), [('"}', '{"v":"yes?'), ('"}and more', '{"v":"yes?"}')])
def test_text_that_is_held_back_is_not_lost(stop: str, shown: str) -> None:
    """Field report 2."""
    with scripted(written("yes?").encode()) as client:
        for path, body in bodies("yes?", stop=[stop]):
            text, reason, _ = answered(client, path, body)
            assert (text, reason) == (shown, "stop")


@pytest.mark.parametrize("logprobs", [False, True])
def test_a_character_of_several_tokens_is_whole(*, logprobs: bool) -> None:
    """Field report 3; the bytes of log-probabilities are those of the text."""
    text = "né 東京 👩‍🚀 щёки"
    with scripted(written(text).encode()) as client:
        for path, body in bodies(text, max_tokens=96):
            if logprobs:
                body = {**body, "logprobs": True if path == CHAT else 0}
            assert answered(client, path, body)[0] == written(text)
            for stream in (False, True):
                raw = client.post(path, json={**body, "stream": stream}).text
                assert "\ufffd" not in raw
                assert "ufffd" not in raw
            if logprobs and path == CHAT:
                (choice,) = client.post(path, json=body).json()["choices"]
                spelt = [byte for entry in choice["logprobs"]["content"] for byte in entry["bytes"]]
                assert bytes(spelt).decode() == written(text)


@pytest.mark.parametrize(
    ("tokens", "limit", "text"),
    [
        (b"\xe2\x80A", 16, "\ufffdA"),
        (b"\xf0" * 3, 1, "\ufffd"),
        (b"\xf0" * 3, 3, "\ufffd" * 3),
        (b"a\xf0\x9f\xa6", 4, "a\ufffd"),
        (b"\x80b", 16, "\ufffdb"),
    ],
)
@pytest.mark.parametrize("extras", [{}, {"logprobs": 1}, {"return_token_ids": True}], ids=str)
def test_ill_formed_bytes_are_marks(tokens: bytes, limit: int, text: str, extras: dict[str, Any]) -> None:
    """Field report 4."""
    with scripted(tokens) as client:
        for path, body in [(CHAT, chat_body()), (COMPLETIONS, completion_body())]:
            fields = {**extras, "logprobs": True} if path == CHAT and "logprobs" in extras else extras
            found, _, n_tokens = answered(client, path, {**body, **fields, "max_tokens": limit})
            assert found == text
            assert n_tokens == min(limit, len(tokens) + 1)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_small_limits_hold_inside_a_character(limit: int) -> None:
    """Field report 37."""
    with scripted("🦀 and more".encode()) as client:
        for path, body in [(CHAT, chat_body()), (COMPLETIONS, completion_body())]:
            assert answered(client, path, {**body, "max_tokens": limit}) == ("\ufffd", "length", limit)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running_server(Script("").runner(), default_max_tokens=200) as running:
        yield running


@given(
    st.text("ab🦀é", max_size=10),
    st.lists(st.text("ab🦀é", min_size=1, max_size=3), max_size=2),
    st.integers(1, 30),
    st.booleans(),
)
@settings(max_examples=40)
def test_streamed_and_plain_answers_are_equal(
    server: Running, text: str, stops: list[str], limit: int, ids: bool
) -> None:
    tokens = [*text.encode(), END]
    server.runner.sample = lambda history: tokens[min(len(history) - 2, len(tokens) - 1)]
    fields = {"stop": stops, "max_tokens": limit, "return_token_ids": ids, "logprobs": 1}
    with server.client() as client:
        found, reason, n_tokens = answered(client, COMPLETIONS, completion_body("Hi", **fields))
    cut = text.encode()[:limit].decode(errors="ignore")
    assert n_tokens <= min(limit, len(tokens))
    assert not any(stop in found for stop in stops)
    assert found.removesuffix("\ufffd") in text
    if not stops:
        assert found.removesuffix("\ufffd") == cut
        assert reason == ("length" if limit < len(tokens) else "stop")
