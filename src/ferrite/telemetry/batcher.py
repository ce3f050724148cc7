"""What the engine counts while it runs, and the snapshot others read."""

from dataclasses import dataclass

from ferrite.telemetry.histogram import (
    BATCH_SEQUENCES,
    INTER_TOKEN_SECONDS,
    QUEUE_WAIT_SECONDS,
    STEP_SECONDS,
    TTFT_SECONDS,
    Histogram,
)
from ferrite.telemetry.rate import RateWindow


@dataclass(frozen=True, slots=True)
class BatcherSnapshot:
    """The engine's counters and gauges at one moment. Counters only grow."""

    prefill_chunks: int
    """Prompt chunks evaluated."""
    prefill_tokens: int
    """Prompt tokens evaluated."""
    decode_steps: int
    """Steps that had a decoding sequence, however many."""
    queue_depth: int
    """Requests waiting for admission."""
    queue_rejected: int
    """Requests refused because no place was free (momentary pressure)."""
    kv_blocks_total: int
    """KV blocks of the budget; 0 when none is configured."""
    kv_blocks_free: int
    """Those not reserved by an in-flight request."""
    kv_block_size: int
    """Positions of one block."""
    kv_rejected_too_large: int
    """Requests refused because they need more than the whole budget (permanent)."""
    kv_rejected_context_length: int
    """Requests refused because they ask for more context than one request may have."""
    kv_blocks_peak: int
    """Most KV blocks held by running sequences at one moment, counted from the sequences themselves."""
    aborted: int
    """Requests the scheduler stopped because they were cancelled."""


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """What drafts came to. Counters only grow."""

    drafted_tokens: int
    """Tokens evaluated before anybody had sampled them."""
    accepted_tokens: int
    """Those of them that were sampled then, and so came without a step of their own."""


class EngineMeters:
    """The engine writes, any thread reads.

    Counters are plain integers: each ``on_`` method must have one caller at a time (one thread, or
    callers that hold one lock); under the GIL a reader sees each of them before or after a write. Times are
    seconds of the engine's clock.
    """

    __slots__ = (
        "_aborted",
        "_accepted_tokens",
        "_context_exceeded",
        "_decode_steps",
        "_drafted_tokens",
        "_kv_blocks_peak",
        "_prefill_chunks",
        "_prefill_tokens",
        "_queue_rejected",
        "_too_large",
        "batch_sequences",
        "decode_tokens_per_second",
        "inter_token_seconds",
        "prefill_tokens_per_second",
        "queue_wait_seconds",
        "step_seconds",
        "ttft_seconds",
    )

    def __init__(self) -> None:
        self._prefill_chunks = 0
        self._prefill_tokens = 0
        self._decode_steps = 0
        self._drafted_tokens = 0
        self._accepted_tokens = 0
        self._kv_blocks_peak = 0
        self._aborted = 0
        self._queue_rejected = 0
        self._too_large = 0
        self._context_exceeded = 0
        self.prefill_tokens_per_second = RateWindow()
        self.decode_tokens_per_second = RateWindow()
        self.step_seconds = Histogram(STEP_SECONDS)
        self.batch_sequences = Histogram(BATCH_SEQUENCES)
        self.queue_wait_seconds = Histogram(QUEUE_WAIT_SECONDS)
        self.ttft_seconds = Histogram(TTFT_SECONDS)
        self.inter_token_seconds = Histogram(INTER_TOKEN_SECONDS)

    def on_step(
        self, now: float, seconds: float, *, prefill_chunks: int, prefill_rows: int, decode_rows: int
    ) -> None:
        """A step of ``seconds`` ended at ``now``.

        It evaluated ``prefill_rows`` prompt tokens in ``prefill_chunks`` chunks, each of one sequence, and
        one row of each of ``decode_rows`` decoding sequences.
        """
        self._prefill_chunks += prefill_chunks
        self._prefill_tokens += prefill_rows
        self.step_seconds.observe(seconds)
        self.batch_sequences.observe(prefill_chunks + decode_rows)
        if prefill_rows:
            self.prefill_tokens_per_second.add(now, prefill_rows, seconds=seconds)
        if decode_rows:
            self._decode_steps += 1
            self.decode_tokens_per_second.add(now, decode_rows, seconds=seconds)

    def on_draft(self, now: float, *, drafted: int, accepted: int) -> None:
        """Of ``drafted`` tokens of one sequence in the step that ended at ``now``, ``accepted`` came true."""
        self._drafted_tokens += drafted
        self._accepted_tokens += accepted
        self.decode_tokens_per_second.add(now, accepted)

    def on_blocks_held(self, blocks: int) -> None:
        """The running sequences hold ``blocks`` distinct KV blocks at this moment."""
        self._kv_blocks_peak = max(self._kv_blocks_peak, blocks)

    def on_queue_wait(self, seconds: float) -> None:
        """A request got its permit ``seconds`` after its submission."""
        self.queue_wait_seconds.observe(seconds)

    def on_first_token(self, seconds_since_submission: float) -> None:
        """A request got its first token."""
        self.ttft_seconds.observe(seconds_since_submission)

    def on_token(self, seconds_since_previous: float) -> None:
        """A request got a token that is not its first."""
        self.inter_token_seconds.observe(seconds_since_previous)

    def on_aborted(self) -> None:
        """The scheduler stopped a running request because it was cancelled."""
        self._aborted += 1

    def on_queue_rejected(self) -> None:
        """A request was refused because no place was free, at once or after its wait."""
        self._queue_rejected += 1

    def on_too_large(self) -> None:
        """A request was refused because it needs more than the whole KV budget."""
        self._too_large += 1

    def on_context_exceeded(self) -> None:
        """A request was refused because it asks for more context than one request may have."""
        self._context_exceeded += 1

    def speculation(self) -> SpeculationStats:
        """What drafts came to, at this moment."""
        return SpeculationStats(self._drafted_tokens, self._accepted_tokens)

    def snapshot(
        self, *, queue_depth: int, kv_blocks_total: int, kv_blocks_free: int, kv_block_size: int
    ) -> BatcherSnapshot:
        """The counters with the gauges that only the engine knows."""
        return BatcherSnapshot(
            prefill_chunks=self._prefill_chunks,
            prefill_tokens=self._prefill_tokens,
            decode_steps=self._decode_steps,
            queue_depth=queue_depth,
            queue_rejected=self._queue_rejected,
            kv_blocks_total=kv_blocks_total,
            kv_blocks_free=kv_blocks_free,
            kv_block_size=kv_block_size,
            kv_rejected_too_large=self._too_large,
            kv_rejected_context_length=self._context_exceeded,
            kv_blocks_peak=self._kv_blocks_peak,
            aborted=self._aborted,
        )
