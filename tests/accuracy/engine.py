"""The engine under test, and the shape any other engine must have to be measured the same way."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias

from ferrite.bench.evaluate import evaluate
from tests.reference.weights import Float32

Evaluate: TypeAlias = Callable[[Path, list[int]], Float32]
"""Teacher-forced logits [n, vocab] of a GGUF file and n token ids; row i follows ``token_ids[: i + 1]``."""

FERRITE: Evaluate = evaluate
"""Ferrite with its default settings: what a server computes."""

FERRITE_RESIDUAL: Evaluate = partial(evaluate, residual_activations=True)
"""Ferrite with residual activations, the policy for whom int8 alone is not near enough."""
