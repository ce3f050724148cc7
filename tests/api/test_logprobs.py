"""Log-probabilities: which tokens are shown, the forms of the routes, streamed and whole."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrite.api.logprobs import (
    ShownToken,
    ShownTokens,
    chat_logprobs,
    completion_logprobs,
    offsets_in,
    spelled,
)
from ferrite.engine.events import Delta, Finished, Timings, TokenLogprob, Usage
from ferrite.engine.text import TextStream, compile_stops
from tests.api.reading import choices_of, chunks_of, entries, plain_choices
from tests.api.support import MODEL_ID, Running, Script, chat_body, completion_body, running_server
from tests.engine.fakes import ByteDetokenizer, PieceDetokenizer

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TEXT = "né 東京 👩‍🚀 щёки"
TIMINGS = Timings(0.0, 0.0, 0.0)


def entry(token: int) -> TokenLogprob:
    return TokenLogprob(token, -1.0, ())


def generate(pieces: list[str], tokens: list[int], stops: tuple[str, ...]) -> tuple[str, list[ShownToken]]:
    """Do what the engine does with sampled tokens, and return the text and the tokens that are shown."""
    stream = TextStream(PieceDetokenizer(pieces), compile_stops(stops))
    shown = ShownTokens(PieceDetokenizer(pieces))
    sent, found, unreported = "", [], []
    for token in tokens:
        unreported.append(token)
        text = stream.push(token)
        if text:
            sent += text
            found += shown.add(Delta(text, tuple(unreported), tuple(map(entry, unreported))))
            unreported = []
        if stream.stop is not None:
            break
    rest = "" if stream.stop is not None else stream.finish()
    if rest or unreported:
        found += shown.add(Delta(rest, tuple(unreported), tuple(map(entry, unreported))))
    found += shown.add(Finished("stop", Usage(1, len(tokens)), TIMINGS, tuple(tokens), stream.stop))
    return sent + rest, found


@given(
    st.lists(st.text("abc", max_size=3), min_size=1, max_size=6),
    st.lists(st.integers(0, 5), max_size=12),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=2),
)
def test_the_shown_tokens_are_those_of_the_text(
    pieces: list[str], tokens: list[int], stops: list[str]
) -> None:
    tokens = [token % len(pieces) for token in tokens]
    text, found = generate(pieces, tokens, tuple(stops))
    spelt = [pieces[shown.logprob.token] for shown in found]
    # A beginning of what was sampled, each where it stands, and the last one is needed.
    assert [shown.logprob.token for shown in found] == tokens[: len(found)]
    assert [shown.start for shown in found] == [len("".join(spelt[:i])) for i in range(len(found))]
    assert "".join(spelt).startswith(text)
    assert not spelt or spelt[-1] == "" or len("".join(spelt[:-1])) < len(text)
    if not stops:
        assert len(found) == len(tokens)


def test_a_character_of_several_tokens_shows_all_of_them_at_once() -> None:
    shown = ShownTokens(ByteDetokenizer())
    crab = tuple("a🦀".encode())
    assert [each.start for each in shown.add(Delta("a", crab[:1], (entry(crab[0]),)))] == [0]
    found = shown.add(Delta("🦀", crab[1:], tuple(map(entry, crab[1:]))))
    assert [(each.logprob.token, each.start) for each in found] == [(byte, 1) for byte in crab[1:]]


def test_an_unfinished_character_is_shown_with_its_mark() -> None:
    shown = ShownTokens(ByteDetokenizer())
    assert len(shown.add(Delta("\ufffd", (0xF0, 0x9F), (entry(0xF0), entry(0x9F))))) == 2


def test_the_parts_of_a_character_are_told_apart() -> None:
    tokens = [ShownToken(TokenLogprob(0xF0, -0.5, ((0xF0, -0.5), (0x61, -2.0))), 3)]
    token_bytes = lambda token: bytes([token])  # noqa: E731
    (chat,) = chat_logprobs(tokens, token_bytes).content
    assert (chat.token, chat.bytes) == ("\\xf0", [0xF0])
    assert [(top.token, top.bytes) for top in chat.top_logprobs] == [("\\xf0", [0xF0]), ("a", [0x61])]
    legacy = completion_logprobs(tokens, token_bytes, offset=4)
    assert (legacy.tokens, legacy.text_offset) == (["bytes:\\xf0"], [7])
    assert legacy.top_logprobs == [{"bytes:\\xf0": -0.5, "a": -2.0}]


def test_the_likeliest_of_equal_texts_is_kept() -> None:
    tokens = [ShownToken(TokenLogprob(9, -3.0, ((1, -0.5), (2, -0.75))), 0)]
    legacy = completion_logprobs(tokens, lambda token: b"x" if token < 9 else b"y")
    assert legacy.top_logprobs == [{"x": -0.5, "y": -3.0}]


@given(st.text(max_size=12), st.sampled_from(["", " ", "<s>", "<s> "]))
def test_offsets_are_those_of_the_written_text(text: str, in_front: str) -> None:
    pieces = [in_front.encode(), *(bytes([byte]) for byte in text.encode())]
    offsets = offsets_in(text, range(len(pieces)), pieces.__getitem__)
    at = [index for index, character in enumerate(text) for _ in character.encode()]
    assert offsets == [0, *at]
    whole, _ = spelled(range(len(pieces)), pieces.__getitem__)
    assert whole == in_front + text


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running_server(Script(TEXT).runner(), default_max_tokens=200) as running:
        yield running


@pytest.fixture(scope="module")
def http(server: Running) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


ASKED = [
    (CHAT, chat_body(logprobs=True, top_logprobs=2)),
    (CHAT, chat_body(logprobs=True)),
    (COMPLETIONS, completion_body(logprobs=2)),
    (COMPLETIONS, completion_body(logprobs=0)),
]


@pytest.mark.parametrize("stops", [[], ["京 👩"], ["\u200d🚀 щ", "и"]], ids=["none", "one", "two"])
@pytest.mark.parametrize(("path", "body"), ASKED)
def test_streamed_entries_are_the_plain_ones(
    http: httpx.Client, path: str, body: dict[str, Any], stops: list[str]
) -> None:
    body = {**body, "stop": stops}
    whole = plain_choices(http.post(path, json=body).json())
    assert choices_of(chunks_of(http, path, body)) == whole
    text, found = whole[0]["text"], whole[0]["logprobs"]
    assert text == (TEXT if not stops else TEXT[: min(TEXT.index(stop) for stop in stops)])
    assert len(found) == len(text.encode())


@pytest.mark.parametrize(("path", "body"), ASKED)
@pytest.mark.parametrize("stream", [False, True])
def test_no_character_is_broken(http: httpx.Client, path: str, body: dict[str, Any], *, stream: bool) -> None:
    answer = http.post(path, json={**body, "stream": stream})
    assert "\ufffd" not in answer.text
    assert "\\ufffd" not in answer.text


def test_the_form_of_a_chat(http: httpx.Client) -> None:
    (choice,) = http.post(CHAT, json=chat_body(logprobs=True, top_logprobs=2)).json()["choices"]
    assert set(choice["logprobs"]) == {"content", "refusal"}
    content = choice["logprobs"]["content"]
    assert bytes(byte for each in content for byte in each["bytes"]).decode() == TEXT
    for each in content:
        assert set(each) == {"token", "logprob", "bytes", "top_logprobs"}
        assert len(each["top_logprobs"]) == 2
        assert set(each["top_logprobs"][0]) == {"token", "logprob", "bytes"}
    (plain,) = http.post(CHAT, json=chat_body(logprobs=True)).json()["choices"]
    assert [{**each, "top_logprobs": []} for each in content] == plain["logprobs"]["content"]
    (without,) = http.post(CHAT, json=chat_body()).json()["choices"]
    assert without["logprobs"] is None
    assert without["message"] == choice["message"]


def test_the_form_of_a_text_completion(http: httpx.Client) -> None:
    (choice,) = http.post(COMPLETIONS, json=completion_body(logprobs=2)).json()["choices"]
    assert set(choice["logprobs"]) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    for token, logprob, top, offset in entries(choice["logprobs"]):
        assert top[token] == logprob
        assert len(top) == 3
        shown = token if not token.startswith("bytes:") else choice["text"][offset]
        assert choice["text"][offset:].startswith(shown)
    (chosen,) = http.post(COMPLETIONS, json=completion_body(logprobs=0)).json()["choices"]
    assert all(list(top) == [token] for token, _, top, _ in entries(chosen["logprobs"]))
    assert http.post(COMPLETIONS, json=completion_body()).json()["choices"][0]["logprobs"] is None


def test_chunks_carry_the_entries_of_their_text(http: httpx.Client) -> None:
    for path, body in ASKED:
        chunks = chunks_of(http, path, body)
        assert [len(entries(chunk["choices"][0]["logprobs"])) for chunk in chunks if chunk["choices"]] == [
            *([0] if path == CHAT else []),
            *(len(character.encode()) for character in TEXT),
            0,
        ]


def test_top_logprobs_need_logprobs(http: httpx.Client) -> None:
    for fields in ({"top_logprobs": 2}, {"top_logprobs": 2, "logprobs": False}):
        answer = http.post(CHAT, json=chat_body(**fields))
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "top_logprobs")
    assert http.post(CHAT, json=chat_body(top_logprobs=0)).status_code == 200


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"logprobs": 2}, "logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        (COMPLETIONS, {"logprobs": True}, "logprobs"),
        (COMPLETIONS, {"logprobs": 21}, "logprobs"),
        (COMPLETIONS, {"logprobs": -1}, "logprobs"),
        (COMPLETIONS, {"top_logprobs": 2}, "top_logprobs"),
    ],
)
def test_wrong_counts_are_refused(http: httpx.Client, path: str, fields: dict[str, Any], param: str) -> None:
    body = chat_body(**fields) if path == CHAT else completion_body(**fields)
    answer = http.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(("path", "body"), ASKED)
def test_they_go_with_every_extra(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    body = {**body, "return_token_ids": True}
    options = {"include_usage": True, "include_obfuscation": True}
    chunks = chunks_of(http, path, {**body, "stream_options": options})
    whole = http.post(path, json=body).json()
    assert choices_of(chunks) == plain_choices(whole)
    assert chunks[-1]["usage"] == whole["usage"]
    assert bytes(whole["choices"][0]["token_ids"]).decode() == TEXT
    assert any(chunk.get("obfuscation") for chunk in chunks)


def test_an_unfinished_character_has_entries_too() -> None:
    """The budget ends inside the crab."""
    with running_server(Script("a🦀").runner()) as running, running.client() as client:
        for path, body in ASKED:
            body = {**body, "max_tokens": 3}
            whole = plain_choices(client.post(path, json=body).json())
            assert choices_of(chunks_of(client, path, body)) == whole
            assert (whole[0]["text"], len(whole[0]["logprobs"])) == ("a\ufffd", 3)
            assert whole[0]["finish_reason"] == "length"


def test_the_official_client_reads_them(server: Running) -> None:
    with server.openai() as client:
        messages: list[Any] = [{"role": "user", "content": "Hi"}]
        chat = client.chat.completions.create(
            model=MODEL_ID, messages=messages, logprobs=True, top_logprobs=1
        ).choices[0]
        assert chat.logprobs is not None
        assert chat.logprobs.content is not None
        assert chat.logprobs.content[0].token == "n"
        assert len(chat.logprobs.content[0].top_logprobs) == 1
        legacy = client.completions.create(model=MODEL_ID, prompt="Hi", logprobs=1).choices[0].logprobs
        assert legacy is not None
        assert legacy.tokens is not None
        assert legacy.tokens[:2] == ["n", "bytes:\\xc3"]
        assert json.dumps(legacy.text_offset).startswith("[0, 1, 1, 2")
