"""LangChain's OpenAI models."""

import asyncio
import functools
import operator
from typing import Any

import pytest

from tests.api.scripted import Scripted
from tests.api.support import MODEL_ID, Running, ServerProcess
from tests.clients.support import API_KEY, QUESTION, TEXT, Sum, Weather, call

langchain_openai = pytest.importorskip(
    "langchain_openai", reason="langchain-openai is not installed (dependency group langchain)"
)


def chat_model(url: str, **options: Any) -> Any:
    return langchain_openai.ChatOpenAI(base_url=f"{url}/v1", api_key=API_KEY, max_retries=0, **options)


def test_an_answer_with_its_usage(scripted: Running) -> None:
    answer = chat_model(scripted.url, model=MODEL_ID).invoke([("system", "Be brief."), ("human", "Hi")])
    assert answer.content == TEXT
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.usage_metadata["input_tokens"] == len("system:Be brief.;user:Hi;")
    assert answer.usage_metadata["output_tokens"] == len(TEXT.encode()) + 1


def test_streams_whole_and_async(scripted: Running) -> None:
    model = chat_model(scripted.url, model=MODEL_ID, stream_usage=True)
    chunks = list(model.stream("Hi"))
    assert "".join(chunk.content for chunk in chunks) == TEXT
    assert sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata) > 0

    async def ask() -> str:
        return "".join([chunk.content async for chunk in model.astream("Hi")])

    assert asyncio.run(ask()) == TEXT


def test_sampling_options_reach_the_server(scripted: Running) -> None:
    options = {"temperature": 0.5, "seed": 7, "top_p": 0.9, "stop": ["wörld"], "max_tokens": 20}
    answer = chat_model(scripted.url, model=MODEL_ID, extra_body={"top_k": 3}, **options).invoke("Hi")
    assert answer.content == "Hello, "
    params = scripted.runner.samplers[-1].params
    assert (params.temperature, params.seed, params.top_p, params.top_k) == (0.5, 7, 0.9, 3)


def test_a_loop_of_calls(caller: Running) -> None:
    model = chat_model(caller.url, model=MODEL_ID).bind_tools([Weather, Sum])
    messages: list[Any] = [("human", "Hi")]
    while (answer := model.invoke(messages)).tool_calls:
        streamed = functools.reduce(operator.add, model.stream(messages))
        assert [(made["name"], made["args"]) for made in streamed.tool_calls] == [
            (made["name"], made["args"]) for made in answer.tool_calls
        ]
        messages.append(answer)
        messages += [
            {"role": "tool", "tool_call_id": made["id"], "content": "3.5"} for made in answer.tool_calls
        ]
    assert answer.content == "It rains; it is 3.5."
    roles = [message.role for message in caller.conversations.seen[-1]]
    assert roles == ["user", "assistant", "tool", "tool", "assistant", "tool"]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_answers(writer: Scripted, method: str) -> None:
    text = '{"city":"Oslo","days":-3}'
    writer.writes(text if method == "json_schema" else call("Weather", text))
    model = chat_model(writer.running.url, model=MODEL_ID).with_structured_output(Weather, method=method)
    assert model.invoke("Hi") == Weather(city="Oslo", days=-3)


def test_the_responses_api(scripted: Running) -> None:
    model = chat_model(scripted.url, model=MODEL_ID, use_responses_api=True)
    assert model.invoke("Hi").text == TEXT
    assert "".join(chunk.text for chunk in model.stream("Hi")) == TEXT


def test_a_text_completion(scripted: Running) -> None:
    model = langchain_openai.OpenAI(
        model=MODEL_ID, base_url=f"{scripted.url}/v1", api_key=API_KEY, max_retries=0
    )
    assert model.invoke("Once") == TEXT


def test_a_refusal_names_the_field(scripted: Running) -> None:
    with pytest.raises(Exception, match=r"Unknown field `num_ctx`"):
        chat_model(scripted.url, model=MODEL_ID, extra_body={"num_ctx": 1}).invoke("Hi")


@pytest.mark.model
def test_a_real_model(real: ServerProcess) -> None:
    model = chat_model(real.url, model="ferrite-local")
    messages = [dict(message) for message in QUESTION]
    answer = model.invoke(messages).content
    assert "Paris" in answer
    assert "".join(chunk.content for chunk in model.stream(messages)) == answer
