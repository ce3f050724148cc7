"""The same numbers in any company, what log-probabilities mean, and what a bias does."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.api.reading import chunks_of, entries
from tests.field_reports.serving import (
    CHAT,
    COMPLETIONS,
    MODEL_ID,
    RESPONSES,
    TOKENIZE,
    Served,
    force,
    question,
    serving,
    streamed,
    user,
    whole,
)

PROMPT = "The weather of the day"
END_IDS = {"268": -100, "270": -100}
"""Bans the tokens that end a generation."""


def content(answer: dict[str, Any]) -> Any:
    return [
        (choice.get("token_ids"), choice["logprobs"], choice["finish_reason"]) for choice in answer["choices"]
    ]


ALONE: dict[str, Any] = {
    "prompt": PROMPT,
    "max_tokens": 24,
    "logprobs": 5,
    "return_token_ids": True,
    "logit_bias": END_IDS,
}


@pytest.fixture(scope="module")
def alone(served: Served) -> Any:
    return content(served.answer(COMPLETIONS, **ALONE))


@pytest.mark.parametrize(
    "options",
    [
        {"experimental_batched_decode": True, "max_batch_streams": 8, "max_batch_queue": 8},
        {"threads": 2, "experimental_batched_decode": True, "max_batch_streams": 16, "max_batch_queue": 16},
        {"kernel_provider": "portable", "max_concurrent_inferences": 8, "inference_wait_ms": 60_000},
        {"threads": 3, "kv_backend": "locus", "kv_tokens_per_block": 32, "kv_max_tokens": 256},
    ],
    ids=["eight", "sixteen on two threads", "portable", "locus on three threads"],
)
def test_log_probabilities_are_the_same_bits_in_any_company(
    tiny: Path, alone: Any, options: dict[str, Any]
) -> None:
    """FR-34: eight equal prompts, eight others between them, other threads, kernels and storage."""
    others = [{**ALONE, "prompt": [7 * n + 1] * (9 + 17 * n), "temperature": 1, "seed": n} for n in range(8)]
    with serving(tiny, ctx_size=1024, **options) as served:
        assert content(served.answer(COMPLETIONS, **ALONE)) == alone
        if options.get("kv_backend") == "locus":
            return
        together = served.together(COMPLETIONS, [ALONE] * 8)
        assert [content(answer) for answer in together] == [alone] * 8
        mixed = [body for pair in zip([ALONE] * 8, others, strict=True) for body in pair]
        answers = served.together(COMPLETIONS, mixed)
        assert [content(answer) for answer in answers[::2]] == [alone] * 8
        assert [content(served.answer(COMPLETIONS, **body)) for body in others] == [
            content(answer) for answer in answers[1::2]
        ]


SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.3, "seed": 1},
    {"temperature": 1, "seed": 2},
    {"temperature": 0.3, "top_p": 0.1, "seed": 3},
    {"temperature": 1, "top_p": 0.1, "seed": 4},
    {"temperature": 1, "seed": 5, "logit_bias": {"65": 5}},
    {"temperature": 1, "seed": 6, "frequency_penalty": 2, "repetition_penalty": 2, "top_k": 3, "min_p": 0.2},
]


def scored(served: Served, prompt: list[int], tokens: list[int]) -> list[float]:
    """The log-probabilities of ``tokens`` behind ``prompt`` when the model reads them."""
    body = {"prompt": [*prompt, *tokens], "echo": True, "logprobs": 5, "max_tokens": 0}
    (choice,) = served.answer(COMPLETIONS, **body)["choices"]
    found: list[float] = choice["logprobs"]["token_logprobs"][len(prompt) :]
    return found


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_log_probabilities_describe_the_model_and_not_the_sampling(
    served: Served, sampling: dict[str, Any]
) -> None:
    """FR-36: equal text has equal numbers; natural, sorted, none above 0, the likeliest first."""
    prompt = served.answer(TOKENIZE, messages=user("Hi"))["tokens"]
    fields = {"logprobs": True, "top_logprobs": 5, "max_tokens": 8, "return_token_ids": True}
    choice = served.choice(CHAT, messages=user("Hi"), **fields, **sampling)
    found = choice["logprobs"]["content"]
    tokens = choice["token_ids"][: len(found)]
    assert [each["logprob"] for each in found] == scored(served, prompt, tokens)
    for each in found:
        top = [other["logprob"] for other in each["top_logprobs"]]
        assert len(top) == 5
        assert 0 >= top[0] == max(top)
        assert top == sorted(top, reverse=True)
        assert each["logprob"] <= top[0]
        assert sum(map(math.exp, top)) <= 1 + 1e-6
        if not sampling:
            assert each["logprob"] == top[0]
        if each["logprob"] >= top[-1]:
            assert {"token": each["token"], "logprob": each["logprob"], "bytes": each["bytes"]} in each[
                "top_logprobs"
            ]


def test_log_probabilities_under_a_grammar_are_the_model_s_own(served: Served) -> None:
    """FR-36."""
    prompt = served.answer(TOKENIZE, messages=user("Go"))["tokens"]
    fields = {"logprobs": True, "top_logprobs": 1, "max_tokens": 64, "return_token_ids": True}
    choice = served.choice(CHAT, messages=user("Go"), **fields, **force("red 日本"))
    found = [each["logprob"] for each in choice["logprobs"]["content"]]
    assert found == scored(served, prompt, choice["token_ids"])
    assert min(found) < -3


def test_the_likeliest_are_really_the_likeliest(served: Served) -> None:
    """FR-36: each alternative, forced in the place of the first token, has the number it was told with."""
    body = {"prompt": PROMPT, "max_tokens": 1, "logprobs": 5}
    first = served.choice(COMPLETIONS, **body)["logprobs"]["top_logprobs"][0]
    told = sorted(first.values(), reverse=True)
    by_id = [
        served.choice(COMPLETIONS, **body, logit_bias={str(token): 100})["logprobs"]["token_logprobs"][0]
        for token in range(0, 256, 7)
    ]
    assert sum(number > told[-1] for number in by_id) <= 5
    assert all(number in told for number in by_id if number > told[-1])


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_small_budget_is_never_exceeded(served: Served, path: str, limit: int) -> None:
    """FR-37."""
    for fields in ({}, force("👩‍🚀") if path == CHAT else {}):
        body = {**question(path, "Hi", limit=limit), **fields, "logit_bias": END_IDS}
        outcome = whole(served.http, path, body)
        assert (outcome.completion_tokens, outcome.reason) == (limit, "length")
        assert streamed(served.http, path, body) == outcome


def test_no_tokens_are_a_score_or_a_refusal(served: Served) -> None:
    """FR-37."""
    for path, body, param in (
        (CHAT, {"messages": user("Hi"), "max_tokens": 0}, "max_tokens"),
        (CHAT, {"messages": user("Hi"), "max_completion_tokens": 0}, "max_completion_tokens"),
        (RESPONSES, {"input": "Hi", "max_output_tokens": 0}, "max_output_tokens"),
    ):
        assert served.refusal(path, **body)["param"] == param
    answer = served.answer(COMPLETIONS, prompt="Hi", max_tokens=0)
    assert (answer["choices"][0]["text"], answer["usage"]["completion_tokens"]) == ("", 0)
    assert answer["choices"][0]["finish_reason"] == "length"
    score = served.choice(COMPLETIONS, prompt="Hi there", max_tokens=0, echo=True, logprobs=1)
    assert score["text"] == "Hi there"
    assert [each[1] is None for each in entries(score["logprobs"])].count(True) == 1


def test_a_seed_is_used_and_its_absence_too(served: Served) -> None:
    """FR-35."""
    body = {"prompt": PROMPT, "max_tokens": 16, "temperature": 1, "return_token_ids": True}
    seeds = [7, 7, 7, 8, 0, -1, 2**63 - 1, -(2**63)]
    idle = [content(served.answer(COMPLETIONS, **body, seed=seed)) for seed in seeds]
    assert idle[0] == idle[1] == idle[2]
    assert len({str(each) for each in idle}) == len(set(seeds))
    loaded = served.together(COMPLETIONS, [{**body, "seed": seed} for seed in seeds])
    assert [content(answer) for answer in loaded] == idle
    free = served.together(COMPLETIONS, [{**body, "temperature": 1.5}] * 5)
    assert len({str(content(answer)) for answer in free}) > 1
    for path, fields in ((COMPLETIONS, body), (CHAT, {"messages": user("x")}), (RESPONSES, {"input": "x"})):
        assert served.refusal(path, **fields, seed=2**63)["param"] == "seed"


def test_a_bias_bans_and_forces_everywhere(served: Served) -> None:
    """FR-39: alone, in a batch, streamed, for 200 tokens, and under a grammar that wins."""
    asked = {"max_tokens": 12, "return_token_ids": True}
    for path, body in (
        (CHAT, {"messages": user("Hi"), **asked}),
        (COMPLETIONS, {"prompt": "Hi", **asked}),
        (RESPONSES, {"input": "Hi", "max_output_tokens": 12, "return_token_ids": True}),
    ):

        def ids(answer: dict[str, Any]) -> list[int]:
            found: list[int] = (answer["choices"][0] if "choices" in answer else answer)["token_ids"]
            return found

        first = ids(served.answer(path, **body))[0]
        banned = {**body, "logit_bias": {str(first): -100}}
        answers = [served.answer(path, **banned), *served.together(path, [banned, body, banned, body])]
        for answer in (answers[0], answers[1], answers[3]):
            assert ids(answer)
            assert first not in ids(answer)
        assert ids(answers[2])[0] == ids(answers[4])[0] == first
        forced = served.answer(path, **body, logit_bias={"66": 100})
        assert ids(forced) == [66] * 12
    chunks = chunks_of(served.http, CHAT, {"model": MODEL_ID, "messages": user("Hi"), **asked,
                                          "logit_bias": {"66": 100}})  # fmt: skip
    assert [token for chunk in chunks for token in chunk["choices"][0].get("token_ids", ())] == [66] * 12
    twenty = {**dict.fromkeys(map(str, range(65, 85)), -100), **END_IDS}
    many = {"prompt": "Hi", "max_tokens": 200, "return_token_ids": True, "temperature": 1, "seed": 1}
    found = served.choice(COMPLETIONS, **many, logit_bias=twenty)["token_ids"]
    assert (len(found), set(found) & set(range(65, 85))) == (200, set())
    tokens = served.answer(TOKENIZE, prompt='{"v":"x"}', add_special_tokens=False)["tokens"]
    against = {**dict.fromkeys(map(str, tokens), -100), "66": 100}
    choice = served.choice(CHAT, messages=user("Go"), **force("x"), logit_bias=against, max_tokens=64)
    assert (json.loads(choice["message"]["content"]), choice["finish_reason"]) == ({"v": "x"}, "stop")
