"""How long ``ferrite-server`` takes to start, and how much memory a started one holds.

    python -m benchmarks.start
    python -m benchmarks.start --model qwen2.5-coder-0.5b-instruct --starts 9 --threads 4

Starts the server as a process of its own, on a loopback port that the system chooses: once to fill the
file cache, then ``--starts`` times to be measured. A start ends with the answer to ``GET /v1/models``. Run
from the repository root; the machine should be idle.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

from ferrite.api.threads import automatic_threads
from ferrite.catalogue import console_report, resolve
from ferrite.operations.memory import peak_resident_bytes, resident_bytes

COMMAND = (sys.executable, "-c", "from ferrite.cli.start import main; main()")
WAIT_SECONDS = 120.0

FILE_SHARE = 1.1
FIXED_BYTES = 150_000_000
"""The bound: this share of the file's size, and these bytes for all that does not grow with it. The KV cache
would come on top, but none of it is in memory before the first request."""


@dataclass(frozen=True, slots=True)
class Start:
    """One start."""

    seconds: float
    """From the creation of the process to ready."""
    load_seconds: float
    """Of them, those spent on the model."""
    resident: int
    """Bytes of the process in memory when it was ready."""
    peak: int
    """The most that ever were."""


def bound(file_bytes: int) -> int:
    """Return how many bytes a started server of a file may hold."""
    return round(FILE_SHARE * file_bytes) + FIXED_BYTES


def report(file_bytes: int, starts: Sequence[Start]) -> str:
    """Return the table: medians of the times, the worst of the memory."""
    seconds = sorted(start.seconds for start in starts)
    most = bound(file_bytes)
    resident, peak = (max(getattr(start, name) for start in starts) for name in ("resident", "peak"))
    return "\n".join(
        (
            f"start to ready   {statistics.median(seconds):7.2f} s    "
            f"{seconds[0]:.2f} to {seconds[-1]:.2f} in {len(starts)} starts",
            f"  of it, model   {statistics.median(start.load_seconds for start in starts):7.2f} s",
            f"file             {file_bytes / 1e6:7.0f} MB",
            f"bound            {most / 1e6:7.0f} MB   {FILE_SHARE} x file + {FIXED_BYTES / 1e6:.0f} MB",
            f"memory, ready    {resident / 1e6:7.0f} MB   {_verdict(resident, most)}",
            f"memory, peak     {peak / 1e6:7.0f} MB   {_verdict(peak, most)}",
        )
    )


def _verdict(n_bytes: int, most: int) -> str:
    return f"{n_bytes / most:.2f} of the bound"


def measure(model: Path, threads: int) -> Start:
    """Start a server, wait until it is ready, read its memory, and end it."""
    command = [*COMMAND, "--model", str(model), "--bind", "127.0.0.1:0", "--threads", str(threads)]
    # An installed server has its modules as bytecode; so has this one from its first start on.
    unwanted = re.compile("FERRITE_|PYTHONDONTWRITEBYTECODE$")
    environ = {name: value for name, value in os.environ.items() if not unwanted.match(name)}
    began = time.monotonic()
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                log.seek(0)
                raise SystemExit(log.read().rstrip())
            ready = json.loads(line)
            host, _, port = ready["address"].rpartition(":")
            connection = HTTPConnection(host, int(port), timeout=WAIT_SECONDS)
            connection.request("GET", "/v1/models")
            answer = connection.getresponse()
            seconds = time.monotonic() - began
            if answer.status != 200:
                raise SystemExit(f"/v1/models answered {answer.status}")
            connection.close()
            resident, peak = resident_bytes(process.pid), peak_resident_bytes(process.pid)
            if resident is None or peak is None:
                raise SystemExit("the server ended while it was measured")
        finally:
            process.terminate()
    return Start(seconds, ready["load_seconds"], resident, peak)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2-135m-instruct", help="GGUF file or catalogue name")
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--threads", type=int, default=automatic_threads(), help="inference workers")
    given = parser.parse_args()
    if given.starts < 1:
        parser.error("--starts must be at least 1")
    with console_report() as told:
        path = resolve(given.model, report=told)
    measure(path, given.threads)
    starts = [measure(path, given.threads) for _ in range(given.starts)]
    print(f"{path.name}, {given.threads} threads")
    print(report(path.stat().st_size, starts))


if __name__ == "__main__":
    main()
