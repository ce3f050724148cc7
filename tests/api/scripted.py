"""Servers whose model writes what a test says, as far as a grammar lets it."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai

from ferrite.toolcalls import AnswerFormat, ReasoningMarks, ToolFamily
from ferrite.toolcalls.families import HERMES
from tests.api.support import END, MODEL_ID, Running, Script, chat_body, running_server

CHAT = "/v1/chat/completions"


class Scripted:
    """A server whose model writes what a test says, as far as a grammar lets it."""

    def __init__(self, running: Running, script: Script, http: httpx.Client) -> None:
        self.running = running
        self._script = script
        self._http = http

    def writes(self, text: str) -> None:
        self._script.tokens = [*text.encode(), END]
        self.running.runner.samplers.clear()
        self.running.runner.batches.clear()

    def post(self, **fields: Any) -> httpx.Response:
        return self._http.post(CHAT, json=chat_body(**{"max_tokens": 400, **fields}))

    def answer(self, **fields: Any) -> dict[str, Any]:
        response = self.post(**fields)
        assert response.status_code == 200, response.text
        whole: dict[str, Any] = response.json()
        return whole

    def choice(self, **fields: Any) -> dict[str, Any]:
        (choice,) = self.answer(**fields)["choices"]
        found: dict[str, Any] = choice
        return found

    def chunks(self, **fields: Any) -> list[dict[str, Any]]:
        response = self.post(stream=True, **fields)
        assert response.status_code == 200, response.text
        *events, end = response.text.removesuffix("\n\n").split("\n\n")
        assert end == "data: [DONE]"
        return [json.loads(event.removeprefix("data: ")) for event in events]

    def refusal(self, **fields: Any) -> dict[str, Any]:
        response = self.post(**fields)
        assert response.status_code == 400, response.text
        error: dict[str, Any] = response.json()["error"]
        return error

    def assembled(self, client: openai.OpenAI, **fields: Any) -> dict[str, Any]:
        """The choice that the official client's accumulator makes of a stream."""
        messages: list[Any] = fields.pop("messages", [{"role": "user", "content": "Hi"}])
        with client.chat.completions.stream(
            model=MODEL_ID, messages=messages, max_tokens=400, **fields
        ) as stream:
            (choice,) = stream.get_final_completion().choices
        return choice.model_dump(exclude_none=True)


def scripted_server(
    family: ToolFamily = HERMES, *, marks: ReasoningMarks | None = None, **options: Any
) -> Iterator[Scripted]:
    script = Script("")
    runner = script.runner(context_length=8192)
    options = {"hard_max_tokens": 4096, "answer_format": AnswerFormat(family, marks), **options}
    with running_server(runner, **options) as running, running.client() as http:
        yield Scripted(running, script, http)


def calls_of(message: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())
    ]
