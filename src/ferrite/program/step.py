"""One step's input: which rows (tokens) of which sequences to evaluate, and which rows to sample."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ferrite.sampling import SamplingParams

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]


class Sampler(Protocol):
    """One request's sampling state (native): its random stream and the tokens it has seen."""


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Flat arrays for one step. ``n`` rows, ``s`` sequences, ``m`` sampled rows.

    Rows of one sequence stand next to each other in ascending, consecutive positions; every position
    before the first of them is already in the KV cache.
    """

    token_ids: Int32Array
    """[n]"""
    positions: Int32Array
    """[n] position of the row in its sequence, from 0"""
    sequences: Int32Array
    """[n] index into ``block_tables`` for each row, ascending"""
    block_tables: Sequence[Sequence[int] | Int32Array]
    """[s] KV block ids that cover each sequence up to and including its last row here"""
    sample_rows: Int32Array
    """[m] rows whose logits are wanted, in any order; a row may stand in it for several samplers"""
    samplers: Sequence[Sampler]
    """[m] one sampler per sampled row"""


class Runner(Protocol):
    """A loaded model that can run steps. The engine knows nothing else about inference."""

    @property
    def vocab_size(self) -> int:
        """Number of logits per row."""

    @property
    def context_length(self) -> int:
        """Most positions a sequence may have."""

    @property
    def block_tokens(self) -> int:
        """Positions per KV block."""

    @property
    def n_blocks(self) -> int:
        """KV blocks in the store."""

    @property
    def block_bytes(self) -> int:
        """Bytes of KV memory of one block."""

    def sampler(self, params: SamplingParams, prompt_tokens: Sequence[int], seed: int) -> Sampler:
        """Create the sampling state of a new request; ``seed`` is used when ``params.seed`` is None."""

    def step(self, batch: StepBatch) -> Int32Array:
        """Run the rows, write their KV, and return [m] sampled ids; -1 where logits were not finite.

        Blocks, releasing the GIL. Raises ``StepError`` when the step could not run.
        """

    def copy_block(self, source: int, target: int) -> None:
        """Copy one KV block (copy-on-write)."""

    def return_blocks(self, blocks: Sequence[int]) -> None:
        """Take note that ``blocks`` are free: where the KV policy says so their memory goes back."""


class StepError(RuntimeError):
    """A step that could not run; its requests fail, the engine goes on."""
