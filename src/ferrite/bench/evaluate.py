"""Teacher-forced logits of a text: what the accuracy checks compare with the reference."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ferrite.bench.rows import Lines
from ferrite.gguf import open_gguf
from ferrite.models import trace_model
from ferrite.program.runner import NativeRunner, RunnerConfig, load_runner
from ferrite.program.step import Float32Array

CHUNK = 64
"""Rows a step, so that the logits of a 262,144-token vocabulary stay at 64 MiB."""


def evaluate(
    model: Path, token_ids: Sequence[int], *, threads: int = 1, residual_activations: bool = False
) -> Float32Array:
    """Load ``model`` and return the logits after each of ``token_ids``: [n, vocab]."""
    with open_gguf(model) as file:
        config = RunnerConfig(
            threads=threads, context_length=len(token_ids), residual_activations=residual_activations
        )
        return teacher_forced(load_runner(file, trace_model(file), config), token_ids, chunk=CHUNK)


def teacher_forced(runner: NativeRunner, token_ids: Sequence[int], *, chunk: int) -> Float32Array:
    """Evaluate one sequence from its start, ``chunk`` rows a step: [n, vocab] logits."""
    lines = Lines(1, -(-len(token_ids) // runner.block_tokens))
    parts = [
        runner.logits(lines.batch([(0, token_ids[at : at + chunk])], logits="all"))
        for at in range(0, len(token_ids), chunk)
    ]
    return np.concatenate(parts)
