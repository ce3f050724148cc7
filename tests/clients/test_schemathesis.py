"""schemathesis reads /openapi.json and finds no answer that the document does not promise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.spelling import spelling_server
from tests.clients.support import API_KEY

pytest.importorskip("schemathesis", reason="schemathesis is not installed (dependency group schemathesis)")

CONFIG = Path(__file__).with_name("schemathesis.toml")
RUN = "from schemathesis.cli import schemathesis; schemathesis()"
SECONDS = 60
"""For all routes; a longer run is for people who look for something."""


def test_no_answer_breaks_its_promise(tmp_path: Path) -> None:
    with spelling_server(api_key=API_KEY) as running:
        done = subprocess.run(
            [
                sys.executable, "-c", RUN, "--config-file", str(CONFIG), "run", f"{running.url}/openapi.json",
                "-H", f"Authorization: Bearer {API_KEY}", "--max-examples", "5", "--max-time", str(SECONDS),
                "--phases", "coverage,fuzzing", "--seed", "1", "--continue-on-failure", "--no-color",
            ],
            env={**os.environ, "NO_PROXY": "127.0.0.1"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=5 * SECONDS,
            check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout
