"""Where text begins and ends, on every route."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.api.support import END, Running, Script, running_server
from tests.field_reports.serving import (
    CHAT,
    COMPLETIONS,
    MODEL_ID,
    RESPONSES,
    Served,
    force,
    force_response,
    question,
    streamed,
    whole,
)

ROUTES = [CHAT, COMPLETIONS, RESPONSES]
EMOJI_TEXT = "né 東京 👩‍🚀 щёки"


@dataclass(frozen=True)
class Stub:
    """A server whose model writes given bytes, one a token, and ends."""

    script: Script
    running: Running
    http: httpx.Client

    def writes(self, tokens: bytes) -> None:
        self.script.tokens = [*tokens, END]
        self.running.runner.samplers.clear()


@pytest.fixture(scope="module")
def stub() -> Iterator[Stub]:
    script = Script("")
    with (
        running_server(script.runner(), model_id=MODEL_ID, default_max_tokens=200) as running,
        running.client() as client,
    ):
        yield Stub(script, running, client)


def forced(path: str, text: str) -> dict[str, Any]:
    return force_response(text) if path == RESPONSES else force(text)


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
@pytest.mark.parametrize(
    ("stops", "end"),
    [(["green blue"], "green blue"), (["n b"], "n b"), (["green blue", "en"], "en")],
    ids=str,
)
def test_a_stop_string_ends_the_answer_at_its_token(
    served: Served, path: str, stops: list[str], end: str
) -> None:
    """FR-01, with a grammar and a real tokenizer."""
    body = {**question(path, "go"), **forced(path, "red green blue black")}
    ids = served.http.post(path, json={**body, "return_token_ids": True}).json()
    tokens = (ids if path == RESPONSES else ids["choices"][0])["token_ids"]
    pieces = [served.model.tokenizer.token_bytes(token) for token in tokens]
    text = b"".join(pieces).decode()
    before = text[: text.index(end)]
    needed = next(n for n in range(len(pieces)) if end in b"".join(pieces[:n]).decode())
    assert before.endswith('"red gre' if end == "en" else '"red ' if end == "green blue" else '"red gree')
    outcome = whole(served.http, path, {**body, "stop": stops})
    assert (outcome.text, outcome.reason, outcome.completion_tokens) == (before, "stop", needed)
    assert streamed(served.http, path, {**body, "stop": stops}) == outcome


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
@pytest.mark.parametrize(("stop", "kept"), [('"\n}', '"yes?'), ('"\n}and more', '"yes?"\n}')])
def test_text_before_a_stop_string_and_held_text_arrive(
    served: Served, path: str, stop: str, kept: str
) -> None:
    """FR-02; this model writes a line break before the brace."""
    body = {**question(path, "go"), **forced(path, "yes?"), "stop": [stop]}
    outcome = whole(served.http, path, body)
    assert outcome.text.endswith(kept)
    assert streamed(served.http, path, body) == outcome


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("logprobs", [None, 0, 3])
def test_a_character_of_several_tokens_is_never_broken(stub: Stub, path: str, logprobs: int | None) -> None:
    """FR-03."""
    stub.writes(EMOJI_TEXT.encode())
    body = question(path, "go", logprobs=logprobs, limit=96)
    outcome = whole(stub.http, path, body)
    assert streamed(stub.http, path, body) == outcome
    assert outcome.text == EMOJI_TEXT
    for stream in (False, True):
        raw = stub.http.post(path, json={**body, "stream": stream}).text
        assert "\ufffd" not in raw
        assert "ufffd" not in raw
    assert len(outcome.entries) == (0 if logprobs is None else len(EMOJI_TEXT.encode()))
    if path != COMPLETIONS:
        spelt = [byte for entry in outcome.entries for byte in entry["bytes"]]
        assert bytes(spelt) == (b"" if logprobs is None else EMOJI_TEXT.encode())


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_a_forced_text_of_long_characters_is_whole(served: Served, path: str) -> None:
    """FR-03, with a grammar and a real tokenizer."""
    body = {**question(path, "go", logprobs=1, limit=96), **forced(path, EMOJI_TEXT)}
    outcome = whole(served.http, path, body)
    assert streamed(served.http, path, body) == outcome
    assert (outcome.reason, "\ufffd" in outcome.text) == ("stop", False)
    assert f'"{EMOJI_TEXT}"' in outcome.text
    assert b"".join(bytes(entry["bytes"]) for entry in outcome.entries).decode() == outcome.text


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("limit", [1, 3])
def test_a_lone_lead_byte_is_one_mark_each(served: Served, path: str, limit: int) -> None:
    """FR-04."""
    tokenizer = served.model.tokenizer
    (lead,) = (token for token in range(256) if tokenizer.token_bytes(token) == b"\xf0")
    body = {**question(path, "go", logprobs=1, limit=limit), "logit_bias": {str(lead): 100}}
    outcome = whole(served.http, path, body)
    assert streamed(served.http, path, body) == outcome
    assert (outcome.text, outcome.reason, outcome.completion_tokens) == ("\ufffd" * limit, "length", limit)
    assert len(outcome.entries) == limit


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("tokens", "text"),
    [(b"\xe2\x80A", "\ufffdA"), (b"\x80b", "\ufffdb"), (b"a\xf0\x9f\xa6", "a\ufffd"), (b"\xf0", "\ufffd")],
)
def test_ill_formed_bytes_spare_their_neighbours(stub: Stub, path: str, tokens: bytes, text: str) -> None:
    """FR-04."""
    stub.writes(tokens)
    for logprobs in (None, 1):
        body = question(path, "go", logprobs=logprobs)
        outcome = whole(stub.http, path, body)
        assert streamed(stub.http, path, body) == outcome
        assert (outcome.text, outcome.reason) == (text, "stop")


@pytest.mark.parametrize("path", ROUTES)
def test_a_refused_stream_never_was_one(served: Served, path: str) -> None:
    """FR-05."""
    answer = served.http.post(path, json={**question(path, "hi"), "stream": True, "n": 0})
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/json")
    assert answer.json()["error"]["param"] == "n"
