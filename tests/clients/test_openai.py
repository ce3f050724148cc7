"""The official client, as applications use it: async, stream helpers, raw answers, retries and errors."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai._models import FinalRequestOptions
from openai.types.chat import ChatCompletionMessageParam

from tests.api.support import (
    MODEL_ID,
    Running,
    ServerProcess,
    batching,
    eventually,
    gated_server,
    running_server,
)
from tests.clients.support import API_KEY, HI, QUESTION, TEXT, async_client, client


@pytest.fixture(scope="module")
def sdk(scripted: Running) -> Iterator[openai.OpenAI]:
    with client(scripted.url) as made:
        yield made


def test_async_answers_and_streams_are_the_same(scripted: Running) -> None:
    async def ask() -> tuple[str | None, str, str]:
        async with async_client(scripted.url) as sdk:
            whole = await sdk.chat.completions.create(model=MODEL_ID, messages=HI)
            stream = await sdk.chat.completions.create(model=MODEL_ID, messages=HI, stream=True)
            streamed = [chunk.choices[0].delta.content or "" async for chunk in stream]
            completion = await sdk.completions.create(model=MODEL_ID, prompt="Hi")
            return whole.choices[0].message.content, "".join(streamed), completion.choices[0].text

    assert asyncio.run(ask()) == (TEXT, TEXT, TEXT)


def test_many_async_requests_at_once(scripted: Running) -> None:
    async def ask_all() -> list[str | None]:
        async with async_client(scripted.url) as sdk:
            asked = [sdk.chat.completions.create(model=MODEL_ID, messages=HI) for _ in range(16)]
            return [answer.choices[0].message.content for answer in await asyncio.gather(*asked)]

    assert asyncio.run(ask_all()) == [TEXT] * 16


def test_the_stream_helper_accumulates_the_answer(sdk: openai.OpenAI) -> None:
    with sdk.chat.completions.stream(
        model=MODEL_ID, messages=HI, stream_options={"include_usage": True}
    ) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content == TEXT
    assert final.choices[0].finish_reason == "stop"
    whole = sdk.chat.completions.create(model=MODEL_ID, messages=HI)
    assert final.usage is not None
    assert final.usage.model_dump() == (whole.usage.model_dump() if whole.usage else None)


def test_the_async_stream_helper(scripted: Running) -> None:
    async def ask() -> str | None:
        async with (
            async_client(scripted.url) as sdk,
            sdk.chat.completions.stream(model=MODEL_ID, messages=HI) as stream,
        ):
            return (await stream.get_final_completion()).choices[0].message.content

    assert asyncio.run(ask()) == TEXT


def test_a_request_can_be_found_by_its_id(sdk: openai.OpenAI) -> None:
    mine = {"X-Request-ID": "mine-1"}
    raw = sdk.chat.completions.with_raw_response.create(model=MODEL_ID, messages=HI, extra_headers=mine)
    assert raw.headers["x-request-id"] == raw.request_id == raw.parse()._request_id == "mine-1"
    theirs = sdk.completions.create(model=MODEL_ID, prompt="a")
    assert (theirs._request_id or "").startswith("req-")
    first = next(iter(sdk.chat.completions.create(model=MODEL_ID, messages=HI, stream=True)))
    assert first.model_extra is not None
    assert first.model_extra["request_id"].startswith("req-")


def test_lines_of_a_streaming_response(sdk: openai.OpenAI) -> None:
    with sdk.chat.completions.with_streaming_response.create(
        model=MODEL_ID, messages=HI, stream=True
    ) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"


def test_raw_and_streaming_responses_of_the_async_client(scripted: Running) -> None:
    async def ask() -> tuple[list[str], str, str | None]:
        async with async_client(scripted.url) as sdk:
            raw = await sdk.responses.with_raw_response.create(
                model=MODEL_ID, input="Hi", extra_headers={"x-request-id": "mine-2"}
            )
            made = sdk.chat.completions.with_streaming_response.create(model=MODEL_ID, messages=HI)
            async with made as answer:
                body: Any = await answer.json()
            ids = [raw.headers["x-request-id"], raw.parse()._request_id or ""]
            return ids, body["choices"][0]["message"]["content"], answer.request_id

    ids, text, request_id = asyncio.run(ask())
    assert (ids, text) == (["mine-2", "mine-2"], TEXT)
    assert (request_id or "").startswith("req-")


def test_models_are_listed_on_one_page_and_found(sdk: openai.OpenAI) -> None:
    page = sdk.models.list()
    assert [model.id for model in page] == [MODEL_ID]
    assert not page.has_next_page()
    assert sdk.models.retrieve(MODEL_ID) == page.data[0]


def test_the_stream_helper_tells_how_likely_tokens_were(sdk: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL_ID, "messages": HI, "logprobs": True, "top_logprobs": 1}
    with sdk.chat.completions.stream(**asked) as stream:
        kinds = {event.type: event for event in stream}
    whole = sdk.chat.completions.create(**asked).choices[0].logprobs
    assert whole is not None
    done = kinds["logprobs.content.done"]
    assert done.type == "logprobs.content.done"
    assert done.content == whole.content


def test_routes_without_a_method_are_reached_by_post(sdk: openai.OpenAI) -> None:
    body = {"model": MODEL_ID, "messages": HI}
    counted = sdk.post("/tokenize", body=body, cast_to=dict[str, Any])
    usage = sdk.chat.completions.create(model=MODEL_ID, messages=HI).usage
    assert usage is not None
    assert counted["count"] == usage.prompt_tokens


def test_a_wrong_value_is_a_bad_request_with_its_path(sdk: openai.OpenAI) -> None:
    odd: Any = {"role": "user", "content": "a", "opts": {}}
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.chat.completions.create(model=MODEL_ID, messages=[odd])
    error = caught.value
    assert (error.status_code, error.param, error.code) == (400, "messages[0].opts", "unknown_field")
    assert error.type == "invalid_request_error"
    assert "messages[0].opts" in error.message
    assert (error.request_id or "").startswith("req-")


def test_the_right_class_for_every_refusal(scripted: Running, sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        sdk.completions.create(model="other", prompt="a")
    assert missing.value.code == "model_not_found"
    with (
        client(scripted.url, api_key="wrong") as stranger,
        pytest.raises(openai.AuthenticationError) as locked,
    ):
        stranger.models.list()
    assert (locked.value.status_code, locked.value.code) == (401, "invalid_api_key")
    with pytest.raises(openai.APIStatusError) as large:
        sdk.completions.create(model=MODEL_ID, prompt="a" * 2**21)
    assert (large.value.status_code, large.value.code) == (413, "request_too_large")
    with pytest.raises(openai.NotFoundError) as unknown:
        sdk.get("/nope", cast_to=object)
    assert unknown.value.code == "unknown_route"
    with pytest.raises(openai.BadRequestError) as long:
        sdk.completions.create(model=MODEL_ID, prompt="a" * 3000)
    assert (long.value.code, long.value.param) == ("context_length_exceeded", "prompt")


def test_what_is_not_done_is_not_asked_again(scripted: Running) -> None:
    asked: list[str] = []
    http_client = openai.DefaultHttpxClient(
        trust_env=False, verify=False, event_hooks={"request": [lambda sent: asked.append(sent.url.path)]}
    )
    with (
        openai.OpenAI(
            base_url=f"{scripted.url}/v1", api_key=API_KEY, max_retries=2, http_client=http_client
        ) as sdk,
        pytest.raises(openai.InternalServerError) as caught,
    ):
        sdk.embeddings.create(model=MODEL_ID, input="a")
    assert (caught.value.status_code, caught.value.code) == (501, "not_implemented")
    assert asked == ["/v1/embeddings"]


class Patient(openai.OpenAI):
    """The client with many tries, which notes what it heard and how long it waits."""

    def __init__(self, url: str) -> None:
        self.heard: list[int] = []
        self.waits: list[tuple[float, str | None]] = []
        hooks: Any = {"response": [lambda answer: self.on_answer(answer.status_code)]}
        http_client = openai.DefaultHttpxClient(trust_env=False, verify=False, event_hooks=hooks)
        super().__init__(base_url=f"{url}/v1", api_key="none", max_retries=9, http_client=http_client)

    def on_answer(self, status: int) -> None:
        self.heard.append(status)

    def _calculate_retry_timeout(
        self, remaining_retries: int, options: FinalRequestOptions, response_headers: Any = None
    ) -> float:
        seconds = super()._calculate_retry_timeout(remaining_retries, options, response_headers)
        self.waits.append((seconds, response_headers and response_headers.get("retry-after")))
        return seconds


def test_a_server_without_a_model_is_asked_again_until_it_has_one() -> None:
    with (
        running_server(default_max_tokens=64) as running,
        client(running.url) as sdk,
        Patient(running.url) as patient,
    ):
        loaded, running.state.model = running.state.model, None
        with pytest.raises(openai.InternalServerError) as caught:
            sdk.completions.create(model=MODEL_ID, prompt="a")
        assert (caught.value.status_code, caught.value.code) == (503, "not_ready")

        def load(status: int) -> None:
            patient.heard.append(status)
            running.state.model = loaded

        patient.on_answer = load  # type: ignore[method-assign]
        assert patient.completions.create(model=MODEL_ID, prompt="a").choices[0].finish_reason == "stop"
        assert patient.heard == [503, 200]


def test_a_full_server_is_a_rate_limit_and_the_client_comes_back_when_told() -> None:
    with gated_server(**batching(1, 0)) as (running, gate), client(running.url) as sdk:
        stream = sdk.completions.create(model=MODEL_ID, prompt="a", max_tokens=400, stream=True)
        gate.wait_until_reached()
        with pytest.raises(openai.RateLimitError) as caught:
            sdk.completions.create(model=MODEL_ID, prompt="b")
        assert (caught.value.status_code, caught.value.code) == (429, "rate_limit_exceeded")
        assert int(caught.value.response.headers["retry-after"]) >= 1
        with Patient(running.url) as patient:
            texts: list[str] = []
            worker = threading.Thread(
                target=lambda: texts.append(
                    patient.completions.create(model=MODEL_ID, prompt="b", max_tokens=3).choices[0].text
                )
            )
            worker.start()
            eventually(lambda: 429 in patient.heard)
            stream.close()
            gate.open()
            worker.join()
            assert texts == ["zzz"]
            assert patient.heard[-1] == 200
            assert all(str(int(seconds)) == told for seconds, told in patient.waits)


def test_a_closed_stream_ends_the_generation() -> None:
    with gated_server() as (running, gate), client(running.url) as sdk:
        stream = sdk.chat.completions.create(model=MODEL_ID, messages=HI, max_tokens=400, stream=True)
        gate.wait_until_reached()
        assert running.engine.active == 1
        stream.close()
        gate.open()
        eventually(lambda: running.engine.active == 0)


def test_closed_streams_of_every_route_end_their_generations() -> None:
    with gated_server(**batching(4, 0)) as (running, gate), client(running.url) as sdk:
        streams: list[Any] = [
            sdk.completions.create(model=MODEL_ID, prompt="a", max_tokens=400, stream=True),
            sdk.responses.create(model=MODEL_ID, input="a", max_output_tokens=400, stream=True),
        ]
        with (
            sdk.chat.completions.stream(model=MODEL_ID, messages=HI, max_tokens=400),
            sdk.responses.stream(model=MODEL_ID, input="a", max_output_tokens=400),
        ):
            eventually(lambda: running.engine.active == 4)
        for stream in streams:
            stream.close()
        gate.open()
        eventually(lambda: running.engine.active == 0)


def test_a_cancelled_task_ends_its_generation() -> None:
    async def ask(url: str, active: threading.Event) -> None:
        async with async_client(url) as sdk:
            task = asyncio.create_task(
                sdk.chat.completions.create(model=MODEL_ID, messages=HI, max_tokens=400)
            )
            while not active.is_set():
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    with gated_server() as (running, gate):
        active = threading.Event()
        asker = threading.Thread(target=lambda: asyncio.run(ask(running.url, active)))
        asker.start()
        eventually(lambda: running.engine.active == 1)
        active.set()
        asker.join()
        gate.open()
        eventually(lambda: running.engine.active == 0)


def test_a_client_s_timeout_ends_the_generation() -> None:
    with gated_server() as (running, gate), client(running.url) as sdk:
        with pytest.raises(openai.APITimeoutError):
            sdk.with_options(timeout=0.2).chat.completions.create(model=MODEL_ID, messages=HI)
        gate.open()
        eventually(lambda: running.engine.active == 0)


def test_a_stream_that_fails_raises() -> None:
    with gated_server(request_timeout_ms=300) as (running, gate), client(running.url) as sdk:
        stream = sdk.chat.completions.create(model=MODEL_ID, messages=HI, max_tokens=400, stream=True)
        gate.pass_one()
        with pytest.raises(openai.APIError) as caught:
            for _ in stream:
                pass
        assert caught.value.code == "request_timeout"


@pytest.mark.model
def test_a_conversation_on_a_real_model(real: ServerProcess) -> None:
    with client(real.url) as sdk:
        model = sdk.models.list().data[0].id
        whole = sdk.chat.completions.create(model=model, messages=QUESTION)
        said = whole.choices[0].message
        assert "Paris" in (said.content or "")
        with sdk.chat.completions.stream(model=model, messages=QUESTION) as stream:
            assert stream.get_final_completion().choices[0].message.content == said.content
        history: list[ChatCompletionMessageParam] = [
            *QUESTION,
            {"role": "assistant", "content": said.content},
            *HI,
        ]
        counted = sdk.post("/tokenize", body={"model": model, "messages": history}, cast_to=dict[str, Any])
        again = sdk.chat.completions.create(model=model, messages=history, max_tokens=4)
        assert again.usage is not None
        assert again.usage.prompt_tokens == counted["count"]


@pytest.mark.model
def test_concurrent_answers_of_a_real_model_are_those_of_one_at_a_time(real: ServerProcess) -> None:
    prompts = ["Paris is", "Two and two", "The sea", "A cat"]

    async def ask(*, together: bool) -> list[str]:
        async with async_client(real.url) as sdk:
            asked = [
                sdk.completions.create(
                    model="ferrite-local", prompt=prompt, max_tokens=8, temperature=1, seed=7
                )
                for prompt in prompts
            ]
            answers = await asyncio.gather(*asked) if together else [await each for each in asked]
            return [answer.choices[0].text for answer in answers]

    assert asyncio.run(ask(together=True)) == asyncio.run(ask(together=False))
