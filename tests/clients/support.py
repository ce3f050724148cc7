"""What the tests of all clients share."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import openai
import pydantic
from openai.types.chat import ChatCompletionMessageParam

from tests.api.support import END, WAIT_SECONDS
from tests.engine.fakes import FakeRunner

API_KEY = "local-secret"
TEXT = "Hello, wörld! 🦀 日本"
QUESTION: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "Answer in one sentence."},
    {"role": "user", "content": "What is the capital of France?"},
]
HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hi"}]
MODEL_SECONDS = 15 * WAIT_SECONDS
"""How long an answer of a real model may take."""
T = TypeVar("T")


class Weather(pydantic.BaseModel):
    """The weather of a city."""

    city: str
    days: int = pydantic.Field(description="Days from today.")


class Sum(pydantic.BaseModel):
    """The sum of some numbers."""

    numbers: list[float]


def client(url: str, *, api_key: str = API_KEY, timeout: float = WAIT_SECONDS) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{url}/v1",
        api_key=api_key,
        max_retries=0,
        http_client=openai.DefaultHttpxClient(trust_env=False, timeout=timeout, verify=False),
    )


def async_client(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{url}/v1",
        api_key=API_KEY,
        max_retries=0,
        http_client=openai.DefaultAsyncHttpxClient(trust_env=False, timeout=WAIT_SECONDS, verify=False),
    )


def turns(*texts: str) -> FakeRunner:
    """A runner that writes the first text, and behind ``n`` answers of the assistant the ``n + 1``-th."""
    runner = FakeRunner(n_blocks=4096, context_length=8192)

    def sample(history: tuple[int, ...]) -> int:
        prompts = (s.prompt for s in runner.samplers if history[: len(s.prompt)] == s.prompt)
        prompt = max(prompts, key=len)
        text = texts[bytes(prompt).count(b"assistant:")].encode()
        n_written = len(history) - len(prompt)
        return text[n_written] if n_written < len(text) else END

    runner.sample = sample
    return runner


def call(name: str, arguments: str) -> str:
    """A call as a model of the Hermes family writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def at_once(*jobs: Callable[[], T]) -> list[T]:
    """Return the results of jobs that run side by side, in order."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        return [job.result() for job in [pool.submit(each) for each in jobs]]
