"""One entry point to the reference of any architecture."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from tests.reference import gemma3, llama, qwen2
from tests.reference.weights import Float32, Weights

_FINAL_STATES: dict[str, Callable[[Weights, list[int]], Float32]] = {
    "llama": llama.final_states,
    "qwen2": qwen2.final_states,
    "gemma3": gemma3.final_states,
}
_HONOURED_ROPE_SCALING = {"none", "linear"}


class Reference:
    """Teacher-forced logits of one token sequence, computed by rows so that a big vocabulary fits."""

    def __init__(self, path: Path, token_ids: list[int]) -> None:
        """Run the decoder. Raises ``ValueError`` for a file that the reference does not describe."""
        with Weights(path) as weights:
            _refuse_what_is_not_described(weights)
            self._states = _FINAL_STATES[weights.architecture](weights, token_ids)
            tied = "output.weight" not in weights
            self._output = weights.tensor("token_embd.weight" if tied else "output.weight")
            self._softcap = weights.number(f"{weights.architecture}.final_logit_softcapping", 0.0)

    @property
    def n_positions(self) -> int:
        """Number of rows of logits."""
        return len(self._states)

    @property
    def vocab_size(self) -> int:
        """Number of logits per row."""
        return len(self._output)

    def head(self, positions: int) -> "Reference":
        """Return the first ``positions`` positions."""
        first = copy.copy(self)
        first._states = self._states[:positions]
        return first

    def logits(self, start: int, stop: int) -> Float32:
        """Logits of positions ``start`` to ``stop``, [stop - start, vocab]."""
        logits = self._states[start:stop] @ self._output.T
        return np.tanh(logits / self._softcap) * self._softcap if self._softcap else logits

    def chunks(self, rows: int = 64) -> Iterator[Float32]:
        """All logits in order, at most ``rows`` positions at a time."""
        for start in range(0, self.n_positions, rows):
            yield self.logits(start, start + rows)


def reference_logits(path: Path, token_ids: list[int]) -> Float32:
    """Teacher-forced float32 logits [n, vocab]: row i is the prediction after ``token_ids[: i + 1]``."""
    reference = Reference(path, token_ids)
    return reference.logits(0, reference.n_positions)


def _refuse_what_is_not_described(weights: Weights) -> None:
    architecture = weights.architecture
    if architecture not in _FINAL_STATES:
        raise ValueError(f"general.architecture: no reference for {architecture!r}")
    scaling = weights.metadata.get(f"{architecture}.rope.scaling.type", "none")
    if scaling not in _HONOURED_ROPE_SCALING:
        raise ValueError(f"{architecture}.rope.scaling.type: no reference for {scaling!r}")
    n_heads = weights.integer(f"{architecture}.attention.head_count")
    head_size = weights.integer(
        f"{architecture}.attention.key_length",
        weights.integer(f"{architecture}.embedding_length") // n_heads,
    )
    if weights.integer(f"{architecture}.rope.dimension_count", head_size) != head_size:
        raise ValueError(f"{architecture}.rope.dimension_count: no reference for partial rotation")
