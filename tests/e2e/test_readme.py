"""What the README tells a newcomer to type does what it says."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from ferrite.api import ServerConfig
from ferrite.api.options import flag_name
from ferrite.catalogue import CATALOGUE
from tests.e2e.process import WAIT_SECONDS, ServerProcess, ferrite_server

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def snippet(language: str, holding: str) -> str:
    """Return the one code block of ``language`` that has ``holding`` in it."""
    blocks = re.findall(rf"(?s)```{language}\n(.*?)```", README)
    (found,) = [block for block in blocks if holding in block]
    return str(found)


@pytest.fixture(scope="module")
def served(smollm2_path: Path) -> Iterator[ServerProcess]:
    limits = ("--default-max-tokens", "1024", "--hard-max-tokens", "4096")
    assert " ".join(limits) in (ROOT / "Makefile").read_text()
    with ferrite_server(smollm2_path, *limits, api_key=None) as running:
        yield running


def run(*command: str) -> str:
    environ = {**os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.model
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_curl_snippet(served: ServerProcess) -> None:
    command = snippet("sh", "curl").replace("127.0.0.1:8080", served.ready["address"])
    assert "The capital of France is Paris." in run("sh", "-c", command.replace("curl ", "curl -sS ", 1))


@pytest.mark.model
def test_the_python_snippet(served: ServerProcess) -> None:
    code = snippet("python", "OpenAI").replace("127.0.0.1:8080", served.ready["address"])
    assert run(sys.executable, "-c", code) == "The capital of France is Paris.\n"


@pytest.mark.model
def test_the_run_snippet(smollm2_path: Path) -> None:
    command = snippet("sh", "ferrite run").replace(".venv/bin/", f"{Path(sys.executable).parent}/")
    assert smollm2_path.exists()
    assert run("sh", "-c", command) == "The capital of France is Paris.\n"


def test_the_table_of_options_is_complete_and_true() -> None:
    table = dict(re.findall(r"(?m)^\| (`--[^|]*`) \| ([^|]+) \|", README.replace("\\|", "/")))
    flags = {
        flag
        for cell in re.findall(r"(?m)^\| (`--.*?`) \| ", README)
        for flag in re.findall(r"--[\w-]+", cell)
    }
    options = {flag_name(field.name): field.default for field in fields(ServerConfig)}
    assert flags - {"--no-access-log"} == options.keys()
    for cell, default in table.items():
        flag = re.findall(r"--[\w-]+", cell)[0]
        if isinstance(options[flag], int) and not isinstance(options[flag], bool):
            assert re.findall(r"\d+", default)[0] == str(options[flag])


def test_the_models_are_the_catalogue_s() -> None:
    assert re.findall(r"(?m)^\| `([a-z][\w.-]*)` \| ", README) == list(CATALOGUE)
