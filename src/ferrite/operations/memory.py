"""Resident memory of another process of this machine, from ``/proc``."""

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

SAMPLE_SECONDS = 0.1
_SIZE = re.compile(r"^(VmHWM|VmRSS):\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ResidentMemory:
    """Bytes before, at most during, and after a load; None where the process was gone."""

    before: int | None
    peak: int | None
    after: int | None


def resident_bytes(pid: int) -> int | None:
    """Return the resident set of process ``pid``; None when there is no such process."""
    return _sizes(pid).get("VmRSS")


def peak_resident_bytes(pid: int) -> int | None:
    """Return the largest resident set that process ``pid`` ever had; None when there is no such process."""
    return _sizes(pid).get("VmHWM")


def read_sizes(status: str) -> dict[str, int]:
    """Return the bytes of ``VmRSS`` and ``VmHWM`` in the text of ``/proc/PID/status``, where they stand."""
    return {name: int(kib) * 1024 for name, kib in _SIZE.findall(status)}


def _sizes(pid: int) -> dict[str, int]:
    try:
        return read_sizes(Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return {}


class MemorySampler:
    """Samples a process while the block runs; ``pid`` None samples nothing."""

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self._before: int | None = None
        self._after: int | None = None
        self.samples: list[int] = []
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._pid is not None:
            self._before = resident_bytes(self._pid)
            self._task = asyncio.create_task(self._sample(self._pid))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None and self._pid is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
            self._after = resident_bytes(self._pid)

    def result(self) -> ResidentMemory | None:
        """Return what was seen; None when no process was named."""
        if self._pid is None:
            return None
        seen = [*self.samples, *(value for value in (self._before, self._after) if value is not None)]
        return ResidentMemory(self._before, max(seen, default=None), self._after)

    async def _sample(self, pid: int) -> None:
        while True:
            value = resident_bytes(pid)
            if value is not None:
                self.samples.append(value)
            await asyncio.sleep(SAMPLE_SECONDS)
