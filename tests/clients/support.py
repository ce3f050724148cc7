"""What the tests of all clients share."""

import openai
from openai.types.chat import ChatCompletionMessageParam

from tests.api.support import WAIT_SECONDS

API_KEY = "local-secret"
TEXT = "Hello, wörld! 🦀 日本"
QUESTION: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "Answer in one sentence."},
    {"role": "user", "content": "What is the capital of France?"},
]


def client(url: str, *, api_key: str = API_KEY, max_retries: int = 0) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{url}/v1",
        api_key=api_key,
        max_retries=max_retries,
        http_client=openai.DefaultHttpxClient(trust_env=False, timeout=WAIT_SECONDS, verify=False),
    )


def async_client(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{url}/v1",
        api_key=API_KEY,
        max_retries=0,
        http_client=openai.DefaultAsyncHttpxClient(trust_env=False, timeout=WAIT_SECONDS, verify=False),
    )
