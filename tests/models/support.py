"""Loading a model one way or another and taking the logits of every position."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ferrite.bench.evaluate import teacher_forced
from ferrite.gguf import open_gguf
from ferrite.models import trace_model
from ferrite.program.runner import KvBackend, KvDtype, NativeRunner, RunnerConfig, load_runner
from ferrite.program.step import Float32Array
from tests.reference.tiny import vocabulary


@dataclass(frozen=True)
class Way:
    """How a model is run."""

    provider: str = "auto"
    threads: int = 1
    chunk: int = 64
    block_tokens: int = 16
    kv_dtype: KvDtype = "f16"
    kv_backend: KvBackend = "vec"
    sequences: int = 1


def load(path: Path, way: Way, *, context_length: int | None = None) -> NativeRunner:
    """Open, trace and pack a model file."""
    with open_gguf(path) as file:
        config = RunnerConfig(
            threads=way.threads,
            provider=way.provider,
            kv_dtype=way.kv_dtype,
            kv_backend=way.kv_backend,
            block_tokens=way.block_tokens,
            context_length=context_length,
            sequences=way.sequences,
        )
        return load_runner(file, trace_model(file), config)


def logits(path: Path, token_ids: Sequence[int], way: Way) -> Float32Array:
    """Logits [n, vocab] after each of ``token_ids``."""
    runner = load(path, way, context_length=len(token_ids))
    return teacher_forced(runner, token_ids, chunk=way.chunk)


def token_ids(n: int) -> list[int]:
    """Ids that do not repeat within the vocabulary's size in any simple way."""
    return [(101 * i + i * i // 7) % len(vocabulary()) for i in range(n)]


@contextmanager
def memory_bounded(most: int) -> Iterator[None]:
    """Fail when this process's resident memory ever grew by ``most`` bytes within the block."""
    # Without the reset, which some sandboxes do not offer, earlier peaks can hide growth but not feign it.
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    before = max(_status("VmRSS"), _status("VmHWM"))
    yield
    assert _status("VmHWM") - before < most


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (size,) = (line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return int(size) << 10
