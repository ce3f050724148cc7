"""Choices, log-probabilities, echoes and biases on a real model, as a client sees them."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from ferrite.api.fields import CHAT_FIELDS, COMPLETION_FIELDS, Field, Support
from tests.api.reading import choices_of, chunks_of, entries, plain_choices
from tests.api.support import ServerProcess, server_process

pytestmark = pytest.mark.model

COMMAND = "import sys; from ferrite.cli.server import main; sys.exit(main())"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def server(smollm2_path: Path) -> Iterator[ServerProcess]:
    arguments = [
        "--model", str(smollm2_path), "--model-id", "m", "--threads", "1", "--ctx-size", "1024",
        "--experimental-prefix-cache", "--experimental-batched-decode", "--max-batch-streams", "4",
    ]  # fmt: skip
    with server_process(COMMAND, *arguments) as running:
        yield running


@pytest.fixture(scope="module")
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, trust_env=False, verify=False, timeout=120) as client:
        yield client


def post(client: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = client.post(path, json={"model": "m", **body})
    assert answer.status_code == 200, answer.text
    whole: dict[str, Any] = answer.json()
    return whole


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}


def raw(prompt: Any = PROMPT, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": prompt, "max_tokens": 12, **fields}


def test_three_answers_to_one_question(http: httpx.Client) -> None:
    """Field report 57."""
    body = chat("Name a colour.", n=3, temperature=1, seed=1)
    first = post(http, CHAT, body)
    texts = [choice["message"]["content"] for choice in first["choices"]]
    assert len(set(texts)) == 3
    assert post(http, CHAT, body)["choices"] == first["choices"]
    assert choices_of(chunks_of(http, CHAT, body)) == plain_choices(first)
    one = post(http, CHAT, chat("Name a colour.", temperature=1, seed=1))
    assert one["choices"] == first["choices"][:1]
    assert one["usage"]["prompt_tokens"] == first["usage"]["prompt_tokens"]
    greedy = post(http, CHAT, {**body, "temperature": 0})["choices"]
    assert len({choice["message"]["content"] for choice in greedy}) == 1
    two = post(http, COMPLETIONS, raw([PROMPT, "Rome is"], n=2, temperature=1, seed=1))
    assert [choice["index"] for choice in two["choices"]] == [0, 1, 2, 3]
    alone = post(http, COMPLETIONS, raw("Rome is", n=2, temperature=1, seed=1))["choices"]
    assert [choice["text"] for choice in two["choices"][2:]] == [choice["text"] for choice in alone]


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.3, "seed": 3},
        {"temperature": 1, "top_p": 0.1, "seed": 4},
        {"temperature": 1, "top_k": 5, "min_p": 0.1, "seed": 5},
        {"logit_bias": {"1000": 5}, "repetition_penalty": 1.5, "presence_penalty": 1},
    ],
    ids=str,
)
def test_log_probabilities_are_the_model_s_own(http: httpx.Client, sampling: dict[str, Any]) -> None:
    """Field report 36: they do not depend on the sampling, and a score of the same text has the same bits."""
    body = raw(logprobs=5, return_token_ids=True, max_tokens=8, **sampling)
    (choice,) = post(http, COMPLETIONS, body)["choices"]
    found = entries(choice["logprobs"])
    prompt = post(http, "/v1/tokenize", {"prompt": PROMPT})["tokens"]
    scored = raw([*prompt, *choice["token_ids"]], echo=True, logprobs=5, max_tokens=0)
    (score,) = post(http, COMPLETIONS, scored)["choices"]
    assert [each[:3] for each in entries(score["logprobs"])[len(prompt) :]] == [each[:3] for each in found]
    for token, logprob, top, _ in found:
        assert logprob == top[token] <= 0
        ranked = list(top.values())[:5]
        assert ranked == sorted(ranked, reverse=True)
        assert sum(map(math.exp, ranked)) <= 1 + 1e-6
        assert logprob <= ranked[0]
        if not sampling:
            assert logprob == ranked[0]


@pytest.mark.parametrize("text", ["né 東京 👩‍🚀 щёки", "a<|im_end|>b"])
def test_an_echo_spells_the_prompt(http: httpx.Client, text: str) -> None:
    body = raw(text, echo=True, logprobs=1, max_tokens=0)
    (choice,) = post(http, COMPLETIONS, body)["choices"]
    assert choice["text"] == text
    found = entries(choice["logprobs"])
    assert len(found) == len(post(http, "/v1/tokenize", {"prompt": text})["tokens"])
    for token, _, _, offset in found:
        assert token.startswith("bytes:") or text[offset:].startswith(token)
    assert choices_of(chunks_of(http, COMPLETIONS, body)) == {0: plain_choices({"choices": [choice]})[0]}


def test_a_bias_bans_and_forces(http: httpx.Client) -> None:
    """Field report 39."""
    plain = post(http, COMPLETIONS, raw(return_token_ids=True))["choices"][0]["token_ids"]
    banned = {str(plain[0]): -100}
    for fields in ({}, {"n": 2}, {"temperature": 1, "seed": 9}):
        for choice in post(http, COMPLETIONS, raw(return_token_ids=True, logit_bias=banned, **fields))[
            "choices"
        ]:
            assert plain[0] not in choice["token_ids"]
    streamed = chunks_of(http, COMPLETIONS, raw(return_token_ids=True, logit_bias=banned))
    assert plain[0] not in choices_of(streamed)[0]["token_ids"]
    forced = post(http, COMPLETIONS, raw(return_token_ids=True, logit_bias={"1000": 100}))["choices"][0]
    assert set(forced["token_ids"]) == {1000}
    twenty = dict.fromkeys(map(str, range(20, 40)), -100)
    many = raw(return_token_ids=True, logit_bias=twenty, max_tokens=200, temperature=1.5, seed=1)
    assert not {*range(20, 40)} & set(post(http, COMPLETIONS, many)["choices"][0]["token_ids"])


def test_a_grammar_wins_over_a_bias(http: httpx.Client) -> None:
    schema = {"type": "object", "properties": {"v": {"enum": ["x"]}}, "required": ["v"]}
    form = {
        "type": "json_schema",
        "json_schema": {"name": "f", "strict": True, "schema": {**schema, "additionalProperties": False}},
    }
    tokens = post(http, "/v1/tokenize", {"prompt": '{"v":"x"}', "parse_special": False})["tokens"]
    bias = {**dict.fromkeys(map(str, tokens), -100), "1000": 100}
    choice = post(http, CHAT, chat("Go.", response_format=form, logit_bias=bias, max_tokens=64))["choices"][0]
    assert (json.loads(choice["message"]["content"]), choice["finish_reason"]) == ({"v": "x"}, "stop")


def test_a_lone_byte_of_the_vocabulary(http: httpx.Client) -> None:
    """Field report 4."""
    pieces = post(http, "/v1/tokenize", {"prompt": "👩‍🚀 щёки 東", "with_pieces": True})
    lone = {
        piece["bytes"][0]: token
        for token, piece in zip(pieces["tokens"], pieces["pieces"], strict=True)
        if len(piece["bytes"]) == 1 and piece["bytes"][0] >= 0x80
    }
    assert lone
    for byte, token in lone.items():
        for limit in (1, 3):
            body = raw(max_tokens=limit, logit_bias={str(token): 100}, logprobs=0)
            whole = plain_choices(post(http, COMPLETIONS, body))
            assert choices_of(chunks_of(http, COMPLETIONS, body)) == whole
            assert whole[0]["text"] == "\ufffd" * limit
            assert [entry[0] for entry in whole[0]["logprobs"]] == [f"bytes:\\x{byte:02x}"] * limit


SAMPLED = {"temperature": 1.2, "seed": 2}
EFFECTS: dict[str, tuple[dict[str, Any], Any]] = {
    "prompt": ({}, "Once upon a time"),
    "max_tokens": ({}, 3),
    "temperature": ({"seed": 2}, 1.2),
    "top_p": (SAMPLED, 0.05),
    "top_k": (SAMPLED, 1),
    "min_p": (SAMPLED, 0.9),
    "frequency_penalty": ({"max_tokens": 60}, 2),
    "presence_penalty": ({"max_tokens": 60}, 2),
    "repetition_penalty": ({"max_tokens": 60}, 2),
    "logit_bias": ({}, {"1000": 100}),
    "seed": ({"temperature": 1.2}, 77),
    "stop": ({}, ["."]),
    "return_token_ids": ({}, True),
    "metadata": ({}, {"ferrite_cache_trace": "true"}),
    "n": ({}, 2),
    "echo": ({}, True),
    "logprobs": ({}, 2),
    "stream_options": ({"stream": True}, {"include_usage": True}),
    "stream": ({}, True),
}


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
CHAT_EFFECTS: dict[str, tuple[dict[str, Any], Any]] = {
    "messages": ({}, [{"role": "user", "content": "Hello"}]),
    "max_completion_tokens": ({}, 3),
    "logprobs": ({}, True),
    "top_logprobs": ({"logprobs": True}, 2),
    "response_format": ({}, {"type": "json_object"}),
    "tools": ({}, [TOOL]),
    "tool_choice": ({"tools": [TOOL]}, "required"),
}
ELSEWHERE = {"model", "prompt_cache_key", "parallel_tool_calls", "reasoning_effort", "chat_template_kwargs"}
"""Their effects show in a refusal, in the second of two answers, or with a template that reads them."""


def honoured(fields: Mapping[str, Field]) -> set[str]:
    return {name for name, field in fields.items() if field.support is Support.HONOURED}


def test_every_honoured_field_has_a_case() -> None:
    assert set(EFFECTS) == honoured(COMPLETION_FIELDS) - ELSEWHERE
    assert set(CHAT_EFFECTS) | set(EFFECTS) >= honoured(CHAT_FIELDS) - ELSEWHERE


CASES = [
    *((COMPLETIONS, raw(), name, *case) for name, case in EFFECTS.items()),
    *((CHAT, chat("Say hi", max_tokens=12), name, *case) for name, case in CHAT_EFFECTS.items()),
]


@pytest.mark.parametrize(
    ("path", "body", "name", "context", "value"), CASES, ids=[f"{case[0]}-{case[2]}" for case in CASES]
)
def test_every_honoured_field_has_an_effect(
    http: httpx.Client, path: str, body: dict[str, Any], name: str, context: dict[str, Any], value: object
) -> None:
    """Field report 43."""

    def seen(body: dict[str, Any]) -> object:
        answer = http.post(path, json=body, headers={"x-request-id": "r-1"})
        assert answer.status_code == 200, answer.text
        if body.get("stream"):
            return [line.partition('"choices":')[2] for line in answer.text.split("\n\n")]
        whole = answer.json()
        for choice in whole["choices"]:
            for call in choice.get("message", {}).get("tool_calls", []):
                del call["id"]
        return {key: whole[key] for key in whole if key not in ("id", "created")}

    body = {**body, **context}
    without = seen(body)
    if name != "seed":
        assert seen(body) == without
    assert seen({**body, name: value}) == seen({**body, name: value}) != without


def test_a_key_has_its_effect_the_second_time(http: httpx.Client) -> None:
    body = raw("one two three four " * 10, prompt_cache_key="k")
    cold, warm = (post(http, COMPLETIONS, body) for _ in range(2))
    assert cold["choices"] == warm["choices"]
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
