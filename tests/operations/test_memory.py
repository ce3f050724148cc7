"""Resident memory of real processes."""

import asyncio
import mmap
import os
import subprocess
import sys

from ferrite.operations.memory import (
    MemorySampler,
    ResidentMemory,
    peak_resident_bytes,
    read_sizes,
    resident_bytes,
)

MEBIBYTE = 2**20


def test_this_process_has_memory() -> None:
    own = resident_bytes(os.getpid())
    assert own is not None
    assert own > MEBIBYTE
    peak = peak_resident_bytes(os.getpid())
    assert peak is not None
    assert own <= peak


def test_memory_is_read_from_what_the_system_says_of_a_process() -> None:
    status = "Name:\tserver\nVmPeak:\t 900 kB\nVmHWM:\t     300 kB\nVmRSS:\t     200 kB\nRssAnon:\t 50 kB\n"
    assert read_sizes(status) == {"VmRSS": 200 * 1024, "VmHWM": 300 * 1024}


def test_a_process_that_has_ended_has_none() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert resident_bytes(process.pid) is None
    assert peak_resident_bytes(process.pid) is None


def test_the_peak_between_two_readings_is_seen() -> None:
    async def run() -> ResidentMemory | None:
        async with MemorySampler(os.getpid()) as sampler:
            # Fresh pages whatever the heap has free, and gone when closed.
            held = mmap.mmap(-1, 64 * MEBIBYTE)
            for page in range(0, len(held), mmap.PAGESIZE):
                held[page] = 1
            # Two samples: one may have been taken while the memory was being filled.
            while len(sampler.samples) < 2:
                await asyncio.sleep(0.01)
            held.close()
        return sampler.result()

    found = asyncio.run(run())
    assert found is not None
    assert found.before is not None
    assert found.peak is not None
    assert found.after is not None
    assert found.peak - found.before > 32 * MEBIBYTE
    assert found.after < found.peak


def test_no_process_named_measures_nothing() -> None:
    async def run() -> ResidentMemory | None:
        async with MemorySampler(None) as sampler:
            pass
        return sampler.result()

    assert asyncio.run(run()) is None
