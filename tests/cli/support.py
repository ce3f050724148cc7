"""Running the ``ferrite`` command inside the test or as a process of its own."""

import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

from ferrite.cli.main import main

WAIT_SECONDS = 120.0
"""Reached only when a command hangs."""
COMMAND = [sys.executable, "-c", "from ferrite.cli.main import main; main()"]


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    status: int
    out: str
    err: str


@dataclass
class Command:
    """The command in this process."""

    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    def __call__(self, *arguments: str) -> Done:
        self.monkeypatch.setattr(sys, "argv", ["ferrite", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        code = left.value.code
        out, err = self.capsys.readouterr()
        assert code is None or isinstance(code, int)
        return Done(code or 0, out, err)


def process(*arguments: str) -> subprocess.Popen[str]:
    """Start the command as a process."""
    return subprocess.Popen(
        [*COMMAND, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
