"""Mutate small GGUF files and check that the reader either opens each or refuses it in one line.

Fails on any other exception, on a file that takes longer than ``--seconds``, and on an allocation above
64 MiB (Python's allocator by tracemalloc, everything else by an address space limit).
"""

import argparse
import json
import re
import resource
import signal
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import gguf
import numpy as np

from ferrite.cli.inspect import inspect_json, inspect_text
from ferrite.gguf import GGUFError, open_gguf

MAX_ALLOCATION = 64 << 20
ADDRESS_SPACE_SLACK = 16 << 20
"""Thread stacks, arenas and the mapped file itself also count as address space."""

INTERESTING = (
    *(0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 12, 13, 31, 32, 33, 39, 40, 41, 42, 63, 64, 255, 256, 65_535, 65_536),
    *(
        2**31 - 1,
        2**31,
        2**32 - 1,
        2**32,
        2**40,
        2**42 + 1,
        2**60,
        2**61,
        2**63 - 1,
        2**63,
        2**64 - 32,
        2**64 - 1,
    ),
)


INTEGER_FIELD = re.compile(rb"[^\0]\0\0\0")


class Hang(BaseException):
    """Raised by the timer; no handler below the driver may swallow it."""


def seed_files(folder: Path) -> list[bytes]:
    """Return small valid files that use every value type and many tensor types, in both versions."""
    files = []
    for variant in range(4):
        path = folder / f"seed-{variant}.gguf"
        _write_seed(path, variant)
        files.append(path.read_bytes())
    return [*files, *(file[:4] + (2).to_bytes(4, "little") + file[8:] for file in files)]


def mutate(data: bytes, random: Random) -> bytes:
    """Return ``data`` with one to four random faults, most of them in integers of the header."""
    mutated = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 3, 4))):
        _FAULTS[random.randrange(len(_FAULTS))](mutated, random)
    return bytes(mutated)


def exercise(path: Path) -> None:
    """Open a file and read everything in it, as text, as data and as raw bytes."""
    with open_gguf(path) as file:
        inspect_text(file, tensors=True)
        json.dumps(inspect_json(file), allow_nan=False)
        for name, info in file.tensors.items():
            assert len(bytes(file.data(name))) == info.n_bytes
        for key in file.metadata:
            file.metadata.get(key)
            if file.metadata.entry(key).kind == "array of string":
                file.metadata.strings(key)


def _write_seed(path: Path, variant: int) -> None:
    writer = gguf.GGUFWriter(path, "llama", use_temp_file=False)
    writer.add_block_count(2)
    writer.add_embedding_length(64)
    writer.add_head_count(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"token {index}" for index in range(1 + 40 * variant)])
    writer.add_token_types([1] * (1 + 40 * variant))
    writer.add_array("scores", [0.5, -1.5, 2.0])
    writer.add_array("nested", [[1, 2], [3], [4, 5, 6]][: variant % 3 + 1])
    for add in (writer.add_uint8, writer.add_uint16, writer.add_uint64):
        add(f"{add.__name__}.key", 7)
    for add in (writer.add_int8, writer.add_int16, writer.add_int32, writer.add_int64):
        add(f"{add.__name__}.key", -7)
    writer.add_float64("float64.key", 0.25)
    writer.add_bool("bool.key", val=True)
    writer.add_chat_template("{% for message in messages %}\n{{ message.content }}{% endfor %}")
    if variant % 2:
        writer.add_custom_alignment(64)
    values = np.linspace(-1, 1, 512, dtype=np.float32)
    writer.add_tensor("norm.weight", values[:64])
    writer.add_tensor("token_embd.weight", values.reshape(8, 64).astype(np.float16))
    for kind in (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_1):
        quantised = gguf.quants.quantize(values.reshape(2, 256), kind)
        writer.add_tensor(f"blk.{variant}.{kind.name}", quantised, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _position(data: bytearray, width: int, random: Random) -> int:
    return random.randrange(max(len(data) - width, 0) + 1)


def _overwrite(data: bytearray, width: int, random: Random) -> None:
    at = _position(data, width, random)
    data[at : at + width] = (random.choice(INTERESTING) % (1 << 8 * width)).to_bytes(width, "little")


def _set_u32(data: bytearray, random: Random) -> None:
    _overwrite(data, 4, random)


def _set_u64(data: bytearray, random: Random) -> None:
    _overwrite(data, 8, random)


def _set_small_integer(data: bytearray, random: Random) -> None:
    """Replace a nonzero byte with zeros behind it: nearly always the low byte of an integer field."""
    fields = [match.start() for match in INTEGER_FIELD.finditer(data)]
    if fields:
        at = random.choice(fields)
        width = random.choice((1, 4, 8))
        data[at : at + width] = (random.choice(INTERESTING) % (1 << 8 * width)).to_bytes(width, "little")


def _flip_bit(data: bytearray, random: Random) -> None:
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _truncate(data: bytearray, random: Random) -> None:
    del data[random.randrange(len(data) + 1) :]


def _delete(data: bytearray, random: Random) -> None:
    at = _position(data, 1, random)
    del data[at : at + random.randrange(1, 64)]


def _insert(data: bytearray, random: Random) -> None:
    at = _position(data, 0, random)
    data[at:at] = random.randbytes(random.randrange(1, 64))


def _repeat(data: bytearray, random: Random) -> None:
    at = _position(data, 1, random)
    data[at:at] = data[at : at + random.randrange(1, 128)]


_FAULTS = (
    *(_set_small_integer, _set_small_integer, _set_small_integer, _set_u32, _set_u64),
    *(_flip_bit, _truncate, _delete, _insert, _repeat),
)


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _on_alarm(_signal: int, _frame: object) -> None:
    raise Hang


def _limit_address_space() -> None:
    used_pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = used_pages * resource.getpagesize() + MAX_ALLOCATION + ADDRESS_SPACE_SLACK
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def check(path: Path, seconds: float) -> tuple[str, str | None]:
    """Return the outcome for one file, and what is wrong with it (None when nothing is)."""
    tracemalloc.reset_peak()
    try:
        with _time_limit(seconds):
            exercise(path)
        outcome, failure = "opened", None
    except GGUFError as error:
        message = str(error)
        one_line = message.isprintable() and message.startswith(str(path))
        outcome, failure = "refused", None if one_line else f"bad message {message!r}"
    except Hang:
        outcome, failure = "failed", f"took longer than {seconds} s"
    except Exception as error:
        outcome, failure = "failed", f"{type(error).__name__}: {error}"
    peak = tracemalloc.get_traced_memory()[1]
    if failure is None and peak > MAX_ALLOCATION:
        failure = f"allocated {peak >> 20} MiB"
    return outcome, failure


def main() -> int:
    """Run the fuzz, print one line per failure and a summary line; return 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="files to try")
    parser.add_argument("--seed", type=int, default=0, help="seed of the mutations")
    parser.add_argument("--seconds", type=float, default=2.0, help="time limit per file")
    parser.add_argument("--save", type=Path, help="folder to keep failing files in")
    arguments = parser.parse_args()

    outcomes: Counter[str] = Counter()
    slowest = peak = 0.0
    n_failures = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seeds = seed_files(folder)
        path = folder / "mutated.gguf"
        for seed in seeds:
            path.write_bytes(seed)
            exercise(path)
        signal.signal(signal.SIGALRM, _on_alarm)
        tracemalloc.start()
        _limit_address_space()
        started = time.perf_counter()
        for index in range(arguments.count):
            random = Random(f"{arguments.seed}:{index}")
            path.write_bytes(mutate(random.choice(seeds), random))
            before = time.perf_counter()
            outcome, failure = check(path, arguments.seconds)
            slowest = max(slowest, time.perf_counter() - before)
            peak = max(peak, tracemalloc.get_traced_memory()[1])
            outcomes[outcome] += 1
            if failure is not None:
                n_failures += 1
                print(f"file {index}: {failure}")
                if arguments.save is not None:
                    arguments.save.mkdir(parents=True, exist_ok=True)
                    (arguments.save / f"{arguments.seed}-{index}.gguf").write_bytes(path.read_bytes())
        seconds = time.perf_counter() - started
    print(
        f"fuzz_gguf count={arguments.count} seed={arguments.seed} opened={outcomes['opened']} "
        f"refused={outcomes['refused']} failures={n_failures} seconds={seconds:.1f} "
        f"slowest_ms={slowest * 1e3:.1f} peak_alloc_mib={peak / (1 << 20):.2f}"
    )
    return 1 if n_failures else 0


if __name__ == "__main__":
    sys.exit(main())
