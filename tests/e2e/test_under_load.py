"""Many at once on a real model: every answer is the one that its request gets alone."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.client import END_IDS, ask, ask_together, token_ids
from tests.e2e.process import ServerProcess, ferrite_server

pytestmark = pytest.mark.model

SIXTEEN = (
    "--experimental-batched-decode", "--max-batch-streams", "16", "--max-batch-queue", "16",
    "--ctx-size", "4096", "--hard-max-tokens", "3500",
)  # fmt: skip
CODE_WORDS = (
    "ZEBRA-07", "MANGO-11", "COBALT-23", "WALNUT-31", "PUFFIN-42", "CEDAR-58", "ONYX-64", "TULIP-70",
    "FALCON-81", "QUARTZ-85", "LEMON-90", "BISON-13", "MAPLE-29", "CORAL-36", "HERON-47", "SAFFRON-52",
)  # fmt: skip
SHUFFLES = 3


@pytest.fixture(scope="module", params=[(), ("--experimental-prefix-cache",)], ids=["uncached", "cached"])
def server(request: pytest.FixtureRequest, smollm2_path: Path) -> Iterator[ServerProcess]:
    with ferrite_server(smollm2_path, *SIXTEEN, *request.param) as running:
        yield running
        assert "ERROR" not in running.log


@pytest.fixture(scope="module")
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with server.http() as client:
        yield client


def greedy(prompt: Any, **fields: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": 12, "logit_bias": END_IDS, **fields}


def test_no_answer_holds_anothers_code_word(server: ServerProcess, http: httpx.Client) -> None:
    asked = [
        {
            "messages": [
                {"role": "system", "content": "You repeat code words." + " Be exact." * (index % 5)},
                {"role": "user", "content": f"Repeat: {word}"},
            ],
            "max_tokens": 10,
            "stream": index % 2 == 0,
        }
        for index, word in enumerate(CODE_WORDS)
    ]
    alone = [ask(http, **fields).content for fields in asked]
    order = list(range(len(asked)))
    shuffler = random.Random(3)
    for _ in range(SHUFFLES):
        shuffler.shuffle(order)
        # One namespace for all, so that with the cache every prompt finds the beginning of another's.
        shuffled = [{**asked[index], "prompt_cache_key": "all"} for index in order]
        answers = ask_together(server, http, 16, shuffled)
        assert [answer.content for answer in answers] == [alone[index] for index in order]
        for index, answer in zip(order, answers, strict=True):
            names = [word.partition("-")[0] for word in CODE_WORDS]
            assert [name for name in names if name in answer.text] in ([], [names[index]])


def test_one_prompt_eight_times(server: ServerProcess, http: httpx.Client) -> None:
    (alone,) = {ask(http, **greedy("The weather today is")).content for _ in range(3)}
    same = [greedy("The weather today is", prompt_cache_key=key) for key in "aaaabcde"]
    others = [greedy(token_ids(400 + length, length)) for length in range(20, 60, 5)]
    together = ask_together(server, http, 16, same)
    among_others = ask_together(
        server, http, 16, [each for pair in zip(same, others, strict=True) for each in pair]
    )
    for answers in (together, among_others[::2]):
        assert [answer.content for answer in answers] == [alone] * 8
    assert [answer.content for answer in among_others[1::2]] == [ask(http, **each).content for each in others]


def test_a_seed_is_kept_under_load(server: ServerProcess, http: httpx.Client) -> None:
    def seeded(seed: int | None, temperature: float = 1.0) -> dict[str, Any]:
        return greedy("Once upon a time", seed=seed, temperature=temperature)

    seeds = [7, 7, 8, 0, -1, 2**63 - 1, -(2**63)]
    alone = [ask(http, **seeded(seed)).content for seed in seeds]
    assert len(set(alone)) == len(set(seeds))
    asked = [*map(seeded, seeds), *[seeded(None, 1.5)] * 5]
    answers = [answer.content for answer in ask_together(server, http, 16, asked)]
    assert answers[: len(seeds)] == alone
    # Equal prompts that are evaluated once are still sampled apart.
    assert len(set(answers[len(seeds) :])) > 1
    refused = http.post("/v1/completions", json={"model": "ferrite-local", **seeded(2**63)})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "seed")
