"""Streams as bytes: usage, errors in the middle, overload, time limits, and clients that leave."""

import asyncio
import json
import threading
from collections.abc import Iterator, MutableMapping
from typing import Any

import httpx
import openai
import pytest

from ferrite.api.body import ClientGone
from ferrite.api.streams import Reply, run_while_connected
from ferrite.engine import EngineConfig
from ferrite.program.step import StepBatch, StepError
from tests.api.support import (
    MODEL_ID,
    WAIT_SECONDS,
    Script,
    chat_body,
    completion_body,
    eventually,
    gated_server,
    running_server,
)
from tests.engine.fakes import FakeRunner

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODIES = [(CHAT, chat_body()), (COMPLETIONS, completion_body())]


def data_lines(text: str) -> list[str]:
    blocks = text.removesuffix("\n\n").split("\n\n")
    return [block.removeprefix("data: ") for block in blocks]


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with running_server(Script("Hi").runner()) as running, running.client() as client:
        yield client


@pytest.mark.parametrize(("path", "body"), BODIES)
@pytest.mark.parametrize("options", [None, {}, {"include_usage": None}, {"include_usage": False}])
def test_usage_is_not_sent_unasked(http: httpx.Client, path: str, body: dict[str, Any], options: Any) -> None:
    answer = http.post(path, json={**body, "stream": True, "stream_options": options})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    *chunks, end = data_lines(answer.text)
    assert end == "[DONE]"
    assert all(len(json.loads(chunk)["choices"]) == 1 for chunk in chunks)
    assert all("usage" not in json.loads(chunk) for chunk in chunks)


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_usage_comes_once_between_the_finish_reason_and_the_end(
    http: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *lines, end = data_lines(http.post(path, json={**body, **options}).text)
    *chunks, usage = map(json.loads, lines)
    assert end == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"] == http.post(path, json=body).json()["usage"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert all(chunk["usage"] is None for chunk in chunks)


def test_the_chunks_of_a_chat(http: httpx.Client) -> None:
    *lines, _ = data_lines(http.post(CHAT, json=chat_body(stream=True)).text)
    chunks = [json.loads(line) for line in lines]
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "H"},
        {"content": "i"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert {chunk["model"] for chunk in chunks} == {MODEL_ID}


WRONG: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"temperature": 999999}, "temperature"),
    (CHAT, {"n": 0}, "n"),
    (CHAT, {"logit_bias": {"9999999": 5}}, "logit_bias.9999999"),
    (COMPLETIONS, {"repetition_penalty": 0}, "repetition_penalty"),
    (COMPLETIONS, {"prompt": [9999999]}, "prompt[0]"),
    (COMPLETIONS, {"logprobs": 21}, "logprobs"),
]


def test_refusals_do_not_disturb_a_stream() -> None:
    with (
        gated_server() as (running, gate),
        running.client() as client,
        running.client() as other,
        client.stream("POST", CHAT, json=chat_body(stream=True, max_tokens=9)) as held,
    ):
        for path, fields, param in WRONG:
            gate.wait_until_reached()
            gate.pass_one()
            body = chat_body() if path == CHAT else completion_body()
            refused = other.post(path, json={**body, **fields, "stream": True})
            assert refused.status_code == 400
            assert refused.headers["content-type"] == "application/json"
            assert refused.json()["error"]["param"] == param
        gate.open()
        assert held.read().count(b'"content":"z"') == 9


def failing_after(steps: int) -> FakeRunner:
    runner = Script("abcdefgh").runner()

    def fail(batch: StepBatch) -> None:
        if len(runner.batches) == steps:
            raise StepError("out of luck")

    runner.before_step = fail
    return runner


def test_a_failed_step_ends_a_stream_with_an_error_event() -> None:
    with running_server(failing_after(3)) as running, running.client() as client:
        answer = client.post(CHAT, json=chat_body(stream=True))
        assert answer.status_code == 200
        *_, event = answer.text.removesuffix("\n\n").split("\n\n")
        name, data = event.split("\n")
        assert name == "event: error"
        error = json.loads(data.removeprefix("data: "))["error"]
        assert (error["type"], error["param"]) == ("server_error", None)
        assert "[DONE]" not in answer.text
        assert client.post(CHAT, json=chat_body(stream=True)).text.endswith("data: [DONE]\n\n")


def test_a_failed_step_is_an_exception_of_the_official_client() -> None:
    with running_server(failing_after(3)) as running, running.openai() as client:
        stream = client.completions.create(model=MODEL_ID, prompt="a", stream=True)
        with pytest.raises(openai.APIError, match="step failed"):
            list(stream)


def test_a_failed_step_without_a_stream_is_a_500() -> None:
    with running_server(failing_after(3)) as running, running.client() as client:
        answer = client.post(CHAT, json=chat_body())
        assert answer.status_code == 500
        assert answer.json()["error"]["type"] == "server_error"
        assert client.post(CHAT, json=chat_body()).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), BODIES)
def test_overload_is_429_at_once(path: str, body: dict[str, Any], *, stream: bool) -> None:
    with (
        gated_server(engine=EngineConfig()) as (running, gate),
        running.client() as client,
        client.stream("POST", CHAT, json=chat_body(stream=True)) as held,
    ):
        gate.wait_until_reached()
        refused = client.post(path, json={**body, "stream": stream})
        assert refused.status_code == 429
        assert refused.headers["content-type"] == "application/json"
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert int(refused.headers["retry-after"]) >= 1
        assert client.get("/health").json()["ready"] is True
        gate.open()
        assert held.read().endswith(b"data: [DONE]\n\n")


def test_a_request_waits_for_its_permit() -> None:
    with gated_server() as (running, gate), running.client() as client:
        answers: list[httpx.Response] = []
        waiting = threading.Thread(target=lambda: answers.append(client.post(CHAT, json=chat_body())))
        with client.stream("POST", CHAT, json=chat_body(stream=True)) as held:
            gate.wait_until_reached()
            waiting.start()
            gate.open()
            held.read()
        waiting.join(WAIT_SECONDS)
        assert [answer.status_code for answer in answers] == [200]


@pytest.mark.parametrize("stream", [False, True])
def test_a_time_limit_ends_a_request(*, stream: bool) -> None:
    with gated_server(request_timeout_ms=100) as (running, gate), running.client() as client:
        answer = client.post(CHAT, json=chat_body(stream=stream))
        if stream:
            assert answer.status_code == 200
            error = json.loads(answer.text.rpartition("data: ")[2])["error"]
        else:
            assert answer.status_code == 504
            error = answer.json()["error"]
        assert error["code"] == "request_timeout"
        assert "--request-timeout-ms" in error["message"]
        gate.open()
        eventually(lambda: running.engine._unfinished == set())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("steps_before", [0, 3], ids=["prefill", "decode"])
def test_a_client_that_leaves_stops_its_generation(*, stream: bool, steps_before: int) -> None:
    with gated_server() as (running, gate):
        leaving = threading.Event()

        async def call_and_leave() -> None:
            async with httpx.AsyncClient(trust_env=False, verify=False) as client:
                call = asyncio.create_task(
                    client.post(f"{running.url}{CHAT}", json=chat_body(stream=stream, max_tokens=400))
                )
                await asyncio.to_thread(leaving.wait, WAIT_SECONDS)
                call.cancel()
                await asyncio.wait([call])

        client = threading.Thread(target=lambda: asyncio.run(call_and_leave()))
        client.start()
        for _ in range(steps_before):
            gate.wait_until_reached()
            gate.pass_one()
        gate.wait_until_reached()
        leaving.set()
        client.join(WAIT_SECONDS)
        (ticket,) = running.engine._unfinished
        eventually(lambda: ticket.channel.cancelled)
        gate.pass_one()
        eventually(lambda: running.engine._unfinished == set())
        assert len(running.runner.batches) == steps_before + 1
        gate.open()
        with running.client() as next_client:
            assert next_client.post(CHAT, json=chat_body()).status_code == 200


def test_a_client_that_leaves_the_waiting_line_never_runs() -> None:
    with gated_server() as (running, gate), running.client() as client:
        with client.stream("POST", CHAT, json=chat_body(stream=True)) as held:
            gate.wait_until_reached()
            with pytest.raises(httpx.ReadTimeout):
                client.post(CHAT, json=chat_body("never"), timeout=0.2)
            eventually(lambda: len(running.engine._unfinished) == 1)
            gate.open()
            held.read()
        assert len(running.runner.samplers) == 1


def test_one_slow_stream_does_not_stop_the_others() -> None:
    with (
        running_server(
            Script("z", endless=True).runner(), engine=EngineConfig(max_concurrent=2), hard_max_tokens=400
        ) as running,
        running.client() as client,
        client.stream("POST", CHAT, json=chat_body(stream=True)),
    ):
        assert client.post(CHAT, json=chat_body(max_tokens=400)).status_code == 200
        assert client.get("/health").status_code == 200


def test_a_server_that_raises_for_a_lost_client_is_understood() -> None:
    sent: list[str] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message["type"])
        raise OSError("connection lost")

    with pytest.raises(ClientGone):
        asyncio.run(Reply(send).send_events([]))
    assert sent == ["http.response.start"]


def test_work_is_cancelled_when_the_connection_closes() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("work")

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    with pytest.raises(ClientGone):
        asyncio.run(run_while_connected(receive, work()))
    assert ended == ["work"]


def test_the_watcher_ends_with_the_work() -> None:
    watching: list[str] = []

    async def work() -> None:
        await asyncio.sleep(0)

    async def receive() -> dict[str, Any]:
        try:
            await asyncio.Event().wait()
        finally:
            watching.append("ended")
        raise AssertionError

    asyncio.run(run_while_connected(receive, work()))
    assert watching == ["ended"]
