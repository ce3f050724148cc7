"""A loaded model: weights packed, program compiled for the native executor, KV memory reserved."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

import numpy as np

from ferrite import _native
from ferrite.gguf import GGUFFile
from ferrite.program.compile import compile_program
from ferrite.program.ops import Attention, Logits, Program
from ferrite.program.step import (
    Float32Array,
    Int32Array,
    MaskSlot,
    Sampler,
    Scorer,
    StepBatch,
    StepError,
)
from ferrite.program.weights import LoadedWeights, load_weights, multiplied_names
from ferrite.sampling import SamplingParams

KvDtype: TypeAlias = Literal["f16", "f32", "q8_0"]
"""``q8_0`` is int8 with one float16 scale for 32 values: 17/32 of the memory of ``f16``."""
KvBackend: TypeAlias = Literal["vec", "locus"]
"""``vec`` keeps the memory of free blocks for the next sequence; ``locus`` gives it back to the system."""

MOST_BLOCK_TOKENS = 1 << 16
"""Positions of one block: more would hand out memory in pieces that no sequence fills."""
MOST_BLOCKS = 1 << 22
"""KV blocks of one store, 67 million positions in blocks of 16: whoever hands them out lists them all."""
MOST_KV_BYTES = 1 << 45
"""A quarter of the address space of a process; memory itself is taken as positions are written."""


class RunnerConfigError(ValueError):
    """A model that cannot be run as it was asked for; one line that names the setting at fault."""


@dataclass(frozen=True, slots=True)
class RunnerConfig:
    """How a model is run; only ``kv_dtype`` and ``residual_activations`` change what it computes."""

    threads: int
    provider: str = "auto"
    """``auto``, ``portable`` or an instruction set of ``_native.providers()``"""
    residual_activations: bool = False
    """int8 activations with a second int8 term for what rounding left: nearer to float32, twice the work"""
    kv_dtype: KvDtype = "f16"
    kv_backend: KvBackend = "vec"
    block_tokens: int = 16
    context_length: int | None = None
    """positions a sequence may have; the model's own when None"""
    sequences: int = 1
    """sequences of full capacity that the KV store has blocks for"""
    session_positions: int | None = None
    """positions of one sequence that the KV store has blocks for; the context length when None or above it"""
    spare_bytes: int = 0
    """bytes of more blocks, for prefix snapshots"""


class NativeRunner:
    """``ferrite.program.step.Runner`` over the native executor. Used from one thread at a time."""

    def __init__(self, program: Program, weights: LoadedWeights, config: RunnerConfig) -> None:
        """Compile the program and reserve the KV store; raises ``RunnerConfigError``."""
        self._program = program
        self._context_length = (
            program.context_length if config.context_length is None else config.context_length
        )
        self._block_tokens = config.block_tokens
        self._block_bytes = _block_bytes(program, config)
        capacity = _capacity(config, self._context_length)
        self._session_blocks = -(-capacity // config.block_tokens)
        self._n_blocks = _count_blocks(config, capacity, self._block_bytes)
        try:
            self._kv = _native.KvStore(
                layers=program.n_layers,
                kv_heads=program.heads.n_kv_heads,
                head_dim=program.heads.head_dim,
                block_tokens=config.block_tokens,
                blocks=self._n_blocks,
                dtype=config.kv_dtype,
                backend=config.kv_backend,
            )
            self._weights = weights
            self._executor = compile_program(
                program,
                weights,
                self._kv,
                team=_native.Team(config.threads),
                provider=config.provider,
                residual=config.residual_activations,
            )
        except ValueError as error:
            raise RunnerConfigError(str(error)) from error

    @property
    def program(self) -> Program:
        """The traced model."""
        return self._program

    @property
    def provider(self) -> str:
        """The kernels in use, such as ``avx2``."""
        return self._executor.provider

    @property
    def vocab_size(self) -> int:
        """Number of logits per row."""
        return self._program.vocab_size

    @property
    def context_length(self) -> int:
        """Most positions a sequence may have."""
        return self._context_length

    @property
    def block_tokens(self) -> int:
        """Positions per KV block."""
        return self._block_tokens

    @property
    def n_blocks(self) -> int:
        """KV blocks in the store."""
        return self._n_blocks

    @property
    def block_bytes(self) -> int:
        """Bytes of KV memory of one block."""
        return self._block_bytes

    @property
    def run_blocks(self) -> int:
        """KV blocks in a run: neighbours that a sequence does best to have to itself."""
        return self._kv.run_blocks

    @property
    def session_bytes(self) -> int:
        """Most KV memory that one sequence can take."""
        return self._session_blocks * self._block_bytes

    @property
    def kv_bytes(self) -> int:
        """Most memory that the KV store can take: every sequence at its capacity, and the spare blocks."""
        return self._n_blocks * self._block_bytes

    @property
    def weight_bytes(self) -> int:
        """Memory of the packed weights."""
        return self._weights.n_bytes

    @property
    def step_bytes(self) -> int:
        """Bytes of weights that a step must read at the least."""
        return sum(self._weights.matrix(name).n_bytes for name in multiplied_names(self._program))

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of one row whose logits are wanted, attention apart."""
        return self._multiply_adds(multiplied_names(self._program))

    @property
    def logits_multiply_adds(self) -> int:
        """Of ``multiply_adds``, those of the output matrix: only rows whose logits are wanted have them."""
        return self._multiply_adds([op.weight for op in self._program.ops if isinstance(op, Logits)])

    def _multiply_adds(self, names: Sequence[str]) -> int:
        matrices = map(self._weights.matrix, names)
        return sum(matrix.rows * matrix.cols for matrix in matrices)

    def kv_read_bytes(self, position: int) -> int:
        """Bytes of KV memory that a row at ``position`` reads, its own included: a window hides the rest."""
        layer_bytes = self._block_bytes / (self._block_tokens * self._program.n_layers)
        windows = [op.window for op in self._program.ops if isinstance(op, Attention)]
        return round(layer_bytes * sum(min(position + 1, window or position + 1) for window in windows))

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
        return _native.Sampler(
            vocab_size=self.vocab_size,
            temperature=params.temperature,
            top_k=min(params.top_k, self.vocab_size),
            top_p=params.top_p,
            min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
            frequency_penalty=params.frequency_penalty,
            presence_penalty=params.presence_penalty,
            logit_bias=list(params.logit_bias),
            seed=(seed if params.seed is None else params.seed) & 0xFFFFFFFFFFFFFFFF,
            prompt_tokens=list(prompt_tokens),
            mask=cast("_native.MaskSlot | None", mask),
            top_logprobs=-1 if top_logprobs is None else top_logprobs,
        )

    def mask_slot(self) -> MaskSlot:
        """Create the place of one request's masks."""
        return _native.MaskSlot(self.vocab_size)

    def scorer(self, tokens: Sequence[int], top_logprobs: int) -> Scorer:
        """Create what scores ``tokens``, each under the logits of its own row, in one step."""
        return _native.Scorer(list(tokens), self.vocab_size, top_logprobs)

    def step(self, batch: StepBatch) -> Int32Array:
        """Run the rows, write their KV, and return the sampled ids; -1 where logits were not finite."""
        try:
            return self._executor.step(
                batch.token_ids,
                batch.positions,
                batch.sequences,
                [np.asarray(table, np.int32) for table in batch.block_tables],
                batch.sample_rows,
                cast("Sequence[_native.Sampler]", batch.samplers),
                cast("Sequence[tuple[int, _native.Scorer]]", batch.scored),
                batch.drafted,
            )
        except (ValueError, MemoryError) as error:
            raise StepError(str(error)) from error

    def logits(self, batch: StepBatch) -> Float32Array:
        """Run the rows like ``step`` but return [m, vocab] logits; the samplers are not used."""
        return self._executor.evaluate(
            batch.token_ids,
            batch.positions,
            batch.sequences,
            [np.asarray(table, np.int32) for table in batch.block_tables],
            batch.sample_rows,
        )

    def record_times(self) -> None:
        """Record, from nothing, where the time of the following steps goes. Not while a step runs."""
        self._executor.record_times()

    def recorded_times(self) -> _native.OpTimes:
        """Stop recording and return what was: in seconds, ops summed over the threads."""
        return self._executor.recorded_times()

    def copy_block(self, source: int, target: int) -> None:
        """Copy one KV block (copy-on-write)."""
        self._kv.copy_block(source, target)

    def return_blocks(self, blocks: Sequence[int]) -> None:
        """Take note that ``blocks`` are free; with ``locus`` their pages go back to the system."""
        self._kv.return_blocks(np.asarray(blocks, np.int32))


def _block_bytes(program: Program, config: RunnerConfig) -> int:
    """Return the memory of one KV block, held against what blocks can be."""
    tokens = config.block_tokens
    if not 1 <= tokens <= MOST_BLOCK_TOKENS or tokens % 16 != 0:
        raise RunnerConfigError(
            f"block_tokens is {tokens}, expected a multiple of 16 between 16 and {MOST_BLOCK_TOKENS}"
        )
    heads = program.heads
    if config.kv_dtype == "q8_0" and heads.head_dim % 32 != 0:
        raise RunnerConfigError(
            f"kv_dtype q8_0 needs a head size that is a multiple of 32, and this model's is {heads.head_dim}"
        )
    try:
        return _native.kv_block_bytes(
            layers=program.n_layers,
            kv_heads=heads.n_kv_heads,
            head_dim=heads.head_dim,
            block_tokens=tokens,
            dtype=config.kv_dtype,
            backend=config.kv_backend,
        )
    except ValueError as error:
        raise RunnerConfigError(str(error)) from error


def _capacity(config: RunnerConfig, context_length: int) -> int:
    """Return the positions of one sequence that the store has blocks for."""
    capacity = context_length if config.session_positions is None else config.session_positions
    for name, value in (("context_length", context_length), ("session_positions", capacity)):
        if value < 1:
            raise RunnerConfigError(f"{name} is {value}, expected at least 1")
    return min(capacity, context_length)


def _count_blocks(config: RunnerConfig, capacity: int, block_bytes: int) -> int:
    """Return the blocks of all sequences and the spare ones, held against what a process can address."""
    for name, value, least in (("sequences", config.sequences, 1), ("spare_bytes", config.spare_bytes, 0)):
        if value < least:
            raise RunnerConfigError(f"{name} is {value}, expected at least {least}")
    spare = config.spare_bytes // block_bytes
    blocks = -(-capacity // config.block_tokens) * config.sequences + spare
    if blocks > MOST_BLOCKS or blocks * block_bytes > MOST_KV_BYTES:
        raise RunnerConfigError(
            f"a KV cache for {config.sequences} sequences of {capacity} positions and {spare} spare blocks "
            f"would take {blocks * block_bytes / (1 << 30):.0f} GiB in {blocks} blocks; lower the context "
            f"length, the number of sequences or the spare bytes"
        )
    return blocks


def load_runner(file: GGUFFile, program: Program, config: RunnerConfig) -> NativeRunner:
    """Pack the file's weights, on every core since nothing else runs yet, and compile the program."""
    return NativeRunner(program, load_weights(file, program, threads=len(os.sched_getaffinity(0))), config)
