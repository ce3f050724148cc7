"""Several answers to one prompt (``n``): seeds, order, interleaving, counting, limits."""

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from ferrite.engine import EngineConfig
from ferrite.program.step import StepBatch, StepError
from tests.api.reading import choices_of, chunks_of, plain_choices
from tests.api.support import (
    MODEL_ID,
    WAIT_SECONDS,
    Running,
    batching,
    chat_body,
    completion_body,
    eventually,
    gated_server,
    receive_until,
    running_server,
    send_raw,
)
from tests.engine.fakes import FakeRunner, FakeSampler, next_token

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
INT64_MAX = 2**63 - 1


class SeededRunner(FakeRunner):
    """At temperature 0 it samples a letter by the tokens before it, else by them and the seed."""

    def _sampled(self, history: tuple[int, ...], sampler: FakeSampler) -> int:
        if sampler.params.temperature == 0:
            return super()._sampled(history, sampler)
        seed = sampler.seed if sampler.params.seed is None else sampler.params.seed
        return next_token((seed % 1_000_003, *history))


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running_server(SeededRunner(n_blocks=4096, context_length=512), **batching(4, 4)) as running:
        yield running


@pytest.fixture(scope="module")
def http(server: Running) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def texts(client: httpx.Client, path: str, body: dict[str, Any]) -> list[str]:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    choices = plain_choices(answer.json())
    assert list(choices) == list(range(len(choices)))
    return [choice["text"] for choice in choices.values()]


SAMPLED = {"temperature": 1, "seed": 1, "max_tokens": 12}
BODIES = [(CHAT, chat_body(**SAMPLED)), (COMPLETIONS, completion_body(**SAMPLED))]


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_choices_differ_and_come_again(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    found = texts(http, path, {**body, "n": 3})
    assert len(set(found)) == 3
    assert texts(http, path, {**body, "n": 3}) == found
    # Each is the answer to a seed of its own, so the first is that of a request for one.
    alone = [texts(http, path, {**body, "seed": seed}) for seed in (1, 2, 3)]
    assert alone == [[text] for text in found]


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_choices_are_equal_at_temperature_0(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    assert len(set(texts(http, path, {**body, "temperature": 0, "n": 3}))) == 1


def test_choices_without_a_seed_differ(http: httpx.Client) -> None:
    assert len(set(texts(http, CHAT, chat_body(temperature=1, n=4)))) == 4


def test_the_largest_seed_wraps_around(http: httpx.Client) -> None:
    found = texts(http, COMPLETIONS, completion_body(**{**SAMPLED, "seed": INT64_MAX}, n=2))
    smallest = completion_body(**{**SAMPLED, "seed": -(2**63)})
    assert texts(http, COMPLETIONS, smallest) == found[1:]


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_streamed_choices_interleave_and_equal_the_plain_ones(
    http: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    body = {**body, "n": 3}
    chunks = chunks_of(http, path, {**body, "stream_options": {"include_usage": True}})
    whole = http.post(path, json=body).json()
    joined = choices_of(chunks)
    assert joined == plain_choices(whole)
    *others, last = chunks
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    assert all(chunk["usage"] is None and len(chunk["choices"]) == 1 for chunk in others)
    order = [chunk["choices"][0]["index"] for chunk in others]
    first_end = next(i for i, chunk in enumerate(others) if chunk["choices"][0]["finish_reason"])
    assert min(order[:first_end].count(index) for index in range(3)) > 6
    if path == CHAT:
        assert [chunk["choices"][0]["delta"].get("role") for chunk in others[:3]] == ["assistant"] * 3
        assert order[:3] == [0, 1, 2]


def test_the_prompts_come_one_behind_the_other(http: httpx.Client) -> None:
    body = completion_body(["first", "other one"], **SAMPLED, n=2)
    whole = http.post(COMPLETIONS, json=body).json()
    alone = [texts(http, COMPLETIONS, {**body, "prompt": prompt}) for prompt in ("first", "other one")]
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in whole["choices"]] == [*alone[0], *alone[1]]
    assert len(set(alone[0] + alone[1])) == 4
    # A prompt counts once, however many answers it has.
    assert whole["usage"]["prompt_tokens"] == len("first") + len("other one")
    assert whole["usage"]["completion_tokens"] == 4 * 12


def test_the_prompt_is_evaluated_once() -> None:
    with running_server(SeededRunner(n_blocks=4096), **batching(4, 4)) as running, running.client() as http:
        whole = http.post(COMPLETIONS, json=completion_body("x" * 100, **SAMPLED, n=4)).json()
        assert running.engine.batcher().prefill_tokens == whole["usage"]["prompt_tokens"] == 100
        (row,) = http.get("/v1/requests").json()["rows"]
        assert (row["prompt_tokens"], row["completion_tokens"]) == (100, 48)
        assert row["finish_reason"] == "length"
        assert next(iter(row)) == "sequence"


def test_each_choice_has_its_own_end() -> None:
    """A stop string that some choices meet."""
    with running_server(SeededRunner(n_blocks=4096), **batching(4, 4)) as running, running.client() as http:
        body = completion_body(**{**SAMPLED, "max_tokens": 16}, n=4)
        stop = texts(http, COMPLETIONS, body)[2][4:7]
        whole = http.post(COMPLETIONS, json={**body, "stop": stop}).json()
        reasons = [choice["finish_reason"] for choice in whole["choices"]]
        assert reasons[2] == "stop"
        assert len(whole["choices"][2]["text"]) == 4
        assert set(reasons) == {"stop", "length"}
        streamed = choices_of(chunks_of(http, COMPLETIONS, {**body, "stop": stop}))
        assert streamed == plain_choices(whole)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stream", [False, True])
def test_more_choices_than_streams_are_refused(http: httpx.Client, path: str, *, stream: bool) -> None:
    body = chat_body() if path == CHAT else completion_body()
    answer = http.post(path, json={**body, "n": 5, "stream": stream})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "n"
    assert error["message"] == "`n` is 5, the most is 4 (--max-batch-streams)."


def test_without_batching_the_permits_are_the_limit() -> None:
    config = EngineConfig(max_concurrent=2, inference_wait_seconds=WAIT_SECONDS)
    with (
        running_server(SeededRunner(), engine=config, max_concurrent_inferences=2) as running,
        running.client() as http,
    ):
        assert len(set(texts(http, CHAT, chat_body(**SAMPLED, n=2)))) == 2
        error = http.post(CHAT, json=chat_body(n=3)).json()["error"]
        assert error["message"] == "`n` is 3, the most is 2 (--max-concurrent-inferences)."


def test_token_ids_and_the_cache_trace_of_every_choice(http: httpx.Client) -> None:
    body = completion_body(**SAMPLED, n=2, return_token_ids=True, metadata={"ferrite_cache_trace": "true"})
    whole = http.post(COMPLETIONS, json=body).json()
    for choice in whole["choices"]:
        assert bytes(choice["token_ids"]).decode() == choice["text"]
    assert [trace["shared"] for trace in whole["ferrite_cache_trace"]] == [True, True]
    chunks = chunks_of(http, COMPLETIONS, body)
    assert choices_of(chunks) == plain_choices(whole)
    ends = [chunk for chunk in chunks if chunk["choices"][0]["finish_reason"]]
    assert all(chunk["ferrite_cache_trace"]["shared"] for chunk in ends)


def test_a_client_that_leaves_ends_every_choice() -> None:
    with gated_server(**batching(3, 1)) as (running, gate):
        with send_raw(running, CHAT, chat_body(max_tokens=400, n=3, stream=True)) as connection:
            for _ in range(3):
                gate.wait_until_reached()
                gate.pass_one()
            receive_until(connection, b'"content":"z"', 3)
            assert running.engine.active == 3
        gate.open()
        eventually(lambda: running.engine.active == 0)
        assert running.engine.batcher().aborted == 3
        with running.client() as client:
            (row,) = client.get("/v1/requests").json()["rows"]
            assert (row["cancelled"], row["streamed"]) == (True, True)


def test_a_group_waits_until_all_can_start() -> None:
    with gated_server(**batching(3, 1)) as (running, gate), running.client() as client:
        answers: list[httpx.Response] = []
        group = threading.Thread(target=lambda: answers.append(client.post(CHAT, json=chat_body(n=3))))
        with running.client() as other, other.stream("POST", CHAT, json=chat_body(stream=True)) as held:
            gate.wait_until_reached()
            group.start()
            eventually(lambda: running.engine.waiting == 1)
            with running.client() as third:
                assert third.post(CHAT, json=chat_body()).status_code == 429
            gate.open()
            held.read()
        group.join(WAIT_SECONDS)
        assert [len(answer.json()["choices"]) for answer in answers] == [3]


def test_a_failed_step_fails_the_whole_request() -> None:
    runner = SeededRunner(n_blocks=4096)

    def fail(_: StepBatch) -> None:
        if len(runner.batches) == 4:
            raise StepError("out of luck")

    runner.before_step = fail
    with running_server(runner, **batching(3, 1)) as running, running.client() as client:
        answer = client.post(CHAT, json=chat_body(**SAMPLED, n=3, stream=True))
        assert answer.text.count("event: error\n") == 1
        assert "[DONE]" not in answer.text
        eventually(lambda: running.engine.active == 0)
        assert client.post(CHAT, json=chat_body(**SAMPLED, n=3)).status_code == 200


def test_the_official_client_reads_every_choice(server: Running) -> None:
    with server.openai() as client:
        answer = client.chat.completions.create(
            model=MODEL_ID, messages=[{"role": "user", "content": "Hi"}], n=3, temperature=1, seed=1
        )
        assert len({choice.message.content for choice in answer.choices}) == 3
        stream = client.chat.completions.create(
            model=MODEL_ID,
            messages=[{"role": "user", "content": "Hi"}],
            n=3,
            temperature=1,
            seed=1,
            stream=True,
        )
        joined = ["", "", ""]
        for chunk in stream:
            joined[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        assert joined == [choice.message.content for choice in answer.choices]
