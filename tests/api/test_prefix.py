"""The prefix cache through HTTP: keys, truthful counts, traces, and limits that hold."""

import json
from typing import Any

import httpx
import pytest

from tests.api.support import (
    Running,
    Script,
    chat_body,
    completion_body,
    prefix_cache,
    running_server,
)
from tests.engine.fakes import FakeRunner

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TRACED = {"metadata": {"ferrite_cache_trace": "true"}}
ROUTES = [(CHAT, chat_body("Hi " * 40)), (COMPLETIONS, completion_body("Hi " * 40))]


def runner() -> FakeRunner:
    return Script("Hello").runner(context_length=2048, block_bytes=1 << 16)


def cached(client: httpx.Client, path: str, body: dict[str, Any]) -> int:
    answer = client.post(path, json=body)
    assert answer.status_code == 200
    usage = answer.json()["usage"]
    assert usage["prompt_tokens"] > usage["prompt_tokens_details"]["cached_tokens"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])


def chunks(client: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    lines = client.post(path, json={**body, **options}).text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_a_second_request_with_the_key_is_served_from_the_cache(path: str, body: dict[str, Any]) -> None:
    with running_server(runner(), **prefix_cache()) as running, running.client() as client:
        keyed = {**body, "prompt_cache_key": "k"}
        assert cached(client, path, keyed) == 0
        plain = client.post(path, json=body).json()
        whole = client.post(path, json=keyed).json()
        n_prompt = whole["usage"]["prompt_tokens"]
        assert whole["usage"]["prompt_tokens_details"]["cached_tokens"] == n_prompt - 1
        assert plain["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert plain["choices"] == whole["choices"]
        assert chunks(client, path, keyed)[-1]["usage"] == whole["usage"]
        assert cached(client, path, {**body, "prompt_cache_key": "other"}) == 0
        assert cached(client, path, {**body, "prompt_cache_key": ""}) == 0
        newest = client.get("/v1/requests").json()["rows"][-3]
        assert (newest["prompt_tokens"], newest["cached_tokens"]) == (n_prompt, n_prompt - 1)


def test_every_turn_of_a_chat_continues_the_one_before() -> None:
    with running_server(runner(), **prefix_cache()) as running, running.client() as client:
        messages: list[dict[str, str]] = [{"role": "user", "content": "first question"}]
        before = 0
        for turn in range(4):
            answer = client.post(CHAT, json={**chat_body(prompt_cache_key="k"), "messages": messages}).json()
            usage = answer["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] >= before
            assert (usage["prompt_tokens_details"]["cached_tokens"] > 0) == (turn > 0)
            before = usage["prompt_tokens"]
            messages += [answer["choices"][0]["message"], {"role": "user", "content": f"question {turn}"}]
        prefix = client.get("/v1/stats").json()["prefix_cache"]
        assert (prefix["hits"], prefix["misses"]) == (3, 1)
        prefilled = client.get("/admin/stats").json()["batcher"]["prefill_tokens"]
        assert prefilled + prefix["reused_tokens"] == client.get("/v1/stats").json()["prompt_tokens_total"]


def test_without_the_option_a_key_changes_nothing() -> None:
    with running_server(runner()) as running, running.client() as client:
        for path, body in ROUTES:
            for _ in range(2):
                keyed = {**body, **TRACED, "prompt_cache_key": "k"}
                answer = client.post(path, json=keyed).json()
                assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
                assert answer["ferrite_cache_trace"] == {
                    "outcome": "disabled",
                    "cached_tokens": 0,
                    "entry_tokens": 0,
                    "shared": False,
                    "stored": False,
                    "identity": "",
                    "key_given": True,
                }
        assert client.get("/v1/stats").json()["prefix_cache"] is None
        assert client.get("/admin/stats").json()["prefix_cache"] is None


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_a_trace_tells_what_the_cache_did(path: str, body: dict[str, Any]) -> None:
    with running_server(runner(), **prefix_cache()) as running, running.client() as client:
        keyed = {**body, **TRACED, "prompt_cache_key": "k"}
        first = client.post(path, json=keyed).json()
        n_prompt, n_completion = (first["usage"][name] for name in ("prompt_tokens", "completion_tokens"))
        miss = {
            "outcome": "miss",
            "cached_tokens": 0,
            "entry_tokens": 0,
            "shared": False,
            "stored": True,
            "identity": "0123abcd",
            "key_given": True,
        }
        assert first["ferrite_cache_trace"] == miss
        # The last sampled token is never computed.
        hit = {
            **miss,
            "outcome": "hit",
            "cached_tokens": n_prompt - 1,
            "entry_tokens": n_prompt + n_completion - 1,
        }
        streamed = chunks(client, path, keyed)
        assert [chunk.get("ferrite_cache_trace") for chunk in streamed if "ferrite_cache_trace" in chunk] == [
            hit
        ]
        (marked,) = (chunk for chunk in streamed if "ferrite_cache_trace" in chunk)
        assert marked["choices"][0]["finish_reason"] == "stop"
        unkeyed = client.post(path, json={**body, **TRACED}).json()["ferrite_cache_trace"]
        assert (unkeyed["outcome"], unkeyed["key_given"], unkeyed["stored"]) == ("no_key", False, False)
        for metadata in ({}, None, {"ferrite_cache_trace": "false"}, {"mine": "1"}):
            assert "ferrite_cache_trace" not in client.post(path, json={**keyed, "metadata": metadata}).json()


def test_several_prompts_have_several_traces() -> None:
    with running_server(runner(), **prefix_cache()) as running, running.client() as client:
        body = completion_body(["same prompt", "same prompt"], prompt_cache_key="k", **TRACED)
        traces = client.post(COMPLETIONS, json=body).json()["ferrite_cache_trace"]
        assert [trace["outcome"] for trace in traces] == ["miss", "hit"]
        nothing = client.post(COMPLETIONS, json=completion_body(max_tokens=0, **TRACED)).json()
        assert nothing["ferrite_cache_trace"] is None


@pytest.mark.parametrize("value", ["yes", "TRUE", "", "1"])
def test_another_wish_for_a_trace_is_refused(value: str) -> None:
    with running_server() as running, running.client() as client:
        for path, body in ROUTES:
            answer = client.post(path, json={**body, "metadata": {"ferrite_cache_trace": value}})
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "metadata.ferrite_cache_trace"


def sample(running: Running) -> tuple[int, int]:
    with running.client() as client:
        prefix = client.get("/v1/stats").json()["prefix_cache"]
        return prefix["entries"], prefix["bytes"]


def test_the_limits_hold_at_every_moment() -> None:
    # A thousand tokens are 250 blocks, so four entries fit into 64 MiB.
    with (
        running_server(runner(), **prefix_cache()) as running,
        running.client() as client,
    ):
        samples = []
        for number in range(60):
            body = completion_body(f"{number:04} " * 200, max_tokens=2, prompt_cache_key="k")
            assert client.post(COMPLETIONS, json=body).status_code == 200
            samples.append(sample(running))
        assert all(entries <= 8 and n_bytes <= 64 << 20 for entries, n_bytes in samples)
        assert samples[-1] == (4, 4 * 251 << 16)
        kept = completion_body("0059 " * 200, max_tokens=2, prompt_cache_key="k")
        oversized = completion_body("x" * 1040, max_tokens=2, prompt_cache_key="big", **TRACED)
        many = {**prefix_cache(max_entries=8, max_mib=1)}
        assert cached(client, COMPLETIONS, kept) == 999
    with running_server(runner(), **many) as running, running.client() as client:
        small = completion_body("small", max_tokens=2, prompt_cache_key="k")
        client.post(COMPLETIONS, json=small)
        held = sample(running)
        answer = client.post(COMPLETIONS, json=oversized).json()
        assert answer["ferrite_cache_trace"]["stored"] is False
        assert sample(running) == held
        assert cached(client, COMPLETIONS, small) == 4
