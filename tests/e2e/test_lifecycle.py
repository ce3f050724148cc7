"""Clients that leave, servers that end, and the models that need a server of their own."""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.process import QUESTION, ServerProcess, eventually, ferrite_server

pytestmark = pytest.mark.model

ENDLESS: dict[str, Any] = {
    "model": "ferrite-local",
    "prompt": "Once upon a time",
    "max_tokens": 8000,
    "logit_bias": {"0": -100, "2": -100},
}
"""Takes longer than any test waits."""
SHORT = {"model": "ferrite-local", "prompt": "Hello", "max_tokens": 1}


@pytest.fixture(scope="module")
def one_permit(smollm2_path: Path) -> Iterator[ServerProcess]:
    with ferrite_server(smollm2_path, "--hard-max-tokens", "8000") as running:
        yield running


def status(client: httpx.Client) -> int:
    return client.post("/v1/completions", json=SHORT).status_code


def test_a_busy_server_says_so_until_the_client_leaves(one_permit: ServerProcess) -> None:
    with one_permit.http() as client:
        with client.stream("POST", "/v1/completions", json={**ENDLESS, "stream": True}) as held:
            lines = held.iter_lines()
            for _ in range(6):
                next(lines)
            for stream in (False, True):
                refused = client.post("/v1/completions", json={**SHORT, "stream": stream})
                assert refused.status_code == 429
                assert refused.headers["content-type"] == "application/json"
                assert refused.json()["error"]["type"] == "rate_limit_error"
                assert int(refused.headers["retry-after"]) >= 1
            assert client.get("/health").json()["ready"] is True
        eventually(lambda: status(client) == 200)


@pytest.mark.parametrize("prompt", ["Once upon a time", [1000] * 6000], ids=["decoding", "prefilling"])
def test_a_client_that_leaves_before_any_text_frees_its_permit(
    one_permit: ServerProcess, prompt: Any
) -> None:
    body = {**ENDLESS, "prompt": prompt, "max_tokens": 2000}
    with one_permit.http() as client:
        with contextlib.suppress(httpx.ReadTimeout):
            client.post("/v1/completions", json=body, timeout=httpx.Timeout(60, read=1))
            pytest.fail("the generation ended")
        eventually(lambda: status(client) == 200)


def test_other_routes_answer_during_a_prefill(one_permit: ServerProcess) -> None:
    with one_permit.http() as busy, one_permit.http() as client:
        body = {**SHORT, "prompt": [1000] * 8000, "stream": True}
        # The headers of a stream come with the permit, the first text behind the prefill.
        with busy.stream("POST", "/v1/completions", json=body) as prefilling:
            for _ in range(3):
                assert client.get("/health").json()["ready"] is True
                assert client.get("/v1/models").status_code == 200
            # It is still prefilling: the permit is taken.
            assert status(client) == 429
            assert prefilling.status_code == 200
        eventually(lambda: status(client) == 200)


def test_a_drain_lets_a_stream_end(smollm2_path: Path) -> None:
    with ferrite_server(smollm2_path) as server, server.http() as client:
        body = {**ENDLESS, "max_tokens": 200, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as held:
            lines = held.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            eventually(lambda: client.get("/health").json()["reason"] == "draining")
            assert status(client) == 503
            assert list(lines)[-2:] == ["data: [DONE]", ""]
        assert server.process.wait(60) == 0


def test_the_seed_s_command(qwen_path: Path) -> None:
    model = "qwen2.5-0.5b-q4_k_m"
    arguments = (
        "--model-id", model, "--default-max-tokens", "32", "--hard-max-tokens", "256",
        "--inference-wait-ms", "30000",
    )  # fmt: skip
    with ferrite_server(qwen_path, *arguments) as server, server.openai() as client:
        whole = client.chat.completions.create(model=model, messages=QUESTION)
        assert whole.choices[0].message.content is not None
        assert "Paris" in whole.choices[0].message.content
        stream = client.chat.completions.create(model=model, messages=QUESTION, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert text == whole.choices[0].message.content
        anonymous = httpx.get(f"{server.url}/v1/models", trust_env=False, verify=False)
        assert anonymous.status_code == 401


def test_a_model_without_a_template_ends_its_turn(gemma_path: Path) -> None:
    with ferrite_server(gemma_path) as server, server.http() as client:
        assert "has no chat template" in server.log
        body = {"model": "ferrite-local", "messages": QUESTION, "max_tokens": 64}
        answer = client.post("/v1/chat/completions", json=body).json()["choices"][0]
        assert "Paris" in answer["message"]["content"]
        assert "User:" not in answer["message"]["content"]
        assert answer["finish_reason"] == "stop"
