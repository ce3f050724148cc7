"""LiteLLM with its ``openai/`` provider."""

import asyncio
import gc
import os
import warnings
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.api.scripted import Scripted
from tests.api.support import MODEL_ID, Running, ServerProcess
from tests.clients.support import API_KEY, HI, QUESTION, TEXT, Sum, Weather

# Else it asks the network for prices when it is imported.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
litellm = pytest.importorskip("litellm", reason="litellm is not installed (dependency group litellm)")
pytestmark = [
    # Its own types, on the first call.
    pytest.mark.filterwarnings("ignore:Items? .* using the `ReadOnly` qualifier:UserWarning"),
    # It leaves sockets and an event loop to the collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def _leftovers() -> Iterator[None]:
    """Collect what it leaves while warnings are not errors; the end of the session would make them so."""
    yield
    asyncio.set_event_loop(None)
    with warnings.catch_warnings(action="ignore"):
        gc.collect()


def where(url: str, model: str = MODEL_ID) -> dict[str, Any]:
    return {"model": f"openai/{model}", "api_base": f"{url}/v1", "api_key": API_KEY, "num_retries": 0}


def test_an_answer_with_its_usage(scripted: Running) -> None:
    answer = litellm.completion(messages=HI, **where(scripted.url))
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == len("user:Hi;")
    assert answer.usage.completion_tokens == len(TEXT.encode()) + 1


def test_streams_whole_and_async(scripted: Running) -> None:
    stream = litellm.completion(messages=HI, stream=True, **where(scripted.url))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == TEXT

    async def ask() -> str:
        stream = await litellm.acompletion(messages=HI, stream=True, **where(scripted.url))
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert asyncio.run(ask()) == TEXT


def test_a_text_completion(scripted: Running) -> None:
    target = {**where(scripted.url), "model": f"text-completion-openai/{MODEL_ID}"}
    assert litellm.text_completion(prompt="Once", **target).choices[0].text == TEXT


def test_calls_whole_and_streamed(caller: Running) -> None:
    tools = [openai.pydantic_function_tool(model) for model in (Weather, Sum)]
    target = {**where(caller.url), "tools": tools, "messages": HI}
    answer = litellm.completion(**target).choices[0]
    chunks = list(litellm.completion(stream=True, **target))
    built = litellm.stream_chunk_builder(chunks, messages=HI).choices[0]
    for choice in (answer, built):
        calls = [(made.function.name, made.function.arguments) for made in choice.message.tool_calls]
        assert calls == [("Weather", '{"city":"Oslo","days":-3}'), ("Sum", '{"numbers":[1,2.5]}')]
        assert choice.finish_reason == "tool_calls"


def test_structured_answers(writer: Scripted) -> None:
    writer.writes('{"city":"Oslo","days":-3}')
    answer = litellm.completion(messages=HI, response_format=Weather, **where(writer.running.url))
    parsed = Weather.model_validate_json(answer.choices[0].message.content)
    assert parsed == Weather(city="Oslo", days=-3)


def test_responses(scripted: Running) -> None:
    response = litellm.responses(input="Hi", **where(scripted.url))
    assert response.output[0].content[0].text == TEXT
    events = list(litellm.responses(input="Hi", stream=True, **where(scripted.url)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == TEXT


def test_errors_are_litellm_s_own(scripted: Running) -> None:
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        litellm.completion(messages=HI, temperature=9, **where(scripted.url))
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(messages=HI, **{**where(scripted.url), "api_key": "wrong"})
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(messages=HI, **where(scripted.url, "other"))
    with pytest.raises(litellm.ContextWindowExceededError, match="--ctx-size"):
        litellm.completion(messages=[{"role": "user", "content": "a" * 3000}], **where(scripted.url))


@pytest.mark.model
def test_a_real_model(real: ServerProcess) -> None:
    target = where(real.url, "ferrite-local")
    answer = litellm.completion(messages=QUESTION, **target).choices[0].message.content
    assert "Paris" in answer
    stream = litellm.completion(messages=QUESTION, stream=True, **target)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == answer
