"""Other engines that this machine has, each driven in a process of its own."""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ferrite.bench.works import Work

WORKER = Path(__file__).with_name("peer_worker.py")
FIND_SECONDS = 60.0
END_SECONDS = 10.0
REASON = re.compile(r"assert|error|fail|abort", re.IGNORECASE)


class PeerError(RuntimeError):
    """A peer that cannot be used; one line that names it."""


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine by name, and how Python has it."""

    name: str
    package: str
    """as it is imported"""
    project: str
    """as it is installed"""


PEERS = (
    Peer("llama.cpp", "llama_cpp", "llama-cpp-python"),
    Peer("ik_llama.cpp", "ik_llama_cpp", "ik-llama-cpp-python"),
)


def find_peers(python: str) -> list[Peer]:
    """Return the peers that ``python``, an interpreter, can import; raises ``PeerError``."""
    packages = [peer.package for peer in PEERS]
    code = f"import importlib.util as u; print([p for p in {packages!r} if u.find_spec(p)])"
    try:
        asked = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, timeout=FIND_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise PeerError(f"{python} is no Python that runs: {error}") from error
    return [peer for peer in PEERS if repr(peer.package) in asked.stdout]


class PeerProcess:
    """A peer with the model loaded. A context manager: leaving it ends the process."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        """Start ``command``, which speaks the lines of ``serve_worker``; raises ``PeerError``."""
        self._name = name
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed on leaving
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
            )
        except OSError as error:
            self._log.close()
            raise PeerError(f"{name}: {command[0]}: {error.strerror or error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    def wait_ready(self) -> None:
        """Return when the model is loaded; raises ``PeerError``."""
        if self._read().get("ready") is not True:
            raise PeerError(f"{self._name} did not say that it is ready")

    def run(self, work: Work) -> float:
        """Return the seconds that ``work`` takes; raises ``PeerError``."""
        assert self._process.stdin is not None
        request = (
            {"op": "prefill", "tokens": work.depth}
            if work.kind == "prefill"
            else {"op": "decode", "streams": work.streams, "steps": work.steps, "depth": work.depth}
        )
        with suppress(BrokenPipeError):  # the missing answer says it
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        seconds = self._read().get("seconds")
        if not isinstance(seconds, float) or seconds <= 0:
            raise PeerError(f"{self._name} did not say how long it took")
        return seconds

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(f"{self._name} ended, status {self._process.wait()}: {self._last_words()}")
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise PeerError(f"{self._name} said {line[:200]!r}")
        if "error" in answer:
            raise PeerError(f"{self._name}: {' '.join(str(answer['error']).split())}")
        return answer

    def _last_words(self) -> str:
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 4096))
        lines = [line.strip() for line in self._log.read().decode("utf-8", "replace").split("\n")]
        # A trace of the stack may follow the reason.
        reasons = [line for line in lines if REASON.search(line)] or [line for line in lines if line]
        return reasons[-1] if reasons else "it wrote nothing"


def start_peer(peer: Peer, python: str, model: Path, *, threads: int, works: Sequence[Work]) -> PeerProcess:
    """Start a peer with room for ``works``."""
    # A context has room for its last row only in whole cells, and the fork in whole chunks.
    positions = -(-max(work.positions for work in works) // 256) * 256 + 512
    sequences = max(work.streams for work in works)
    numbers = (threads, positions, sequences)
    return PeerProcess(
        peer.name, [python, str(WORKER), peer.package, str(model), *(str(number) for number in numbers)]
    )
