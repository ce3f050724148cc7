"""A small complete model to change one thing in, and what became of it."""

from pathlib import Path
from typing import Any

import pytest

from ferrite.bench.rows import Lines
from ferrite.gguf import GGUFError
from ferrite.program.runner import KvDtype
from ferrite.sampling import SamplingParams
from tests.models.files import Parts
from tests.models.support import Way, load, memory_bounded
from tests.reference.tiny import Architecture

ARCHITECTURES: tuple[Architecture, ...] = ("llama", "qwen2", "gemma3")
SMALL: dict[str, Any] = {
    "n_layers": 1,
    "n_embd": 32,
    "n_heads": 2,
    "n_kv_heads": 1,
    "head_size": 32,
    "n_ff": 64,
    "context_length": 64,
}
MOST_MEMORY = 64 << 20
"""What a small hostile file may make a process grow by."""


every_architecture = pytest.mark.parametrize("parts", ARCHITECTURES, indirect=True)
llama_only = pytest.mark.parametrize("parts", ["llama"], indirect=True)
gemma3_only = pytest.mark.parametrize("parts", ["gemma3"], indirect=True)


def name_of(parts: Parts) -> str:
    (_, raw) = parts.pairs["general.architecture"]
    return raw[8:].decode()


def refusal(parts: Parts, path: Path) -> str:
    """The message of the error that the file is refused with."""
    with memory_bounded(MOST_MEMORY), pytest.raises(GGUFError) as caught:
        load(parts.write(path), Way())
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert message.isprintable()
    assert len(message) < len(str(path)) + 200
    return message.removeprefix(f"{path}: ")


def step(path: Path, tokens: list[int], *, provider: str = "auto", kv_dtype: KvDtype = "f16") -> list[int]:
    """Load and take one step, sampling greedily and by chance after the last token."""
    runner = load(path, Way(sequences=2, provider=provider, kv_dtype=kv_dtype))
    samplers = [runner.sampler(SamplingParams(temperature=temperature), [], 0) for temperature in (0.0, 1.0)]
    lines = Lines(2, -(-len(tokens) // runner.block_tokens))
    batch = lines.batch([(0, tokens), (1, tokens)], logits="last", samplers=samplers)
    ids: list[int] = runner.step(batch).tolist()
    return ids
