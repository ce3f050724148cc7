"""Whatever JSON schema a strict answer has to follow: a completed one does, hot as it may be.

Eight requests run in one batch, streamed and whole. ``FERRITE_RANDOM_SCHEMAS=200`` draws as many schemas, and
``pytest -s`` shows how their answers ended.
"""

import json
import os
from collections import Counter
from typing import Any

import jsonschema
import openai
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.api.support import ServerProcess
from tests.clients.support import HI, MODEL_SECONDS, at_once, client
from tests.grammar.test_random_schemas import SCHEMAS, TREE

pytestmark = pytest.mark.model

N_SCHEMAS = int(os.environ.get("FERRITE_RANDOM_SCHEMAS", "8"))
AT_ONCE = 4
"""Schemas; each is asked for twice."""
MAX_TOKENS = 96
BATCHES = settings(
    max_examples=N_SCHEMAS // AT_ONCE,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)


def test_completed_answers_validate(real: ServerProcess) -> None:
    counts: Counter[str] = Counter()
    with client(real.url, timeout=MODEL_SECONDS) as sdk:

        @BATCHES
        @given(st.lists(SCHEMAS, min_size=AT_ONCE, max_size=AT_ONCE), st.integers(0, 2**32))
        def ask_for(schemas: list[dict[str, Any]], seed: int) -> None:
            complete = [{**schema, "$defs": {"Tree": TREE}} for schema in schemas]
            jobs = [
                lambda schema=schema, stream=stream: answer(sdk, schema, seed, stream=stream)
                for schema in complete
                for stream in (False, True)
            ]
            answers = at_once(*jobs)
            assert answers[::2] == answers[1::2], "a streamed answer is not the whole one"
            for schema, (text, outcome) in zip(complete, answers[::2], strict=True):
                counts[outcome] += 1
                if outcome == "stop":
                    jsonschema.Draft202012Validator(schema).validate(json.loads(text))
                elif outcome == "refused":
                    assert text.startswith("response_format.json_schema.schema")

        ask_for()
    print(dict(counts))  # noqa: T201  -s shows it
    assert counts["stop"] > 0


def answer(sdk: openai.OpenAI, schema: dict[str, Any], seed: int, *, stream: bool) -> tuple[str, str]:
    """The text of an answer and how it ended; a schema that leaves nothing to write is refused."""
    asked: dict[str, Any] = {
        "model": "ferrite-local",
        "messages": HI,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "drawn", "strict": True, "schema": schema},
        },
        "temperature": 1.5,
        "seed": seed,
        "max_tokens": MAX_TOKENS,
    }
    try:
        if not stream:
            (choice,) = sdk.chat.completions.create(**asked).choices
            return choice.message.content or "", choice.finish_reason
        chunks = [chunk.choices[0] for chunk in sdk.chat.completions.create(**asked, stream=True)]
    except openai.BadRequestError as error:
        return error.param or "", "refused"
    return "".join(chunk.delta.content or "" for chunk in chunks), chunks[-1].finish_reason or ""
