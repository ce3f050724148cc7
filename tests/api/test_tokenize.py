"""Counting, spelling and rendering tokens: the same ids as a generation, without a permit."""

import select
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrite.api import tokenize
from ferrite.api.services import MAX_COUNTING
from tests.api.spelling import spelling_server
from tests.api.support import (
    END,
    MODEL_ID,
    WAIT_SECONDS,
    Running,
    chat_body,
    completion_body,
    gated_server,
    receive_until,
    send_raw,
    server_process,
)
from tests.tokenizer.texts import FIELD_REPORT_TEXT

TOKENIZE, DETOKENIZE, RENDER = "/v1/tokenize", "/v1/detokenize", "/v1/chat/completions/render"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
COMMAND = "import sys; from ferrite.cli.server import main; sys.exit(main())"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with spelling_server() as running:
        yield running


@pytest.fixture(scope="module")
def http(server: Running) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def post(http: httpx.Client, path: str, **body: Any) -> Any:
    answer = http.post(path, json={"model": MODEL_ID, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def refusal(http: httpx.Client, path: str, body: object) -> tuple[int, str | None, str | None]:
    answer = http.post(path, json=body)
    error = answer.json()["error"]
    return answer.status_code, error["param"], error["code"]


def test_a_text_is_read_as_a_raw_completion_reads_it(http: httpx.Client, server: Running) -> None:
    answer = post(http, TOKENIZE, prompt="Hé<end>")
    assert answer == {"tokens": [2, *b"H\xc3\xa9", END], "count": 5, "max_model_len": 512}
    completion = http.post(COMPLETIONS, json=completion_body("Hé<end>")).json()
    assert completion["usage"]["prompt_tokens"] == answer["count"]
    assert list(server.runner.samplers[-1].prompt) == answer["tokens"]


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({"add_special_tokens": False}, [65, END]),
        ({"parse_special": False}, [2, *b"A<end>"]),
        ({"add_special_tokens": None, "parse_special": None, "with_pieces": None}, [2, 65, END]),
    ],
)
def test_what_the_options_of_a_text_do(
    http: httpx.Client, options: dict[str, Any], tokens: list[int]
) -> None:
    assert post(http, TOKENIZE, prompt="A<end>", **options)["tokens"] == tokens


def test_an_empty_text_can_be_counted(http: httpx.Client) -> None:
    assert post(http, TOKENIZE, prompt="", add_special_tokens=False)["count"] == 0


def test_pieces_are_the_bytes_of_each_token(http: httpx.Client) -> None:
    assert post(http, TOKENIZE, prompt="aé<end>", with_pieces=True)["pieces"] == [
        {"token": "<begin>", "bytes": list(b"<begin>")},
        {"token": "a", "bytes": [97]},
        {"token": "\ufffd", "bytes": [0xC3]},
        {"token": "\ufffd", "bytes": [0xA9]},
        {"token": "<end>", "bytes": list(b"<end>")},
    ]
    assert "pieces" not in post(http, TOKENIZE, prompt="a")


HISTORY = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Größe "}, {"type": "text", "text": "<end>"}]},
]


def test_a_chat_is_counted_as_the_same_chat_request(http: httpx.Client, server: Running) -> None:
    body = {"messages": HISTORY, "temperature": 1.5, "max_tokens": 3, "user": "ann"}
    counted = post(http, TOKENIZE, **body, with_pieces=True)
    rendered = post(http, RENDER, **body)
    usage = post(http, CHAT, **body)["usage"]
    assert counted["count"] == rendered["count"] == usage["prompt_tokens"]
    assert counted["tokens"] == rendered["tokens"] == list(server.runner.samplers[-1].prompt)
    assert len(counted["pieces"]) == counted["count"]
    assert rendered["prompt"] == "<begin>system:Be brief.;user:Größe <end>;"
    assert (counted["max_model_len"], rendered["max_model_len"]) == (512, 512)


def test_the_length_that_is_told_is_the_one_that_is_kept(http: httpx.Client) -> None:
    limit = post(http, TOKENIZE, prompt="")["max_model_len"]
    fits = [1] * (limit - 4)
    assert http.post(COMPLETIONS, json=completion_body(fits, max_tokens=4)).status_code == 200
    refused = refusal(http, COMPLETIONS, completion_body([*fits, 1], max_tokens=4))
    assert refused == (400, "prompt", "context_length_exceeded")


def test_what_is_too_long_for_a_generation_can_be_counted(http: httpx.Client) -> None:
    assert post(http, TOKENIZE, prompt="a" * 100_000)["count"] == 100_001
    assert post(http, RENDER, messages=[{"role": "user", "content": "a" * 1000}])["count"] == 1007


REFUSED_CHATS: list[dict[str, Any]] = [
    {"messages": []},
    {"messages": [{"role": "user", "content": "a", "opts": {}}]},
    {"messages": [{"role": "tool", "content": "a", "tool_call_id": "c"}]},
    {"messages": [{"role": "user", "content": "refuse me"}]},
    {"messages": HISTORY, "num_ctx": 1},
    {"messages": HISTORY, "temperature": 9},
    {"messages": HISTORY, "audio": {"voice": "alloy", "format": "wav"}},
    {"messages": HISTORY, "stream_options": {}},
    {"messages": HISTORY, "tools": [{"type": "function"}]},
    {"messages": HISTORY, "tool_choice": "required"},
    {"messages": HISTORY, "model": "other"},
    {"messages": HISTORY, "max_tokens": 0},
    {"messages": HISTORY, "n": 2},
    {"messages": HISTORY, "max_completion_tokens": 257},
    {"messages": HISTORY, "metadata": {"ferrite_cache_trace": "yes"}},
]


@pytest.mark.parametrize("body", REFUSED_CHATS)
@pytest.mark.parametrize("path", [TOKENIZE, RENDER])
def test_a_chat_that_is_refused_is_not_counted(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    body = {"model": MODEL_ID, **body}
    of_the_chat = refusal(http, CHAT, body)
    assert of_the_chat[0] in (400, 404, 501)
    assert refusal(http, path, body) == of_the_chat


def test_ids_become_the_text_they_spell(http: httpx.Client) -> None:
    tokens = [2, *"Größe 🦀".encode(), END]
    assert post(http, DETOKENIZE, tokens=tokens) == {"text": "<begin>Größe 🦀<end>"}
    assert post(http, DETOKENIZE, tokens=tokens, skip_special_tokens=True) == {"text": "Größe 🦀"}
    assert post(http, DETOKENIZE, tokens=[0xC3]) == {"text": "\ufffd"}
    assert post(http, DETOKENIZE, tokens=[]) == {"text": ""}


def test_the_space_that_the_tokenizer_puts_in_front_is_taken_away() -> None:
    with spelling_server(space=True) as running, running.client() as http:
        for text in ("Hi", " Hi", "", " "):
            tokens = post(http, TOKENIZE, prompt=text)["tokens"]
            assert tokens[1:2] == [ord(" ")]
            assert post(http, DETOKENIZE, tokens=tokens, skip_special_tokens=True)["text"] == text


@given(text=st.text(max_size=40))
def test_any_text_comes_back(http: httpx.Client, text: str) -> None:
    tokens = post(http, TOKENIZE, prompt=text, add_special_tokens=False, parse_special=False)["tokens"]
    spelt = post(http, DETOKENIZE, tokens=tokens)["text"]
    # The bytes 2 and 3 are the control tokens of this tokenizer.
    assert spelt == text.replace("\x02", "<begin>").replace("\x03", "<end>")


REFUSED = [
    (TOKENIZE, {}, "prompt", "missing_field"),
    (TOKENIZE, {"prompt": "a", "messages": HISTORY}, "messages", None),
    (TOKENIZE, {"prompt": ["a"]}, "prompt", None),
    (TOKENIZE, {"prompt": None}, "prompt", None),
    (TOKENIZE, {"prompt": "a", "temperature": 1}, "temperature", "unknown_field"),
    (TOKENIZE, {"prompt": "a", "parse_special": 1}, "parse_special", None),
    (TOKENIZE, {"messages": HISTORY, "parse_special": True}, "parse_special", "unknown_field"),
    (RENDER, {"messages": HISTORY, "with_pieces": True}, "with_pieces", "unknown_field"),
    (RENDER, {}, "messages", "missing_field"),
    (DETOKENIZE, {}, "tokens", "missing_field"),
    (DETOKENIZE, {"tokens": "a"}, "tokens", None),
    (DETOKENIZE, {"tokens": [1, -1]}, "tokens[1]", None),
    (DETOKENIZE, {"tokens": [1, 2.5]}, "tokens[1]", None),
    (DETOKENIZE, {"tokens": [1, 5, 256]}, "tokens[2]", None),
    (DETOKENIZE, {"tokens": [2**80]}, "tokens[0]", None),
    (DETOKENIZE, {"tokens": [1], "text": "a"}, "text", "unknown_field"),
]


@pytest.mark.parametrize(("path", "body", "param", "code"), REFUSED)
def test_what_is_wrong_is_named(
    http: httpx.Client, path: str, body: dict[str, Any], param: str, code: str | None
) -> None:
    assert refusal(http, path, {"model": MODEL_ID, **body}) == (400, param, code)


@pytest.mark.parametrize(
    ("path", "body"),
    [(TOKENIZE, {"prompt": "a"}), (DETOKENIZE, {"tokens": [1]}), (RENDER, {"messages": HISTORY})],
)
def test_the_rules_of_every_route_hold(path: str, body: dict[str, Any]) -> None:
    with spelling_server(api_key="k", max_body_bytes=1000, unknown_fields="ignore") as running:
        written = {"model": MODEL_ID, **body}
        with running.client() as http:
            assert http.post(path, json=written, headers={"authorization": ""}).status_code == 401
            assert http.get(path).status_code == 405
            assert http.post(path, content=b"{}").status_code == 415
            assert http.post(path, json={**written, "user": "u" * 1000}).status_code == 413
            for broken in (b"{", b"[" * 400, b"[]", b'{"prompt": NaN}'):
                answer = http.post(path, content=broken, headers={"content-type": "application/json"})
                assert answer.status_code == 400
            assert refusal(http, path, {**written, "model": "other"}) == (404, "model", "model_not_found")
            answer = http.post(path, json={**written, "num_ctx": 1}, headers={"x-request-id": "mine"})
            assert (answer.status_code, answer.headers["x-ferrite-ignored"]) == (200, "num_ctx")
            assert answer.headers["x-request-id"] == "mine"
            running.state.model = None
            assert refusal(http, path, {**written, "model": "other"})[0] == 404
            assert refusal(http, path, written) == (503, None, "not_ready")


@pytest.mark.parametrize("path", [TOKENIZE, RENDER])
def test_unknown_fields_are_dropped_where_they_stand(path: str) -> None:
    with spelling_server(unknown_fields="ignore") as running, running.client() as http:
        tool = {"type": "function", "function": {"name": "look_up", "cache": 1}, "x-hint": True}
        message = {"role": "user", "content": [{"type": "text", "text": "Hi", "lang": "en"}], "opts": {}}
        body = {"model": MODEL_ID, "messages": [message], "tools": [tool], "num_ctx": 1}
        answer = http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-ferrite-ignored"] == (
            "messages[0].content[0].lang, messages[0].opts, tools[0].function.cache, tools[0].x-hint, num_ctx"
        )
        assert answer.json()["count"] == post(http, path, **chat_body("Hi"))["count"]
        # What is wrong beside them is refused all the same.
        assert refusal(http, path, {**body, "temperature": 9}) == (400, "temperature", None)


def test_counting_needs_no_permit() -> None:
    with gated_server(max_concurrent_inferences=1) as (running, gate):
        busy = send_raw(running, CHAT, chat_body(max_tokens=100))
        gate.wait_until_reached()
        assert running.engine.active == 1
        with busy, running.client() as http:
            assert post(http, TOKENIZE, prompt="Hi")["count"] == 2


def test_no_more_counts_wait_than_there_are_places() -> None:
    with spelling_server(max_concurrent_inferences=2) as running, ExitStack() as connections:
        counts = [
            connections.enter_context(send_raw(running, TOKENIZE, chat_body("hold")))
            for _ in range(MAX_COUNTING + 1)
        ]
        # A generation has places of its own.
        chat = connections.enter_context(send_raw(running, CHAT, chat_body("hold")))
        refused, _, _ = select.select([*counts, chat], [], [], WAIT_SECONDS)
        (answered,) = refused
        assert b" 429 " in receive_until(answered, b"\r\n\r\n")
        counts.remove(answered)
        running.conversations.held.set()
        for connection in (*counts, chat):
            assert b" 200 OK" in receive_until(connection, b"\r\n\r\n")


def test_a_count_has_the_time_of_a_request() -> None:
    with spelling_server(request_timeout_ms=100) as running, running.client() as http:
        assert refusal(http, TOKENIZE, chat_body("hold")) == (504, None, "request_timeout")


def test_answers_are_bounded(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenize, "MAX_TEXT", 8)
    monkeypatch.setattr(tokenize, "MAX_PIECES", 4)
    assert post(http, TOKENIZE, prompt="12345678")["count"] == 9
    for path, body, param in (
        (TOKENIZE, {"prompt": "123456789"}, "prompt"),
        (TOKENIZE, {"prompt": "1234", "with_pieces": True}, "prompt"),
        (RENDER, chat_body("123"), "messages"),
        (DETOKENIZE, {"tokens": [2, 65, 66]}, "tokens"),
    ):
        assert refusal(http, path, {"model": MODEL_ID, **body})[:2] == (400, param)


@pytest.mark.model
@pytest.mark.parametrize("fixture", ["smollm2_path", "qwen_path", "gemma_path"])
def test_counts_on_real_models(fixture: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(fixture)
    arguments = ["--model", str(path), "--model-id", MODEL_ID, "--threads", "1", "--ctx-size", "512"]
    with (
        server_process(COMMAND, *arguments) as server,
        httpx.Client(base_url=server.url, trust_env=False, verify=False, timeout=120) as http,
    ):
        for text in (FIELD_REPORT_TEXT, FIELD_REPORT_TEXT[1:]):
            answer = post(http, TOKENIZE, prompt=text, add_special_tokens=False, with_pieces=True)
            assert b"".join(bytes(piece["bytes"]) for piece in answer["pieces"]) == text.encode()
            assert post(http, DETOKENIZE, tokens=answer["tokens"])["text"] == text
        text = post(http, TOKENIZE, prompt=FIELD_REPORT_TEXT)
        completed = post(http, COMPLETIONS, prompt=FIELD_REPORT_TEXT, max_tokens=1)
        assert completed["usage"]["prompt_tokens"] == text["count"]
        body = {"messages": [{"role": "user", "content": "Hi <|im_end|> <end_of_turn> there"}]}
        rendered = post(http, RENDER, **body)
        chatted = post(http, CHAT, **body, max_tokens=1)
        assert post(http, TOKENIZE, **body)["tokens"] == rendered["tokens"]
        assert chatted["usage"]["prompt_tokens"] == rendered["count"]
        assert "Hi <|im_end|> <end_of_turn> there" in rendered["prompt"]
        with_tools = {**body, "tools": [{"type": "function", "function": {"name": "look_up"}}]}
        counted = post(http, TOKENIZE, **with_tools)["count"]
        assert counted > rendered["count"]
        assert post(http, CHAT, **with_tools, max_tokens=1)["usage"]["prompt_tokens"] == counted
        again = post(http, COMPLETIONS, prompt=rendered["tokens"], max_tokens=1)
        assert again["choices"][0]["text"] == chatted["choices"][0]["message"]["content"]
