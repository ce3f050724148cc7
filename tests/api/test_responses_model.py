"""``/v1/responses`` on a real model, beside the equivalent chat."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pydantic
import pytest

from tests.api.support import ServerProcess, server_process

pytestmark = pytest.mark.model

COMMAND = "import sys; from ferrite.cli.server import main; sys.exit(main())"
ORDER = "Answer in one sentence."
QUESTION = "What is the capital of France?"
TOOLS: Any = [
    {
        "type": "function",
        "name": "weather",
        "description": "Tells the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
    {"type": "function", "name": "clock", "parameters": {"type": "object", "properties": {}}},
]


class City(pydantic.BaseModel):
    """A city."""

    name: Literal["Oslo", "Paris"]
    is_capital: bool


@pytest.fixture(scope="module")
def server(smollm2_path: Path) -> Iterator[ServerProcess]:
    arguments = [
        "--model", str(smollm2_path), "--model-id", "m", "--threads", "1", "--ctx-size", "1024",
        "--default-max-tokens", "24", "--experimental-batched-decode", "--max-batch-streams", "4",
        "--experimental-prefix-cache",
    ]  # fmt: skip
    with server_process(COMMAND, *arguments) as process:
        yield process


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    transport = openai.DefaultHttpxClient(trust_env=False, verify=False, timeout=120)
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, http_client=transport
    ) as client:
        yield client


def test_it_is_the_chat_in_other_words(client: openai.OpenAI) -> None:
    logprobs: Any = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    response = client.responses.create(model="m", input=QUESTION, instructions=ORDER, **logprobs)
    chat = client.chat.completions.create(
        model="m",
        messages=[{"role": "system", "content": ORDER}, {"role": "user", "content": QUESTION}],
        logprobs=True,
        top_logprobs=2,
    )
    assert response.output_text == chat.choices[0].message.content
    assert "Paris" in response.output_text
    assert response.usage is not None
    assert chat.usage is not None
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    assert response.usage.output_tokens == chat.usage.completion_tokens
    (item,) = response.output
    assert item.type == "message"
    assert item.content[0].type == "output_text"
    assert chat.choices[0].logprobs is not None
    ours = [entry.to_dict() for entry in item.content[0].logprobs or []]
    assert ours == [entry.to_dict() for entry in chat.choices[0].logprobs.content or []]
    with client.responses.stream(model="m", input=QUESTION, instructions=ORDER) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert text == response.output_text


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "clock"}])
def test_a_demanded_call_always_comes(client: openai.OpenAI, choice: Any) -> None:
    for seed in range(10):
        asked: dict[str, Any] = {
            "model": "m",
            "input": "Say hello.",
            "tools": TOOLS,
            "tool_choice": choice,
            "parallel_tool_calls": False,
            "temperature": 1,
            "max_output_tokens": 60,
            "prompt_cache_key": "k",
            "extra_body": {"seed": seed},
        }
        *_, last = client.responses.create(**asked, stream=True)
        (call,) = last.response.output
        assert call.type == "function_call"
        assert call.name in (("clock",) if isinstance(choice, dict) else ("weather", "clock"))
        assert call.call_id != call.id
        if last.type == "response.completed":
            arguments = json.loads(call.arguments)
            assert call.name == "clock" or isinstance(arguments["city"], str)
        if seed == 0:
            (again,) = client.responses.create(**asked).output
            assert (again.name, again.arguments) == (call.name, call.arguments)


def test_a_result_is_answered(client: openai.OpenAI) -> None:
    question: Any = {"role": "user", "content": "What is the weather in Oslo?"}
    first = client.responses.create(
        model="m", input=[question], tools=TOOLS, tool_choice="required", parallel_tool_calls=False,
        max_output_tokens=60,
    )  # fmt: skip
    (call,) = first.output
    assert call.type == "function_call"
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "Heavy rain."}
    given: list[Any] = [question, *first.output, result]
    told = client.responses.create(model="m", input=given, tools=TOOLS, tool_choice="none")
    function = {"name": call.name, "arguments": call.arguments}
    messages: list[Any] = [
        question,
        {"role": "assistant", "tool_calls": [{"id": call.call_id, "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": call.call_id, "content": "Heavy rain."},
    ]
    nested: list[Any] = [
        {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}
        for tool in TOOLS
    ]
    chat = client.chat.completions.create(model="m", messages=messages, tools=nested, tool_choice="none")
    assert told.output_text == chat.choices[0].message.content
    assert told.usage is not None
    assert chat.usage is not None
    assert told.usage.input_tokens == chat.usage.prompt_tokens


def test_an_answer_is_a_model_s_instance(client: openai.OpenAI) -> None:
    for temperature in (0, 1.5):
        response = client.responses.parse(
            model="m",
            input="Describe Paris.",
            text_format=City,
            max_output_tokens=100,
            temperature=temperature,
            extra_body={"seed": 5},
        )
        assert response.status == "completed"
        assert isinstance(response.output_parsed, City)
