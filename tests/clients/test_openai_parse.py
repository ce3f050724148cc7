"""``parse`` and the stream helpers of the official client turn answers into pydantic models."""

import asyncio
import enum
import json
from typing import Any, Literal

import openai
import pydantic
import pytest
from openai.lib import pydantic_responses_function_tool

from tests.api.scripted import Scripted
from tests.api.support import MODEL_ID, ServerProcess
from tests.clients.support import HI, MODEL_SECONDS, Sum, Weather, async_client, at_once, call, client


class Mood(enum.StrEnum):
    CALM = "calm"
    WILD = "wild"


class Place(pydantic.BaseModel):
    """Where something is."""

    name: str
    country: str | None


class Mooded(pydantic.BaseModel):
    mood: Mood


class Report(pydantic.BaseModel):
    """What pydantic can say in a schema: references, enumerations, alternatives, bounds, descriptions."""

    title: str = pydantic.Field(description="A short one.")
    places: list[Place] = pydantic.Field(max_length=2)
    mood: Mood
    kind: Literal["sea", "land"]
    depth: int = pydantic.Field(ge=-9, le=9)
    part_of: "Report | None"


REPORT: dict[str, Any] = {
    "title": "é {}",
    "places": [{"name": "Oslo", "country": None}],
    "mood": "wild",
    "kind": "sea",
    "depth": -3,
    "part_of": None,
}
WRITTEN = json.dumps(REPORT, ensure_ascii=False)
CALL = call("Weather", '{"city":"Oslo","days":-3}')
OSLO = Weather(city="Oslo", days=-3)


def sdk_of(server: Scripted) -> openai.OpenAI:
    return client(server.running.url)


# The client's own, where a parsed message is sent back.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")
def test_a_chat_is_parsed(writer: Scripted) -> None:
    writer.writes(WRITTEN)
    with sdk_of(writer) as sdk:
        answer = sdk.chat.completions.parse(model=MODEL_ID, messages=HI, response_format=Report)
        message = answer.choices[0].message
        assert message.parsed == Report.model_validate(REPORT)
        assert message.refusal is None
        with sdk.chat.completions.stream(model=MODEL_ID, messages=HI, response_format=Report) as stream:
            events = list(stream)
            final = stream.get_final_completion()
        kept: list[Any] = [*HI, message, *HI]
        sdk.chat.completions.parse(model=MODEL_ID, messages=kept, response_format=Report)
    assert [said.content for said in writer.running.conversations.seen[-1]] == ["Hi", WRITTEN, "Hi"]
    assert final.choices[0].message.parsed == message.parsed
    partial = [event.parsed for event in events if event.type == "content.delta"]
    assert {"title": "é {}"} in partial
    (done,) = (event for event in events if event.type == "content.done")
    assert (done.content, done.parsed) == (message.content, message.parsed)


def test_what_the_model_writes_beside_the_schema_never_comes_out(writer: Scripted) -> None:
    """A model that would write no JSON at all is held to it by the grammar, so it can be parsed."""
    writer.writes("Sorry, I would rather not." * 9)
    with sdk_of(writer) as sdk:
        answer = sdk.chat.completions.parse(model=MODEL_ID, messages=HI, response_format=Mooded)
    assert answer.choices[0].message.parsed in (Mooded(mood=Mood.CALM), Mooded(mood=Mood.WILD))


def test_a_cut_answer_is_the_client_s_length_error(writer: Scripted) -> None:
    writer.writes(WRITTEN)
    asked: dict[str, Any] = {"model": MODEL_ID, "messages": HI, "max_tokens": 11}
    with sdk_of(writer) as sdk:
        with pytest.raises(openai.LengthFinishReasonError) as whole:
            sdk.chat.completions.parse(**asked, response_format=Report)
        with (
            pytest.raises(openai.LengthFinishReasonError) as streamed,
            sdk.chat.completions.stream(**asked, response_format=Report) as stream,
        ):
            stream.until_done()
    for caught in (whole, streamed):
        completion = caught.value.completion
        assert completion.choices[0].message.content == '{"title": "'
        assert completion.choices[0].finish_reason == "length"


def test_a_cut_response_says_so(writer: Scripted) -> None:
    """The client parses only what is whole, so an application looks at ``status`` first."""
    writer.writes(WRITTEN)
    with sdk_of(writer) as sdk:
        raw = sdk.responses.with_raw_response.create(model=MODEL_ID, input="Hi", max_output_tokens=11)
        response = raw.parse()
        assert response.status == "incomplete"
        assert response.incomplete_details is not None
        assert response.incomplete_details.reason == "max_output_tokens"
        with pytest.raises(pydantic.ValidationError, match="EOF while parsing"):
            sdk.responses.parse(model=MODEL_ID, input="Hi", max_output_tokens=11, text_format=Report)


def test_responses_are_parsed(writer: Scripted) -> None:
    writer.writes(WRITTEN)
    with sdk_of(writer) as sdk:
        whole = sdk.responses.parse(model=MODEL_ID, input="Hi", text_format=Report)
        with sdk.responses.stream(model=MODEL_ID, input="Hi", text_format=Report) as stream:
            (done,) = (event for event in stream if event.type == "response.output_text.done")
            final = stream.get_final_response()
    assert whole.output_parsed == done.parsed == final.output_parsed == Report.model_validate(REPORT)


def test_the_asynchronous_client_parses_too(writer: Scripted) -> None:
    async def ask() -> list[Report | None]:
        async with async_client(writer.running.url) as sdk:
            chat = await sdk.chat.completions.parse(model=MODEL_ID, messages=HI, response_format=Report)
            response = await sdk.responses.parse(model=MODEL_ID, input="Hi", text_format=Report)
            async with sdk.chat.completions.stream(
                model=MODEL_ID, messages=HI, response_format=Report
            ) as stream:
                streamed = await stream.get_final_completion()
            return [
                chat.choices[0].message.parsed, response.output_parsed, streamed.choices[0].message.parsed
            ]  # fmt: skip

    writer.writes(WRITTEN)
    assert asyncio.run(ask()) == [Report.model_validate(REPORT)] * 3


def test_arguments_of_calls_are_models(writer: Scripted) -> None:
    writer.writes(CALL)
    tools = [openai.pydantic_function_tool(Weather), openai.pydantic_function_tool(Sum, name="Add")]
    flat = [pydantic_responses_function_tool(Weather), pydantic_responses_function_tool(Sum, name="Add")]
    with sdk_of(writer) as sdk:
        answer = sdk.chat.completions.parse(model=MODEL_ID, messages=HI, tools=tools)
        (made,) = answer.choices[0].message.tool_calls or []
        assert (made.function.name, made.function.parsed_arguments) == ("Weather", OSLO)
        response = sdk.responses.parse(model=MODEL_ID, input="Hi", tools=flat)
        (item,) = response.output
        assert item.type == "function_call"
        assert item.parsed_arguments == OSLO
        with sdk.responses.stream(model=MODEL_ID, input="Hi", tools=flat) as stream:
            (streamed,) = stream.get_final_response().output
        assert streamed.type == "function_call"
        assert streamed.parsed_arguments == OSLO


def test_a_cut_call_is_the_client_s_length_error(writer: Scripted) -> None:
    writer.writes(CALL)
    tools = [openai.pydantic_function_tool(Weather)]
    with sdk_of(writer) as sdk, pytest.raises(openai.LengthFinishReasonError):
        sdk.chat.completions.parse(model=MODEL_ID, messages=HI, tools=tools, max_tokens=60)


class City(pydantic.BaseModel):
    """A city."""

    name: Literal["Oslo", "Paris"]
    kind: Mood
    founded: int | None = pydantic.Field(ge=-999, le=2000)


@pytest.mark.model
def test_a_real_model_writes_instances(real: ServerProcess) -> None:
    def chat(temperature: float) -> City | None:
        asked: Any = {"model": "ferrite-local", "messages": HI, "max_tokens": 64, "temperature": temperature}
        with client(real.url, timeout=MODEL_SECONDS) as sdk:
            answer = sdk.chat.completions.parse(**asked, seed=5, response_format=City)
            with sdk.chat.completions.stream(**asked, seed=5, response_format=City) as stream:
                assert stream.get_final_completion().choices[0].message.parsed == (
                    answer.choices[0].message.parsed
                )
        return answer.choices[0].message.parsed

    assert all(isinstance(each, City) for each in at_once(lambda: chat(0), lambda: chat(1.5)))
