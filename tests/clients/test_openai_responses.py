"""The official client on ``/v1/responses``: its methods, its streaming helper, and its own event types."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pydantic
import pytest
from openai.types.responses import Response, ResponseStreamEvent

from ferrite.toolcalls import AnswerFormat, ReasoningMarks
from ferrite.toolcalls.families import GENERIC
from tests.api.support import MODEL_ID, WAIT_SECONDS, Running, Script, chat_body, running_server

TEXT = "Hello, wörld! 🦀 日本"
CALL = '<tool_call>\n{"name": "Weather", "arguments": {"city":"Oslo","days":-3}}\n</tool_call>'
EVENTS: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(ResponseStreamEvent)
OPTIONS: dict[str, Any] = {"default_max_tokens": 120}


class Weather(pydantic.BaseModel):
    """The weather of a city."""

    city: str
    days: int


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running_server(Script(TEXT).runner(context_length=512), **OPTIONS) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with server.openai() as client:
        yield client


def test_a_response(client: openai.OpenAI) -> None:
    response = client.responses.create(model=MODEL_ID, input="Hi", instructions="Be brief.")
    assert response.output_text == TEXT
    assert (response.status, response.object, response.model) == ("completed", "response", MODEL_ID)
    assert response.usage is not None
    assert response.usage.input_tokens == len("system:Be brief.;user:Hi;")
    assert response.usage.output_tokens == len(TEXT.encode()) + 1


def test_raw_answers_are_the_client_s_types_to_the_letter(server: Running) -> None:
    with server.client() as http:
        body = {"model": MODEL_ID, "input": "Hi"}
        Response.model_validate_json(http.post("/v1/responses", json=body).content, strict=True)
        lines = http.post("/v1/responses", json={**body, "stream": True}).text.splitlines()
        events = [EVENTS.validate_json(line[6:], strict=True) for line in lines if line.startswith("data: ")]
        assert [event.type for event in events[:4]] == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
        ]
        assert lines[-1] == ""
        assert "[DONE]" not in "".join(lines)


def test_a_stream(client: openai.OpenAI) -> None:
    events = list(client.responses.create(model=MODEL_ID, input="Hi", stream=True))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == TEXT
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == TEXT
    assert last.response.usage is not None


def test_the_streaming_helper(client: openai.OpenAI) -> None:
    with client.responses.stream(model=MODEL_ID, input="Hi") as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert snapshots[-1] == final.output_text == TEXT


def test_the_asynchronous_client(server: Running) -> None:
    async def run() -> tuple[str, str, str]:
        transport = openai.DefaultAsyncHttpxClient(trust_env=False, timeout=WAIT_SECONDS)
        url = f"{server.url}/v1"
        async with openai.AsyncOpenAI(
            base_url=url, api_key="none", max_retries=0, http_client=transport
        ) as client:
            whole = await client.responses.create(model=MODEL_ID, input="Hi")
            stream = await client.responses.create(model=MODEL_ID, input="Hi", stream=True)
            pieces = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            async with client.responses.stream(model=MODEL_ID, input="Hi") as helper:
                final = await helper.get_final_response()
        return whole.output_text, "".join(pieces), final.output_text

    assert asyncio.run(run()) == (TEXT, TEXT, TEXT)


def test_an_incomplete_response(client: openai.OpenAI) -> None:
    whole = client.responses.create(model=MODEL_ID, input="Hi", max_output_tokens=5)
    *_, last = client.responses.create(model=MODEL_ID, input="Hi", max_output_tokens=5, stream=True)
    assert last.type == "response.incomplete"
    for response in (whole, last.response):
        assert (response.status, response.output_text) == ("incomplete", "Hello")
        assert response.incomplete_details is not None
        assert response.incomplete_details.reason == "max_output_tokens"


def test_answers_are_parsed_into_models() -> None:
    text = '{"city":"Oslo","days":-3}'
    with running_server(Script(text).runner(), **OPTIONS) as running, running.openai() as client:
        parsed = client.responses.parse(model=MODEL_ID, input="Hi", text_format=Weather)
        assert parsed.output_parsed == Weather(city="Oslo", days=-3)
        with client.responses.stream(model=MODEL_ID, input="Hi", text_format=Weather) as stream:
            assert stream.get_final_response().output_parsed == Weather(city="Oslo", days=-3)
        again: list[Any] = [
            {"role": "user", "content": "Hi"},
            *parsed.output,
            {"role": "user", "content": "Go on"},
        ]
        client.responses.parse(model=MODEL_ID, input=again, text_format=Weather)
        assert [message.content for message in running.conversations.seen[-1]] == ["Hi", text, "Go on"]


def test_calls_are_parsed_and_replayed() -> None:
    with running_server(Script(CALL).runner(), **OPTIONS) as running, running.openai() as client:
        tool = openai.pydantic_function_tool(Weather)
        flat: Any = {"type": "function", **tool["function"]}
        parsed = client.responses.parse(
            model=MODEL_ID, input="Hi", tools=[flat], tool_choice={"type": "function", "name": "Weather"}
        )
        (call,) = parsed.output
        assert call.type == "function_call"
        assert call.parsed_arguments == {"city": "Oslo", "days": -3}
        with client.responses.stream(
            model=MODEL_ID, input="Hi", tools=[flat], tool_choice="required", parallel_tool_calls=False
        ) as stream:
            deltas = [e for e in stream if e.type == "response.function_call_arguments.delta"]
            (streamed,) = stream.get_final_response().output
        assert streamed.type == "function_call"
        assert deltas[-1].snapshot == streamed.arguments == call.arguments
        assert streamed.id is not None
        assert len({call.id, call.call_id, streamed.id, streamed.call_id}) == 4
        given: list[Any] = [
            {"role": "user", "content": "Hi"},
            *parsed.output,
            {"type": "function_call_output", "call_id": call.call_id, "output": "rain"},
        ]
        client.responses.create(model=MODEL_ID, input=given, tools=[flat], tool_choice="required")
        assert [message.role for message in running.conversations.seen[-1]] == ["user", "assistant", "tool"]


def test_reasoning_is_an_item_of_its_own_and_can_be_replayed() -> None:
    family = AnswerFormat(GENERIC, ReasoningMarks("<think>", "</think>"))
    runner = Script("<think>\nhm\n</think>\n\nYes.").runner()
    with running_server(runner, answer_format=family, **OPTIONS) as running, running.openai() as client:
        whole = client.responses.create(model=MODEL_ID, input="Hi")
        *_, last = client.responses.create(model=MODEL_ID, input="Hi", stream=True)
        assert last.type == "response.completed"
        for response in (whole, last.response):
            thought, _ = response.output
            assert thought.type == "reasoning"
            assert thought.content is not None
            assert [part.text for part in thought.content] == ["hm"]
            assert response.output_text == "Yes."
            assert response.usage is not None
            assert response.usage.output_tokens_details.reasoning_tokens == len("<think>\nhm\n</think>")
        again: list[Any] = [{"role": "user", "content": "Hi"}, *whole.output]
        client.responses.create(model=MODEL_ID, input=again)
        turn = running.conversations.seen[-1][-1]
        assert (turn.content, turn.reasoning_content) == ("Yes.", "hm")


def test_effort_reaches_a_template_that_reads_it() -> None:
    with running_server(Script("Yes.").runner(), **OPTIONS) as running, running.openai() as client:
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.create(model=MODEL_ID, input="Hi", reasoning={"effort": "high"})
        assert refused.value.param == "reasoning.effort"
        running.conversations.reads = frozenset({"reasoning_effort"})
        response = client.responses.create(model=MODEL_ID, input="Hi", reasoning={"effort": "high"})
        assert running.conversations.options[-1] == {"reasoning_effort": "high"}
        assert response.reasoning is not None
        assert response.reasoning.effort == "high"


LOGPROBS: Any = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}


def test_logprobs_are_those_of_the_chat(client: openai.OpenAI, server: Running) -> None:
    for stop in (None, "rl"):
        extra = {"stop": stop}
        whole = client.responses.create(model=MODEL_ID, input="Hi", extra_body=extra, **LOGPROBS)
        events = list(
            client.responses.create(model=MODEL_ID, input="Hi", stream=True, extra_body=extra, **LOGPROBS)
        )
        with server.client() as http:
            chat = http.post(
                "/v1/chat/completions", json=chat_body(logprobs=True, top_logprobs=2, stop=stop)
            ).json()
        (item,) = whole.output
        assert item.type == "message"
        assert item.content[0].type == "output_text"
        entries = [entry.to_dict() for entry in item.content[0].logprobs or []]
        assert entries == chat["choices"][0]["logprobs"]["content"]
        assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == whole.output_text
        assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
        streamed = [
            entry.to_dict()
            for event in events
            if event.type == "response.output_text.delta"
            for entry in event.logprobs
        ]
        assert streamed == entries
        done = next(event for event in events if event.type == "response.output_text.done")
        assert [entry.to_dict() for entry in done.logprobs] == entries


def test_logprobs_are_of_visible_tokens_only() -> None:
    with running_server(Script(f"Well. {CALL}").runner(), **OPTIONS) as running, running.openai() as client:
        flat: Any = {"type": "function", "name": "Weather", "parameters": {"type": "object"}}
        response = client.responses.create(model=MODEL_ID, input="Hi", tools=[flat], **LOGPROBS)
        said, call = response.output
        assert said.type == "message"
        assert call.type == "function_call"
        assert said.content[0].type == "output_text"
        seen = b"".join(bytes(entry.bytes) for entry in said.content[0].logprobs or [])
        assert seen.decode().strip() == said.content[0].text.strip() == "Well."


def test_an_error_in_a_stream_is_raised(server: Running) -> None:
    runner = Script("z", endless=True).runner()

    def fail(_: object) -> None:
        if len(runner.batches) > 3:
            raise RuntimeError("the step broke")

    runner.before_step = fail
    with running_server(runner) as running, running.openai() as client:
        stream = client.responses.create(model=MODEL_ID, input="Hi", stream=True)
        with pytest.raises(openai.APIError, match="ended the generation"):
            list(stream)


def test_refusals_are_the_client_s_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=MODEL_ID, input="Hi", previous_response_id="resp_1")
    assert refused.value.param == "previous_response_id"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_1")


def test_a_client_that_leaves_frees_its_place(server: Running) -> None:
    runner = Script("z", endless=True).runner()
    with running_server(runner, hard_max_tokens=400) as running, running.client() as http:
        body = {"model": MODEL_ID, "input": "Hi", "max_output_tokens": 400, "stream": True}
        with http.stream("POST", "/v1/responses", json=body) as answer:
            next(answer.iter_lines())
        again: httpx.Response = http.post(
            "/v1/responses", json={**body, "max_output_tokens": 1, "stream": False}
        )
        assert json.loads(again.content)["status"] == "incomplete"
