"""Two tools and a real model, by the official client: streamed or not, the answer is the same."""

import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.api.model_tools import NAMED, TOOLS, called, comparable, user
from tests.api.support import ServerProcess
from tests.clients.support import MODEL_SECONDS, at_once, client

pytestmark = pytest.mark.model

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


def names(choice: Any) -> list[str]:
    return [name for name, _ in called(choice)]


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
    return names(choice), told.message.content


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
    assert names(required)
    assert set(names(named)) == {"calculate"}


def test_calls_come_one_at_a_time_where_that_is_wanted(sdk: openai.OpenAI) -> None:
    many, one = at_once(
        lambda: asked(sdk, user(BOTH), tool_choice="required"),
        lambda: asked(sdk, user(BOTH), tool_choice="required", parallel_tool_calls=False),
    )
    assert len(names(one)) == 1
    assert names(many)[:1] == names(one)
