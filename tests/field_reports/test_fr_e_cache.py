"""Reuse changes nothing but the time: texts, ids and log-probabilities are those of a cold run."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.process import ferrite_server
from tests.field_reports.serving import CHAT, COMPLETIONS, RESPONSES, Served, question

NAMES = ("text", "token_ids", "logprobs", "finish_reason", "message")


def ids(start: int, count: int) -> list[int]:
    """A prompt of ordinary tokens that no other ``start`` begins with."""
    return [start % 256, *((start * 7 + index * index) % 256 for index in range(1, count))]


def completed(served: Served, prompt: Any, key: str | None = None, **fields: Any) -> tuple[Any, int]:
    """Return what must be equal, and how many tokens of the prompt came from the cache."""
    given = {"max_tokens": 8, "logprobs": 5, "return_token_ids": True, "prompt_cache_key": key}
    answer = served.answer(COMPLETIONS, prompt=prompt, **{**given, **fields})
    (choice,) = answer["choices"]
    assert choice["text"]
    usage = answer["usage"]
    cached: int = usage["prompt_tokens_details"]["cached_tokens"]
    assert cached < usage["prompt_tokens"]
    return {name: choice.get(name) for name in NAMES}, cached


@pytest.mark.parametrize("length", [1, 15, 16, 17, 32, 33, 300])
@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 1.2, "seed": 4, "repetition_penalty": 1.2}], ids=str
)
def test_the_same_prompt_four_times(served: Served, length: int, sampling: dict[str, Any]) -> None:
    """FR-28."""
    prompt = ids(length, length)
    cold, _ = completed(served, prompt, **sampling)
    warm = [completed(served, prompt, f"same {length} {sampling}", **sampling) for _ in range(4)]
    assert [content for content, _ in warm] == [cold] * 4
    assert [cached for _, cached in warm] == [0, *[length - 1] * 3]


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_the_same_chat_four_times(served: Served, path: str) -> None:
    """FR-28."""
    body = question(path, "Tell me of the sea. " * 20, logprobs=3, limit=12)
    answers = [
        served.answer(path, **body, **fields) for fields in ({}, *[{"prompt_cache_key": f"four {path}"}] * 4)
    ]
    if path == CHAT:
        contents = [answer["choices"] for answer in answers]
        cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
        counts = [answer["usage"]["prompt_tokens"] for answer in answers]
    else:
        contents = [answer["output"][0]["content"] for answer in answers]
        cached = [answer["usage"]["input_tokens_details"]["cached_tokens"] for answer in answers]
        counts = [answer["usage"]["input_tokens"] for answer in answers]
    assert contents == [contents[0]] * 5
    assert cached == [0, 0, *[counts[0] - 1] * 3]
    assert counts[0] > 200


def test_the_new_question_is_answered(served: Served) -> None:
    """FR-29: another ending, one token changed in the middle, a shorter prompt, and the first once more."""
    prefix = ids(77, 600)
    changed = [*prefix[:290], (prefix[290] + 1) % 256, *prefix[291:], 5, 6]
    cases = [
        ([*prefix, 10, 11], 0),
        ([*prefix, 20, 21, 22], 600),
        (changed, 290),
        (prefix[:100], 99),
        ([*prefix[:100], 9], 100),
        ([*prefix, 10, 11], 601),
    ]
    for prompt, expected in cases:
        content, cached = completed(served, prompt, "questions")
        assert (content, cached) == (completed(served, prompt)[0], expected)


def test_the_limits_of_the_cache_and_the_memory_that_was_told_hold(tiny: Path) -> None:
    """FR-31: by entries, then by bytes; the process stays below what it announced."""
    options = (
        "--experimental-prefix-cache", "--prefix-cache-max-entries", "8", "--prefix-cache-max-mib", "1",
        "--max-concurrent-inferences", "2",
    )  # fmt: skip
    with ferrite_server(tiny, *options) as server, server.http() as http:
        announced = sum(server.ready["memory"][part] for part in ("model_bytes", "prefix_cache_bytes"))
        limits = set()
        for number in range(24):
            prompt = ids(number, 300 if number < 12 else 1800)
            body = {"model": "ferrite-local", "prompt": prompt, "max_tokens": 1, "prompt_cache_key": "k"}
            assert http.post(COMPLETIONS, json=body).status_code == 200
            cache = http.get("/admin/stats").json()["prefix_cache"]
            assert cache["entries"] <= 8
            assert cache["bytes"] <= 1 << 20
            limits.add("entries" if cache["entries"] == 8 else "bytes" if cache["bytes"] > 900_000 else "")
            samples = http.get("/metrics").text
            (resident,) = re.findall(r"(?m)^ferrite_resident_memory_bytes ([\d.e+]+)$", samples)
            parts = re.findall(r'(?m)^ferrite_memory_ceiling_bytes\{part="\w+"\} ([\d.e+]+)$', samples)
            assert len(parts) == 4
            assert float(resident) <= sum(map(float, parts))
        assert {"entries", "bytes"} <= limits
        assert announced <= sum(map(float, parts))
