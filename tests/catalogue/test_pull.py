"""``ferrite pull``."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from ferrite.catalogue import CATALOGUE, DEFAULT_MODEL
from ferrite.cli.pull import pull


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.command()(pull)
    return app


def test_it_prints_the_path_of_a_cached_model(
    app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FERRITE_CACHE", str(tmp_path))
    path = tmp_path / "models" / CATALOGUE[DEFAULT_MODEL].file_name
    path.parent.mkdir()
    with path.open("wb") as file:
        file.truncate(CATALOGUE[DEFAULT_MODEL].size)
    result = CliRunner().invoke(app, [DEFAULT_MODEL, "--offline"])
    assert (result.exit_code, result.stdout) == (0, f"{path}\n")

    result = CliRunner().invoke(app, [DEFAULT_MODEL, "--offline", "--verify"])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"ferrite pull: {DEFAULT_MODEL}: ")
    assert "SHA-256" in result.stderr


def test_an_unknown_name_stops_before_any_download(
    app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FERRITE_CACHE", str(tmp_path))
    result = CliRunner().invoke(app, [DEFAULT_MODEL, "nope"])
    assert result.exit_code == 1
    assert result.stderr.startswith("ferrite pull: nope: not in the catalogue; it has ")
    assert list(tmp_path.iterdir()) == []


def test_a_terminated_download_takes_everything_with_it(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys, time, typer\n"
        "import ferrite.cli.pull as command\n"
        "from ferrite.catalogue import obtain\n"
        "def fetch(requirement, folder, on_bytes):\n"
        "    (folder / 'half.whl').write_bytes(b'half')\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(60)\n"
        "command.obtain = lambda entry, **options: obtain(entry, fetch=fetch, **options)\n"
        "typer.run(command.pull)\n"
    )
    environment = os.environ | {"FERRITE_CACHE": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program, DEFAULT_MODEL]
    outcome = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=50)
    assert outcome.returncode == 128 + signal.SIGTERM
    assert b"downloading" in outcome.stderr
    assert [path.name for path in (tmp_path / "models").iterdir()] == [".lock"]
