"""``echo``: the prompt in front of its continuation, and how likely its tokens are."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from ferrite.api.completion_reply import CompletionBuilder
from ferrite.api.logprobs import CompletionLogprobs
from tests.api.reading import choices_of, chunks_of, entries, plain_choices
from tests.api.support import (
    END,
    MODEL_ID,
    ByteTokenizer,
    Gate,
    Running,
    Script,
    batching,
    completion_body,
    eventually,
    gated_server,
    receive_until,
    running_server,
    send_raw,
)
from tests.engine.fakes import logprobs_after

PATH = "/v1/completions"
PROMPT, ANSWER = "Größe: ", "drei 🦀"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running_server(Script(ANSWER).runner(), default_max_tokens=64, **batching(4, 4)) as running:
        yield running


@pytest.fixture(scope="module")
def http(server: Running) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def post(client: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = client.post(PATH, json=completion_body(**body))
    assert answer.status_code == 200, answer.text
    whole: dict[str, Any] = answer.json()
    return whole


COMBINATIONS = [
    {},
    {"logprobs": 2},
    {"logprobs": 0},
    {"n": 3, "logprobs": 1},
    {"n": 2},
    {"max_tokens": 0},
    {"max_tokens": 0, "logprobs": 1},
    {"max_tokens": 0, "logprobs": 1, "n": 2},
    {"stop": "i 🦀"},
    {"stop": "i 🦀", "logprobs": 1},
    {"return_token_ids": True, "logprobs": 1},
]


@pytest.mark.parametrize("fields", COMBINATIONS, ids=str)
@pytest.mark.parametrize("prompt", [PROMPT, list(PROMPT.encode())], ids=["text", "ids"])
def test_the_prompt_goes_before_the_text(http: httpx.Client, prompt: Any, fields: dict[str, Any]) -> None:
    body = completion_body(prompt, echo=True, **fields)
    whole = post(http, prompt=prompt, echo=True, **fields)
    plain = post(http, prompt=prompt, **fields)
    assert whole["usage"] == plain["usage"]
    assert [choice["text"] for choice in whole["choices"]] == [
        PROMPT + choice["text"] for choice in plain["choices"]
    ]
    options = {"include_usage": True, "include_obfuscation": True}
    chunks = chunks_of(http, PATH, {**body, "stream_options": options})
    assert choices_of(chunks) == plain_choices(whole)
    assert chunks[-1]["usage"] == whole["usage"]
    for mine, other in zip(whole["choices"], plain["choices"], strict=True):
        assert mine["finish_reason"] == other["finish_reason"]
        assert mine.get("token_ids") == other.get("token_ids")


def test_every_token_of_the_prompt_is_scored(http: httpx.Client) -> None:
    (choice,) = post(http, prompt=PROMPT, echo=True, logprobs=1)["choices"]
    found = entries(choice["logprobs"])
    ids = PROMPT.encode()
    assert len(found) == len((PROMPT + ANSWER).encode())
    assert found[0][1:] == (None, None, 0)
    for index, (token, logprob, top, offset) in enumerate(found[1 : len(ids)], 1):
        score, likeliest = logprobs_after(ids[:index], ids[index], 1)
        assert logprob == score
        assert len(top) == len({ids[index], *(other for other, _ in likeliest)})
        assert top[token] == score
        assert offset == len(ids[:index].decode(errors="ignore"))
    (alone,) = post(http, prompt=PROMPT, logprobs=1)["choices"]
    behind = [(*each[:3], each[3] + len(PROMPT)) for each in entries(alone["logprobs"])]
    assert found[len(ids) :] == behind


def test_a_text_is_scored_without_a_token_of_its_own(server: Running, http: httpx.Client) -> None:
    whole = post(http, prompt=PROMPT, echo=True, logprobs=1, max_tokens=0)
    (choice,) = whole["choices"]
    assert (choice["text"], choice["finish_reason"]) == (PROMPT, "length")
    assert len(choice["logprobs"]["tokens"]) == len(PROMPT.encode())
    assert (whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"]) == (len(PROMPT.encode()), 0)
    row = http.get("/v1/requests").json()["rows"][-1]
    assert (row["ttft_ms"], row["completion_tokens"], row["finish_reason"]) == (None, 0, "length")
    assert row["prefill_ms"] is not None
    # Without scores the engine is not even asked.
    n_steps = len(server.runner.batches)
    assert post(http, prompt=PROMPT, echo=True, max_tokens=0)["choices"][0]["text"] == PROMPT
    assert post(http, prompt=PROMPT, logprobs=1, max_tokens=0)["choices"][0]["text"] == ""
    assert len(server.runner.batches) == n_steps


def test_several_prompts(http: httpx.Client) -> None:
    whole = post(http, prompt=["ab", "cde"], echo=True, logprobs=0, n=2, max_tokens=1)
    assert [choice["text"] for choice in whole["choices"]] == ["abd", "abd", "cded", "cded"]
    assert [choice["logprobs"]["text_offset"] for choice in whole["choices"]] == [
        *[[0, 1, 2]] * 2,
        *[[0, 1, 2, 3]] * 2,
    ]
    assert [choice["logprobs"]["token_logprobs"][0] for choice in whole["choices"]] == [None] * 4
    assert whole["usage"]["prompt_tokens"] == 5


def test_scoring_takes_a_permit_and_can_be_refused() -> None:
    with gated_server(**batching(1, 0)) as (running, gate), running.client() as client:
        with send_raw(running, PATH, completion_body(stream=True)):
            gate.wait_until_reached()
            scoring = completion_body(echo=True, logprobs=1, max_tokens=0)
            assert client.post(PATH, json=scoring).status_code == 429
            assert client.post(PATH, json={**scoring, "logprobs": None}).status_code == 200
        gate.open()
        eventually(lambda: running.engine.active == 0)


class BeginningTokenizer(ByteTokenizer):
    """A beginning token 2 and, like SentencePiece, a space before every text."""

    def encode(self, text: str, *, parse_special: bool, add_bos: bool) -> list[int]:
        return [2, *super().encode(" " + text, parse_special=parse_special, add_bos=add_bos)]

    def token_bytes(self, token: int) -> bytes:
        return b"<begin>" if token == 2 else super().token_bytes(token)


def test_what_the_tokenizer_puts_in_front_is_no_text() -> None:
    with running_server(Script(ANSWER).runner(), default_max_tokens=64) as running:
        assert running.state.model is not None
        running.state.model = replace(running.state.model, tokenizer=BeginningTokenizer())
        with running.client() as client:
            (choice,) = post(client, prompt="ab<end>c", echo=True, logprobs=0, max_tokens=1)["choices"]
            assert choice["text"] == "ab<end>cd"
            logprobs = choice["logprobs"]
            assert logprobs["tokens"] == ["<begin>", " ", "a", "b", "<end>", "c", "d"]
            assert logprobs["text_offset"] == [0, 0, 0, 1, 2, 7, 8]
            ids = [2, 32, 97, END]
            (choice,) = post(client, prompt=ids, echo=True, logprobs=0, max_tokens=1)["choices"]
            assert choice["text"] == "<begin> a<end>d"
            assert choice["logprobs"]["text_offset"] == [0, 7, 8, 9, 14]


def test_the_official_client_reads_an_echo(server: Running) -> None:
    with server.openai() as client:
        choice = client.completions.create(model=MODEL_ID, prompt="ab", echo=True, logprobs=1).choices[0]
        assert choice.text == "ab" + ANSWER
        assert choice.logprobs is not None
        assert choice.logprobs.tokens is not None
        assert choice.logprobs.tokens[:3] == ["a", "b", "d"]


def test_a_suffix_is_refused(http: httpx.Client) -> None:
    answer = http.post(PATH, json=completion_body(suffix="end"))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "suffix")
    for best_of in (2, 3):
        answer = http.post(PATH, json=completion_body(n=2, best_of=best_of))
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "best_of")
    assert len(post(http, n=2, best_of=1)["choices"]) == 2


def test_a_long_answer_is_made_beside_the_loop(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes long to spell must not hold up other answers; it is the same answer."""
    body = completion_body(PROMPT * 4, echo=True, logprobs=5, n=2)
    before = plain_choices(http.post(PATH, json=body).json())
    makers: set[str] = set()

    class Watching(CompletionBuilder):
        def _prompt_logprobs(self, prompt: int) -> CompletionLogprobs:
            makers.add(threading.current_thread().name.rpartition("_")[0])
            return super()._prompt_logprobs(prompt)

    monkeypatch.setattr("ferrite.api.completions.CompletionBuilder", Watching)
    monkeypatch.setattr("ferrite.api.generate.LARGE_ANSWER_ENTRIES", 100)
    assert plain_choices(http.post(PATH, json=body).json()) == before
    assert choices_of(chunks_of(http, PATH, body)) == before
    assert makers == {"ferrite-large-prompt"}


def test_a_stream_sends_the_prompt_as_soon_as_it_is_scored() -> None:
    gate = Gate()
    runner = Script("z", endless=True).runner()
    runner.before_step = gate
    body = completion_body("ab", echo=True, logprobs=0, n=2, max_tokens=50, stream=True)
    with running_server(runner, **batching(2, 0)) as running:
        try:
            with send_raw(running, PATH, body) as client:
                for _ in range(2):
                    gate.pass_one()
                data = receive_until(client, b'"text_offset":[0,1]', 2)
                assert data.count(b'"text":"ab"') == 2
        finally:
            gate.open()
