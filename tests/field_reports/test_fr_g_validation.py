"""What is refused, by name, while a stream runs beside it; and what is not refused."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ferrite.api.fields import RESPONSE_FIELDS, Support
from tests.api.support import (
    Gate,
    Running,
    batching,
    chat_body,
    completion_body,
    gated_server,
    receive_until,
    send_raw,
)
from tests.api.test_responses import events_of
from tests.field_reports.serving import (
    CHAT,
    COMPLETIONS,
    RENDER,
    RESPONSES,
    TOKENIZE,
    Served,
    question,
    serving,
    user,
)


def test_too_long_a_prompt_is_refused_before_any_work(tiny: Path) -> None:
    """FR-40."""
    with serving(tiny, ctx_size=512, hard_max_tokens=400) as served:
        for count, budget in ((600, 1), (500, 32), (512, 1)):
            error = served.refusal(COMPLETIONS, prompt=[65] * count, max_tokens=budget)
            assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
            assert all(str(number) in error["message"] for number in (count, budget, 512))
        for count in (600, 500):
            text = user("é" * (count // 2))
            error = served.refusal(CHAT, messages=text, max_tokens=32)
            assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
            error = served.refusal(RESPONSES, input="é" * (count // 2), max_output_tokens=32)
            assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
        counters = served.get("/admin/stats")["batcher"]
        assert (counters["prefill_tokens"], counters["prefill_chunks"]) == (0, 0)
        usage = served.answer(COMPLETIONS, prompt=[65] * 508, max_tokens=4, logit_bias={"66": 100})["usage"]
        assert usage["total_tokens"] == 512
        answer = served.answer(RESPONSES, input="Hi", truncation="disabled", max_output_tokens=1)
        assert answer["truncation"] == "disabled"
        assert served.refusal(RESPONSES, input="Hi", truncation="auto")["param"] == "truncation"


@pytest.fixture(scope="module")
def beside() -> Iterator[tuple[Running, Gate]]:
    """A server in which a stream can be held while others ask."""
    with gated_server(**batching(2, 2)) as held:
        yield held


EXTREME = [
    ("temperature", "999999"),
    ("temperature", '"0.7"'),
    ("temperature", "1e400"),
    ("temperature", "true"),
    ("top_p", "-1"),
    ("repetition_penalty", "0"),
    ("min_p", "2"),
    ("top_k", "-5"),
    ("top_k", "true"),
    ("top_p", "1e400"),
    ("min_p", "true"),
    ("repetition_penalty", "true"),
    ("seed", "1e400"),
]
NO_TOKENS = ['{"9999999":5}', '{"AI":-100}', '{"-1":1}', '{"5":101}']
BAD_PROMPTS = [
    ("[-1]", "prompt[0]"),
    ("[9999999]", "prompt[0]"),
    ("[1.5]", "prompt[0]"),
    ("[]", "prompt"),
    ("[[]]", "prompt[0]"),
]


def test_no_wrong_value_disturbs_a_stream_or_the_log(
    beside: tuple[Running, Gate], caplog: pytest.LogCaptureFixture
) -> None:
    """FR-41 and FR-42, with everything logged."""
    running, gate = beside
    with caplog.at_level(logging.DEBUG), running.client() as http:

        def error(path: str, body: dict[str, Any], *written: tuple[str, str]) -> dict[str, Any]:
            content = json.dumps(body)[:-1] + "".join(f', "{n}": {value}' for n, value in written) + "}"
            answer = http.post(path, content=content, headers={"content-type": "application/json"})
            assert answer.status_code == 400, (path, written, answer.text)
            found: dict[str, Any] = answer.json()["error"]
            return found

        model = chat_body()["model"]
        bodies = {
            CHAT: chat_body(),
            COMPLETIONS: completion_body(),
            RESPONSES: {"model": model, "input": "Hi"},
        }
        with send_raw(running, CHAT, chat_body(stream=True, max_tokens=9)) as stream:
            gate.wait_until_reached()
            for path, body in bodies.items():
                for name, value in EXTREME:
                    assert error(path, body, (name, value))["param"] == name, (path, name, value)
                for value in NO_TOKENS:
                    # The path may go on to the entry.
                    param = error(path, body, ("logit_bias", value))["param"]
                    assert param.partition(".")[0] == "logit_bias", (path, value)
                for value in ("NaN", "Infinity", "-Infinity"):
                    assert error(path, body, ("temperature", value))["code"] == "invalid_json"
            for prompt, param in BAD_PROMPTS:
                assert error(COMPLETIONS, {"model": model}, ("prompt", prompt))["param"] == param
            gate.open()
            received = receive_until(stream, b"data: [DONE]")
        assert received.count(b'"content":"z"') == 9
        assert b"event: error" not in received
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


INCLUDED = ["message.output_text.logprobs"]
TOOL = {"type": "function", "name": "f", "strict": True, "parameters": {
    "type": "object", "properties": {}, "additionalProperties": False}}  # fmt: skip
SAMPLED = {"temperature": 1.2, "seed": 2}
EFFECTS: dict[str, tuple[dict[str, Any], Any]] = {
    "input": ({}, "Hello there"),
    "instructions": ({}, "Be brief."),
    "max_output_tokens": ({}, 3),
    "temperature": ({"seed": 2}, 1.2),
    "top_p": (SAMPLED, 0.05),
    "top_k": (SAMPLED, 1),
    "min_p": (SAMPLED, 0.9),
    "frequency_penalty": ({"max_output_tokens": 60}, 2),
    "presence_penalty": ({"max_output_tokens": 60}, 2),
    "repetition_penalty": ({"max_output_tokens": 60}, 2),
    "logit_bias": ({}, {"66": 100}),
    "seed": ({"temperature": 1.2}, 77),
    "stop": ({"logit_bias": {"66": 100}}, ["c"]),
    "return_token_ids": ({}, True),
    "metadata": ({}, {"ferrite_cache_trace": "true"}),
    "include": ({}, INCLUDED),
    "top_logprobs": ({"include": INCLUDED}, 2),
    "text": ({}, {"format": {"type": "json_object"}}),
    "tools": ({}, [TOOL]),
    "tool_choice": ({"tools": [TOOL]}, "required"),
    "parallel_tool_calls": ({"tools": [TOOL], "tool_choice": "required", "max_output_tokens": 60}, False),
    "stream_options": ({"stream": True}, {"include_obfuscation": True}),
    "stream": ({}, True),
}
ELSEWHERE = {"model", "prompt_cache_key", "reasoning", "chat_template_kwargs"}
"""Their effects show in a refusal, in the second of two answers, or with a template that reads them."""


def test_every_honoured_field_of_responses_has_a_case() -> None:
    """FR-43; the other routes are looked at with a real model."""
    honoured = {name for name, field in RESPONSE_FIELDS.items() if field.support is Support.HONOURED}
    assert set(EFFECTS) == honoured - ELSEWHERE


@pytest.mark.parametrize("name", EFFECTS)
def test_every_honoured_field_of_responses_has_an_effect(served: Served, name: str) -> None:
    """FR-43."""
    context, value = EFFECTS[name]
    body = {**question(RESPONSES, "Say hi", limit=12), **context}

    def seen(body: dict[str, Any]) -> Any:
        if body.get("stream"):
            return len(events_of(served.http, body)), [
                {
                    **event,
                    "response": None,
                    "item": None,
                    "item_id": None,
                    "obfuscation": "obfuscation" in event,
                }
                for event in events_of(served.http, body)
            ]
        answer = served.answer(RESPONSES, **body)
        for item in answer["output"]:
            item.pop("id")
            item.pop("call_id", None)
        told = ("temperature", "top_p", "max_output_tokens", "instructions", "tools", "tool_choice", "text")
        hidden = {
            "id",
            "created_at",
            "completed_at",
            "metadata",
            "top_logprobs",
            "parallel_tool_calls",
            *told,
        }
        return {key: answer[key] for key in answer if key not in hidden}

    without = seen(body)
    if name != "seed":
        assert seen(body) == without
    assert seen({**body, name: value}) == seen({**body, name: value}) != without


def test_harmless_extras_of_real_clients_change_nothing(served: Served) -> None:
    """FR-44."""
    function = {"name": "f", "parameters": {"type": "object", "properties": {}}}
    plain = {"messages": user("Hi"), "max_tokens": 12, "tools": [{"type": "function", "function": function}]}
    extras = {
        "messages": [{"role": "user", "content": "Hi", "name": "ann"}],
        "tools": [{"type": "function", "function": {**function, "strict": False}}],
        "max_tokens": None,
        "max_completion_tokens": 12,
        "parallel_tool_calls": True,
        "store": False,
        "metadata": {},
        "user": "u",
        "n": 1,
        "logit_bias": {},
        "stop": None,
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "prediction": None,
        "stream_options": None,
        "service_tier": "auto",
    }
    expected, found = served.answer(CHAT, **plain), served.answer(CHAT, **extras)
    assert (found["choices"], found["usage"]) == (expected["choices"], expected["usage"])
    for path in (CHAT, RENDER, TOKENIZE):
        messages = [{"role": "user", "content": "Hi", "opts": {}}]
        error = served.refusal(path, messages=messages)
        assert error["param"] == "messages[0].opts"
        assert "`messages[0].opts`" in error["message"]
