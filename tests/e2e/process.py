"""The installed ``ferrite-server`` command as a process, and what a client needs to talk to it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import httpx
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, DefaultHttpxClient, OpenAI
from openai.types.chat import ChatCompletionMessageParam

WAIT_SECONDS = 60.0
"""Reached only when a test fails."""
API_KEY = "local-secret"
QUESTION: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "Answer in one sentence."},
    {"role": "user", "content": "What is the capital of France?"},
]


@dataclass
class ServerProcess:
    """A server that said it is ready."""

    process: subprocess.Popen[str]
    ready: dict[str, Any]
    log_file: IO[str]

    @property
    def url(self) -> str:
        return f"http://{self.ready['address']}"

    @property
    def log(self) -> str:
        """All that it wrote to stderr so far."""
        return Path(self.log_file.name).read_text()

    def http(self) -> httpx.Client:
        return httpx.Client(
            base_url=self.url,
            headers={"authorization": f"Bearer {API_KEY}"},
            timeout=WAIT_SECONDS,
            trust_env=False,
            verify=False,
        )

    def openai(self) -> OpenAI:
        return OpenAI(
            base_url=f"{self.url}/v1",
            api_key=API_KEY,
            max_retries=0,
            http_client=DefaultHttpxClient(trust_env=False, verify=False, timeout=WAIT_SECONDS),
        )

    def async_openai(self) -> AsyncOpenAI:
        return AsyncOpenAI(
            base_url=f"{self.url}/v1",
            api_key=API_KEY,
            max_retries=0,
            http_client=DefaultAsyncHttpxClient(trust_env=False, verify=False, timeout=WAIT_SECONDS),
        )

    def token_ids(self, client: httpx.Client, **fields: Any) -> list[int]:
        """Complete a text and return the ids of what was generated."""
        body = {"model": self.ready["model"], "return_token_ids": True, **fields}
        answer = client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        ids: list[int] = answer.json()["choices"][0]["token_ids"]
        return ids


@contextmanager
def ferrite_server(
    model: Path | None, *arguments: str, api_key: str | None = API_KEY
) -> Iterator[ServerProcess]:
    """Run the command on one inference thread; behind the block it must end cleanly on SIGTERM."""
    named = () if model is None else ("--model", str(model))
    key = () if api_key is None else ("--api-key", api_key)
    command = [
        str(Path(sys.executable).with_name("ferrite-server")),
        "--bind", "127.0.0.1:0", "--threads", "1", *named, *key,
    ]  # fmt: skip
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FERRITE_")}
    # A pipe that nobody empties would stop the server once its log has filled it.
    with (
        tempfile.NamedTemporaryFile("w+", suffix=".log") as log,
        subprocess.Popen(
            [*command, *arguments], env=environ, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, Path(log.name).read_text()
            yield ServerProcess(process, json.loads(line), log)
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=WAIT_SECONDS)
            assert (out, process.returncode) == ("", 0)
        finally:
            process.kill()


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for a state that another process brings about."""
    pause = threading.Event()
    for _ in range(int(WAIT_SECONDS / 0.05)):
        if condition():
            return
        pause.wait(0.05)
    raise AssertionError("the expected state did not come")


def joined_text(lines: Iterator[str]) -> str:
    """Join the text of a streamed completion; every event must be JSON."""
    pieces = []
    for line in lines:
        if line.startswith("data: {"):
            choices = json.loads(line.removeprefix("data: "))["choices"]
            pieces += [choice["text"] for choice in choices]
        else:
            assert line in ("", "data: [DONE]")
    return "".join(pieces)
