"""Two tools and a real model, by the official client: streamed or not, the answer is the same."""

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest

from tests.api.support import ServerProcess
from tests.clients.support import MODEL_SECONDS, at_once, client, comparable

pytestmark = pytest.mark.model

WEATHER: Any = {
    "name": "get_weather",
    "description": "Get the current weather in a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
CALCULATE: Any = {
    "name": "calculate",
    "description": "Evaluate an arithmetic expression",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"expression": {"type": "string", "pattern": "^[0-9+*/(). -]{1,40}$"}},
        "required": ["expression"],
        "additionalProperties": False,
    },
}
TOOLS: Any = [{"type": "function", "function": each} for each in (WEATHER, CALCULATE)]
PARAMETERS = {each["name"]: each["parameters"] for each in (WEATHER, CALCULATE)}
NAMED: Any = {"type": "function", "function": {"name": "calculate"}}
BOTH = "What is the weather in Oslo, and what is 3+4?"


@pytest.fixture(scope="module")
def sdk(real_caller: ServerProcess) -> Iterator[openai.OpenAI]:
    with client(real_caller.url, timeout=MODEL_SECONDS) as made:
        yield made


def run(name: str, arguments: Any) -> str:
    if name == "get_weather":
        return json.dumps({"temperature": 21, "sky": "clear"})
    left, right = re.fullmatch(r"(\d+) ?\* ?(\d+)", arguments["expression"]).groups()  # type: ignore[union-attr]
    return str(int(left) * int(right))


def asked(sdk: openai.OpenAI, messages: list[Any], **fields: Any) -> Any:
    """The choice of a whole answer, which the streamed one must equal."""
    fields = {
        "model": "ferrite-local",
        "messages": messages,
        "prompt_cache_key": "tools",
        "tools": TOOLS,
        **fields,
    }

    def streamed() -> Any:
        with sdk.chat.completions.stream(**fields) as stream:
            return stream.get_final_completion()

    whole, joined = at_once(lambda: sdk.chat.completions.create(**fields), streamed)
    assert comparable(joined.choices[0]) == comparable(whole.choices[0])
    return whole.choices[0]


def called(choice: Any) -> list[str]:
    """The names of a choice's calls, which follow their schemas."""
    assert choice.finish_reason == "tool_calls"
    for made in choice.message.tool_calls:
        jsonschema.validate(json.loads(made.function.arguments), PARAMETERS[made.function.name])
    return [made.function.name for made in choice.message.tool_calls]


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def loop(sdk: openai.OpenAI, question: str) -> tuple[list[str], str]:
    """The functions that are called, and what is told of their results; it would go on calling."""
    messages = user(question)
    choice = asked(sdk, messages)
    messages.append(choice.message)
    for made in choice.message.tool_calls:
        result = run(made.function.name, json.loads(made.function.arguments))
        messages.append({"role": "tool", "tool_call_id": made.id, "content": result})
    told = asked(sdk, messages, tool_choice="none")
    assert told.message.tool_calls is None
    return called(choice), told.message.content


def test_a_loop_of_weather_and_calculator(sdk: openai.OpenAI) -> None:
    weather, product = at_once(
        lambda: loop(sdk, "What is the weather in Paris?"), lambda: loop(sdk, "What is 12*7?")
    )
    assert (weather[0], product[0]) == (["get_weather"], ["calculate"])
    assert "21" in weather[1]
    assert "84" in product[1]


def test_choices_are_kept(sdk: openai.OpenAI) -> None:
    hello = user("Hello, who are you?")
    free, required, named = at_once(
        lambda: asked(sdk, hello),
        lambda: asked(sdk, hello, tool_choice="required"),
        lambda: asked(sdk, hello, tool_choice=NAMED),
    )
    assert (free.finish_reason, free.message.tool_calls) == ("stop", None)
    assert called(required)
    assert set(called(named)) == {"calculate"}


def test_calls_come_one_at_a_time_where_that_is_wanted(sdk: openai.OpenAI) -> None:
    many, one = at_once(
        lambda: asked(sdk, user(BOTH), tool_choice="required"),
        lambda: asked(sdk, user(BOTH), tool_choice="required", parallel_tool_calls=False),
    )
    assert len(called(one)) == 1
    assert called(many)[:1] == called(one)
