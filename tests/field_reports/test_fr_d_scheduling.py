"""Many at once, each as if alone."""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.field_reports.serving import CHAT, COMPLETIONS, MODEL_ID, serving, user

WORDS = (
    "ZEBRA-07", "MANGO-11", "COBALT-23", "WALNUT-31", "PUFFIN-42", "CEDAR-58", "ONYX-64", "TULIP-70",
    "FALCON-81", "QUARTZ-85", "LEMON-90", "BISON-13", "MAPLE-29", "CORAL-36", "HERON-47", "SAFFRON-52",
)  # fmt: skip
ROUNDS = 5


@pytest.mark.parametrize("cache", [False, True], ids=["uncached", "cached"])
def test_sixteen_answers_are_those_of_one_at_a_time(tiny: Path, cache: bool) -> None:
    """FR-27: texts, ids and log-probabilities, five rounds in other orders."""
    options = {"max_batch_streams": 16, "max_batch_queue": 16, "experimental_prefix_cache": cache}
    with serving(tiny, ctx_size=512, experimental_batched_decode=True, **options) as served:
        asked: list[dict[str, Any]] = [
            {
                "messages": user("Be exact. " * (index % 5) + f"Repeat: {word}"),
                "max_tokens": 8,
                "logprobs": True,
                "return_token_ids": True,
                "prompt_cache_key": "all",
            }
            for index, word in enumerate(WORDS)
        ]
        alone = [served.answer(CHAT, **{**fields, "prompt_cache_key": None})["choices"] for fields in asked]
        assert len({str(choices) for choices in alone}) == len(WORDS)
        order = list(range(len(asked)))
        shuffler = random.Random(5)
        for _ in range(ROUNDS):
            shuffler.shuffle(order)
            answers = served.together(CHAT, [asked[index] for index in order])
            assert [answer["choices"] for answer in answers] == [alone[index] for index in order]


@pytest.mark.parametrize("n_long", [1, 4])
def test_a_stream_goes_on_in_every_step_of_long_prompts(tiny: Path, n_long: int) -> None:
    """FR-25: no step is for a prompt alone, every prompt is answered, and the stream is what it is alone."""
    options = {"max_batch_streams": 6, "max_batch_queue": 6, "hard_max_tokens": 4000}
    with serving(tiny, experimental_batched_decode=True, **options) as served:
        body = {"prompt": "On", "max_tokens": 4000, "logit_bias": {"268": -100, "270": -100}}
        stream_body = {"model": MODEL_ID, **body, "stream": True, "return_token_ids": True}
        prompts = [[number, *[7 * number + 1] * 1999] for number in range(n_long)]
        with (
            served.http.stream("POST", COMPLETIONS, json=stream_body) as stream,
            ThreadPoolExecutor(n_long) as callers,
        ):
            events = (json.loads(line.removeprefix("data: ")) for line in stream.iter_lines() if line)
            tokens = next(events)["choices"][0]["token_ids"]
            asked = [
                callers.submit(served.answer, COMPLETIONS, prompt=prompt, max_tokens=1) for prompt in prompts
            ]
            # Read all the while: a stream that nobody reads would be left out of steps.
            for event in events:
                tokens += event["choices"][0]["token_ids"]
                if len(tokens) >= 400 and all(answer.done() for answer in asked):
                    break
            assert served.get("/v1/stats")["active"] == 1, "the stream ended before the prompts did"
            counters = served.get("/admin/stats")["batcher"]
        answers = [answer.result() for answer in asked]
        assert [answer["usage"]["completion_tokens"] for answer in answers] == [1] * n_long
        samples = dict(
            line.rsplit(" ", 1) for line in served.http.get("/metrics").text.splitlines() if line[0] != "#"
        )
        every, decoding = (
            float(samples[f"ferrite_{name}"]) for name in ("step_seconds_count", "decode_steps_total")
        )
        # One step is for the stream's own prompt, and a reader who is late may cost a few; the long prompts
        # alone would be 16 steps each.
        assert 1 <= every - decoding <= 5
        assert counters["prefill_tokens"] == 2000 * n_long + len("On")
        alone = served.answer(COMPLETIONS, **{**body, "max_tokens": 400}, return_token_ids=True)
        assert tokens[:400] == alone["choices"][0]["token_ids"]
