"""What clients count on: limits told and kept, routes that come later, log-probabilities on every route."""

from typing import Any

import pytest

from tests.api.reading import chunks_of, entries
from tests.api.scripted import Scripted, scripted_server
from tests.api.support import END, MODEL_ID, chat_body, gated_server, send_raw
from tests.field_reports.serving import (
    CHAT,
    COMPLETIONS,
    RENDER,
    RESPONSES,
    TOKENIZE,
    Served,
    question,
    streamed,
    user,
    whole,
)

LATER: dict[str, dict[str, Any]] = {
    "/v1/messages": {"max_tokens": 8, "messages": user("Hi")},
    "/v1/messages/count_tokens": {"messages": user("Hi")},
    "/v1/embeddings": {"input": ["alpha", "beta"]},
}


@pytest.mark.parametrize("path", LATER)
@pytest.mark.parametrize("extra", [{}, {"stream": True}, {"encoding_format": "base64"}], ids=str)
def test_a_route_that_comes_later_says_so_by_name(served: Served, path: str, extra: dict[str, Any]) -> None:
    """FR-54, FR-55, FR-58 and FR-59: 501 as JSON, never a 404, never an empty stream."""
    answer = served.send(path, **LATER[path], **extra)
    assert (answer.status_code, answer.headers["content-type"]) == (501, "application/json")
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("not_implemented_error", "not_implemented")
    assert path in error["message"]
    assert served.http.get(path).status_code == 405


def test_the_newer_limit_is_honoured(served: Served) -> None:
    """FR-56."""
    for limits in (
        {"max_completion_tokens": 3},
        {"max_completion_tokens": 3, "max_tokens": 32},
        {"max_completion_tokens": 3, "max_tokens": 3},
        {"max_completion_tokens": 3, "max_tokens": 2},
        {"max_completion_tokens": None, "max_tokens": 3},
    ):
        answer = served.chat("Count up", **limits)
        assert answer["usage"]["completion_tokens"] == 3
        assert answer["choices"][0]["finish_reason"] == "length"


def test_answers_to_one_prompt(served: Served) -> None:
    """FR-57."""
    body = {"messages": user("Name a colour."), "n": 3, "temperature": 1, "seed": 1, "max_tokens": 16}
    first = served.answer(CHAT, **body)
    assert [choice["index"] for choice in first["choices"]] == [0, 1, 2]
    assert len({choice["message"]["content"] for choice in first["choices"]}) == 3
    assert served.answer(CHAT, **body)["choices"] == first["choices"]
    alone = [served.answer(CHAT, **{**body, "n": 1, "seed": 1 + index}) for index in range(3)]
    assert first["usage"]["prompt_tokens"] == alone[0]["usage"]["prompt_tokens"]
    assert first["usage"]["completion_tokens"] == sum(one["usage"]["completion_tokens"] for one in alone)
    fields = {**body, "model": "ferrite-local", "stream_options": {"include_usage": True}}
    chunks = chunks_of(served.http, CHAT, fields)
    assert [chunk["choices"] == [] for chunk in chunks].count(True) == 1
    assert chunks[-1]["usage"] == first["usage"]
    order = [chunk["choices"][0]["index"] for chunk in chunks[:-1]]
    assert order != sorted(order)
    texts = [
        "".join(
            choice["delta"].get("content") or ""
            for chunk in chunks
            for choice in chunk["choices"]
            if choice["index"] == index
        )
        for index in range(3)
    ]
    assert texts == [choice["message"]["content"] for choice in first["choices"]]
    greedy = served.answer(CHAT, **{**body, "temperature": 0})["choices"]
    assert len({choice["message"]["content"] for choice in greedy}) == 1
    two = served.answer(COMPLETIONS, prompt=["ab", "cd"], n=2, max_tokens=4, temperature=1, seed=1)
    assert [choice["index"] for choice in two["choices"]] == [0, 1, 2, 3]
    second = served.answer(COMPLETIONS, prompt="cd", n=2, max_tokens=4, temperature=1, seed=1)["choices"]
    assert [choice["text"] for choice in two["choices"][2:]] == [choice["text"] for choice in second]
    error = served.refusal(CHAT, messages=user("Hi"), n=5)
    assert error["param"] == "n"
    assert "--max-batch-streams" in error["message"]


def test_limits_and_counts_are_told_before_sending(served: Served) -> None:
    """FR-59."""
    told = served.get("/v1/models/ferrite-local")
    limit = told["ferrite"]["context_length"]
    assert limit == served.answer(TOKENIZE, prompt="x")["max_model_len"] == 4096
    assert (
        served.answer(COMPLETIONS, prompt=[65] * (limit - 1), max_tokens=1)["usage"]["total_tokens"] == limit
    )
    error = served.refusal(COMPLETIONS, prompt=[65] * limit, max_tokens=1)
    assert error["code"] == "context_length_exceeded"
    tools = [{"type": "function", "function": {"name": "look_up", "description": "Looks it up: é."}}]
    for fields in ({}, {"tools": tools}, {"tools": tools, "tool_choice": "none"}):
        body = {"messages": [{"role": "system", "content": "Be brief."}, *user("Größe? 日本")], **fields}
        counted = served.answer(TOKENIZE, **body)
        usage = served.answer(CHAT, **body, max_tokens=1)["usage"]
        assert counted["count"] == len(counted["tokens"]) == usage["prompt_tokens"]
        assert counted["tokens"] == served.answer(RENDER, **body)["tokens"]
    assert (
        served.answer(TOKENIZE, prompt="Größe")["count"]
        == (served.answer(COMPLETIONS, prompt="Größe", max_tokens=1)["usage"]["prompt_tokens"])
    )


def test_counting_goes_on_while_every_place_is_taken() -> None:
    """FR-59."""
    with (
        gated_server(max_concurrent_inferences=1) as (running, gate),
        running.client() as http,
        send_raw(running, CHAT, chat_body(max_tokens=100)),
    ):
        gate.wait_until_reached()
        for path in (TOKENIZE, RENDER):
            assert http.post(path, json=chat_body("Größe")).json()["count"] == len("user:Größe;".encode())
        assert http.get(f"/v1/models/{MODEL_ID}").status_code == 200


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
@pytest.mark.parametrize("stop", [None, "c"])
def test_log_probabilities_in_the_form_of_the_route(served: Served, path: str, stop: str | None) -> None:
    """FR-60: one entry for each visible token, the same streamed and whole."""
    bias: dict[str, Any] = {"logit_bias": {"66": 100}} if stop else {}
    body = {**question(path, "Hi", logprobs=2, limit=12), **bias, "stop": stop}
    outcome = whole(served.http, path, body)
    assert streamed(served.http, path, body) == outcome
    if stop:
        assert (outcome.text, outcome.reason, len(outcome.entries)) == ("", "stop", 0)
        return
    ended = outcome.reason == "stop"
    assert len(outcome.entries) == outcome.completion_tokens - ended
    if path == COMPLETIONS:
        for token, logprob, top, offset in outcome.entries:
            assert top[token] == logprob
            assert len(top) in (2, 3)
            assert 0 <= offset <= len(outcome.text)
        assert [entry[3] for entry in outcome.entries] == sorted(entry[3] for entry in outcome.entries)
        return
    for entry in outcome.entries:
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
        assert len(entry["top_logprobs"]) == 2
        assert all(set(each) == {"token", "logprob", "bytes"} for each in entry["top_logprobs"])
    spelt = b"".join(bytes(entry["bytes"]) for entry in outcome.entries)
    assert spelt.decode(errors="replace") == outcome.text


def test_the_three_routes_tell_the_same_numbers(served: Served) -> None:
    """FR-60."""
    prompt = served.answer(RENDER, messages=user("Hi"))["tokens"]
    chat, response = (
        whole(served.http, path, question(path, "Hi", logprobs=2, limit=12)) for path in (CHAT, RESPONSES)
    )
    raw = {**question(COMPLETIONS, "", logprobs=2, limit=12), "prompt": prompt}
    legacy = whole(served.http, COMPLETIONS, raw)
    numbers = [entry["logprob"] for entry in chat.entries]
    assert chat.entries == response.entries
    assert numbers == [entry[1] for entry in legacy.entries]
    assert (chat.text, chat.prompt_tokens) == (legacy.text, legacy.prompt_tokens)


def test_log_probabilities_beside_a_call_are_those_of_the_text() -> None:
    """FR-60."""
    tool = {"type": "function", "function": {"name": "f"}}
    text = 'Well.\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    scripted: Scripted
    for scripted in scripted_server():
        scripted.writes(text)
        fields = {"tools": [tool], "logprobs": True, "top_logprobs": 2}
        choice = scripted.choice(**fields)
        assert choice["finish_reason"] == "tool_calls"
        found = choice["logprobs"]["content"]
        assert b"".join(bytes(entry["bytes"]) for entry in found).decode().strip() == "Well."
        chunks = scripted.chunks(**fields)
        assert [entry for chunk in chunks for entry in entries(chunk["choices"][0]["logprobs"])] == found
        assert END not in [entry["bytes"] for entry in found]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"messages": user("x"), "logprobs": 2}, "logprobs"),
        (CHAT, {"messages": user("x"), "top_logprobs": 2}, "top_logprobs"),
        (COMPLETIONS, {"prompt": "x", "top_logprobs": 2}, "top_logprobs"),
        (COMPLETIONS, {"prompt": "x", "logprobs": True}, "logprobs"),
        (RESPONSES, {"input": "x", "logprobs": True}, "logprobs"),
        (RESPONSES, {"input": "x", "top_logprobs": 2}, "top_logprobs"),
    ],
)
def test_the_form_of_another_route_is_refused_by_name(
    served: Served, path: str, fields: dict[str, Any], param: str
) -> None:
    """FR-60."""
    assert served.refusal(path, **fields)["param"] == param
