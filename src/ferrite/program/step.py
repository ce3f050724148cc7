"""One step's input: which rows (tokens) of which sequences to evaluate, and which rows to sample."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from ferrite.sampling import SamplingParams

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]
Int32Buffer: TypeAlias = "Int32Array | array[int]"
"""Contiguous int32: the ``array("i")`` of the standard library is made of a few numbers in half the time."""


Logprobs: TypeAlias = tuple[float, Sequence[tuple[int, float]]]
"""The log-probability of a token, and (token, log-probability) of the likeliest ones, the likeliest first."""


class MaskSlot(Protocol):
    """Where somebody writes which tokens may come next, and a sampler waits for it (native)."""

    @property
    def words(self) -> npt.NDArray[np.uint32]:
        """Bit ``i % 32`` of word ``i / 32`` allows token ``i``."""

    @property
    def state(self) -> Literal["empty", "pending", "ready", "failed"]:
        """``failed``: no mask came, and nothing was sampled."""

    def begin(self) -> None:
        """Say that the mask for the next token is being made."""

    def publish(self) -> None:
        """Say that it can be read."""

    def fail(self) -> None:
        """Say that it will not come."""


class Sampler(Protocol):
    """One request's sampling state (native): its random stream and the tokens it has seen."""

    @property
    def logprobs(self) -> Sequence[Logprobs]:
        """Of the last step's tokens, in order; only for a sampler that was made with ``top_logprobs``."""


class Scorer(Protocol):
    """Given tokens, and how likely the logits of consecutive rows make them (native)."""

    @property
    def logprobs(self) -> Sequence[Logprobs | None]:
        """One for each token, once the step is over; None where logits were not finite."""


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Flat arrays for one step. ``n`` rows, ``s`` sequences, ``m`` sampled rows.

    Rows of one sequence stand next to each other in ascending, consecutive positions; every position
    before the first of them is already in the KV cache.
    """

    token_ids: Int32Buffer
    """[n]"""
    positions: Int32Buffer
    """[n] position of the row in its sequence, from 0"""
    sequences: Int32Buffer
    """[n] index into ``block_tables`` for each row, ascending"""
    block_tables: Sequence[Sequence[int] | Int32Array]
    """[s] KV block ids that cover each sequence at least up to and including its last row here"""
    sample_rows: Int32Buffer
    """[m] rows whose logits are wanted, in any order; a row may stand in it for several samplers"""
    samplers: Sequence[Sampler]
    """[m] one sampler per sampled row"""
    scored: Sequence[tuple[int, Scorer]] = ()
    """Scorers and the row of the first token of each"""
    drafted: Sequence[int] = ()
    """[m] rows behind each sampled row whose tokens are a draft of what follows; empty for none at all"""


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

    @property
    def run_blocks(self) -> int:
        """KV blocks in a run: neighbours that a sequence does best to have to itself."""

    def sampler(
        self,
        params: SamplingParams,
        prompt_tokens: Sequence[int],
        seed: int,
        *,
        mask: MaskSlot | None = None,
        top_logprobs: int | None = None,
    ) -> Sampler:
        """Create the sampling state of a new request; ``seed`` is used when ``params.seed`` is None.

        With a ``mask``, every token waits for one there. With ``top_logprobs``, each token has its
        log-probability and those of that many likeliest ones.
        """

    def mask_slot(self) -> MaskSlot:
        """Create the place of one request's masks."""

    def scorer(self, tokens: Sequence[int], top_logprobs: int) -> Scorer:
        """Create what scores ``tokens``, each under the logits of its own row, in one step."""

    def step(self, batch: StepBatch) -> Int32Array:
        """Run the rows, write their KV, and return [m] sampled ids; -1 where logits were not finite.

        A sampler with a draft goes on to the next row for as long as its ids are those of the draft, and ends
        up as if each had been sampled in a step of its own. The result then has an id for each of its rows,
        [m + sum of drafted] in all, and -1 for those that were not reached.

        Blocks, releasing the GIL. Raises ``StepError`` when the step could not run.
        """

    def copy_block(self, source: int, target: int) -> None:
        """Copy one KV block (copy-on-write)."""

    def return_blocks(self, blocks: Sequence[int]) -> None:
        """Take note that ``blocks`` are free: where the KV policy says so their memory goes back."""


class StepError(RuntimeError):
    """A step that could not run; its requests fail, the engine goes on."""
