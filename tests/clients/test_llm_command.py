"""The ``llm`` command with a model of its ``extra-openai-models.yaml``."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.scripted import Scripted
from tests.api.support import MODEL_ID, WAIT_SECONDS, Running, ServerProcess
from tests.clients.support import API_KEY, TEXT

pytest.importorskip("llm", reason="llm is not installed (dependency group llm)")

MODELS = """\
- {{model_id: chat, model_name: {model}, api_base: "{url}/v1", api_key_name: ferrite, supports_tools: true,
   supports_schema: true}}
- {{model_id: raw, model_name: {model}, api_base: "{url}/v1", api_key_name: ferrite, completion: true}}
"""


def run_llm(
    folder: Path, url: str, *arguments: str, model: str = MODEL_ID
) -> subprocess.CompletedProcess[str]:
    (folder / "extra-openai-models.yaml").write_text(MODELS.format(model=model, url=url))
    (folder / "keys.json").write_text(f'{{"ferrite": "{API_KEY}"}}')
    return subprocess.run(
        [sys.executable, "-m", "llm", *arguments],
        env={**os.environ, "LLM_USER_PATH": str(folder), "NO_PROXY": "127.0.0.1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=6 * WAIT_SECONDS,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments",
    [("-m", "chat"), ("-m", "chat", "--no-stream", "-s", "Be brief.", "-o", "seed", "7"), ("-m", "raw")],
)
def test_a_prompt_is_answered(scripted: Running, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = run_llm(tmp_path, scripted.url, *arguments, "Hi")
    assert (done.stdout, done.returncode) == (f"{TEXT}\n", 0), done.stderr


def test_a_conversation_goes_on(scripted: Running, tmp_path: Path) -> None:
    run_llm(tmp_path, scripted.url, "-m", "chat", "One")
    done = run_llm(tmp_path, scripted.url, "-m", "chat", "-c", "Two")
    assert done.returncode == 0, done.stderr
    last = scripted.conversations.seen[-1]
    assert [(message.role, message.content) for message in last] == [
        ("user", "One"), ("assistant", TEXT), ("user", "Two"),
    ]  # fmt: skip


WEATHER = "def Weather(city: str, days: int) -> str:\n    return f'rain in {city}'"
SUM = "def Sum(numbers: list) -> str:\n    return '3.5'"


@pytest.mark.parametrize("stream", [(), ("--no-stream",)], ids=["streamed", "whole"])
def test_functions_are_called(caller: Running, tmp_path: Path, stream: tuple[str, ...]) -> None:
    functions = ("--functions", WEATHER, "--functions", SUM)
    done = run_llm(tmp_path, caller.url, "-m", "chat", *functions, *stream, "Hi")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("It rains; it is 3.5.\n")
    last = caller.conversations.seen[-1]
    assert [(message.role, message.content) for message in last if message.role == "tool"] == [
        ("tool", "rain in Oslo"), ("tool", "3.5"), ("tool", "3.5"),
    ]  # fmt: skip


def test_an_answer_follows_a_schema(writer: Scripted, tmp_path: Path) -> None:
    writer.writes("no JSON at all")
    schema = {"type": "object", "properties": {"a": {"enum": [7]}}, "required": ["a"]}
    closed = json.dumps({**schema, "additionalProperties": False})
    done = run_llm(tmp_path, writer.running.url, "-m", "chat", "--schema", closed, "Hi")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"a": 7}


def test_a_refusal_is_shown(scripted: Running, tmp_path: Path) -> None:
    done = run_llm(tmp_path, scripted.url, "-m", "chat", "Hi", model="other")
    assert done.returncode != 0
    assert "The model 'other' does not exist" in done.stderr


@pytest.mark.model
def test_a_real_model(real: ServerProcess, tmp_path: Path) -> None:
    question = ("-s", "Answer in one sentence.", "What is the capital of France?")
    done = run_llm(tmp_path, real.url, "-m", "chat", *question, model="ferrite-local")
    assert "Paris" in done.stdout
