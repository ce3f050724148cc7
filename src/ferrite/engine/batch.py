"""The sequences that run and the steps that they share. No thread, no lock."""

import logging
import secrets
from collections.abc import Callable
from collections.abc import Sequence as Rows

from ferrite.engine.config import EngineConfig
from ferrite.engine.drafts import Drafter
from ferrite.engine.errors import GenerationFailed, one_line
from ferrite.engine.events import Delta, Event
from ferrite.engine.generation import Channel
from ferrite.engine.kv_memory import KvMemory
from ferrite.engine.pace import Pace
from ferrite.engine.scheduler import Chunk, StepPlan, plan_step
from ferrite.engine.sequence import NOT_FINITE, Sequence, Ticket
from ferrite.engine.speculation import Speculator
from ferrite.engine.step_batch import build_step_batch, split_runs
from ferrite.engine.text import Detokenizer, TextStream, compile_stops
from ferrite.grammar import ConstraintError, MaskWorkers
from ferrite.kv import BlockAccountingError, PrefixStats
from ferrite.program.step import Runner, Scorer, StepError
from ferrite.telemetry import EngineMeters

logger = logging.getLogger(__name__)

MASK_THREADS = 2
"""So that one slow mask does not hold up all others."""


class RunningBatch:
    """Admitted requests from their start to their end, one step at a time.

    Whoever starts a ticket has reserved the blocks it can ever need. What a request causes to fail ends that
    request, a step those that are in it; ``BlockAccountingError`` means that the store can no longer be
    trusted, and is raised.
    """

    def __init__(
        self,
        runner: Runner,
        detokenizer: Callable[[], Detokenizer],
        config: EngineConfig,
        *,
        clock: Callable[[], float],
        meters: EngineMeters,
        on_release: Callable[[Ticket], None],
    ) -> None:
        """``on_release`` takes back the permit of a ticket, before its reader hears of its end."""
        self._runner = runner
        self._detokenizer = detokenizer
        self._clock = clock
        self._meters = meters
        self._on_release = on_release
        self._pace = Pace(config.prefill_chunk)
        self._speculator = Speculator() if config.speculation == "ngram" else None
        self._active: list[Sequence] = []
        self._kv = KvMemory(runner, config)
        self._mask_workers: MaskWorkers | None = None
        """Made for the first request that has a constraint."""
        self._told: list[Channel] = []
        """Whose readers are still to wake."""

    @property
    def n_active(self) -> int:
        """Sequences that run, paused ones too."""
        return len(self._active)

    @property
    def is_ready(self) -> bool:
        """A step would do something."""
        return any(s.channel.has_room or s.channel.cancelled or s.channel.stopping for s in self._active)

    def prefix_stats(self) -> PrefixStats | None:
        """What the prefix cache holds and did; None without one. For any thread."""
        return self._kv.prefix_stats()

    def start(self, ticket: Ticket, granted_at: float) -> None:
        """Let an admitted request take part in the steps."""
        if ticket.channel.cancelled:
            self._meters.on_aborted()
            self._on_release(ticket)
            return
        try:
            sequence = self._new_sequence(ticket, granted_at)
        except BlockAccountingError:
            raise
        except Exception as error:
            self._on_release(ticket)
            ticket.channel.fail(_failure_of([ticket], error))
        else:
            self._active.append(sequence)

    def step(self) -> None:
        """End what was cancelled or stopped, then run one step with every ready sequence, if there is one."""
        self._step()
        if not self.is_ready:
            self.wake_readers()

    def wake_readers(self) -> None:
        """Have whoever was told something look, unless the next step has seen to it.

        Readers want the interpreter at once, and a step wakes them when it is about to leave it to them. Had
        they waited for it, they would have asked for it (``sys.setswitchinterval``), and then the step could
        not begin before one of them had got a core.
        """
        Channel.wake_readers(self._told)
        self._told.clear()

    def _step(self) -> None:
        for sequence in [s for s in self._active if s.channel.cancelled or s.channel.stopping]:
            self._report(sequence, [None], self._clock())
        ready = [s for s in self._active if s.leader is None and s.channel.has_room]
        started = self._clock()
        plan = plan_step(ready, self._pace.prefill_rows)
        if self._speculator is not None and not any(s.is_prefilling for s in ready):
            plan = self._speculator.extend(plan)
        plan = self._prepared(plan)
        if plan.chunks:
            sampled = plan.sampled()
            try:
                runs = self._run(plan, sampled, started)
            except BlockAccountingError:
                raise
            except Exception as error:
                self._fail([s for c in plan.chunks for s in (c.sequence, *c.sequence.followers)], error)
            else:
                self._commit(plan, sampled, runs)
        self._kv.return_freed()

    def audit(self) -> None:
        """Check every block's references against its holders; raises ``BlockAccountingError``."""
        self._kv.audit(self._active)

    def close(self) -> None:
        """End the threads that make masks; no step may follow."""
        if self._mask_workers is not None:
            self._mask_workers.close()
            self._mask_workers = None

    def _new_sequence(self, ticket: Ticket, granted_at: float) -> Sequence:
        request = ticket.request
        guide = None if request.constraint is None else (request.constraint, self._runner.mask_slot())
        sequence = Sequence(
            ticket=ticket,
            sampler=self._runner.sampler(
                request.sampling,
                request.prompt_tokens,
                secrets.randbits(63),
                mask=None if guide is None else guide[1],
                top_logprobs=request.top_logprobs,
            ),
            table=self._kv.new_table(),
            text=TextStream(self._detokenizer(), compile_stops(request.stop)),
            granted_at=granted_at,
            cache=self._kv.new_trace(),
            guide=guide,
        )
        if request.prompt_logprobs:
            return sequence
        if self._speculator is not None and guide is None:
            sequence.drafter = Drafter(sequence.tokens)
        leader = next((s for s in self._active if _evaluates(s, sequence)), None)
        if leader is not None:
            sequence.follow(leader)
        else:
            self._kv.restore(sequence)
        return sequence

    def _prepared(self, plan: StepPlan) -> StepPlan:
        """Make the rows writable; a request that cannot have what it needs fails, and the others go on."""
        chunks = []
        for chunk in plan.chunks:
            try:
                self._kv.make_writable(chunk)
                if chunk.sequence.ticket.request.prompt_logprobs:
                    chunk.sequence.scorer = self._scorer(chunk)
            except BlockAccountingError:
                raise
            except Exception as error:
                self._fail([chunk.sequence, *chunk.sequence.followers], error)
            else:
                chunks.append(chunk)
        if len(chunks) == len(plan.chunks):
            return plan
        return StepPlan(tuple(chunks), sum(not chunk.sequence.is_prefilling for chunk in chunks))

    def _run(self, plan: StepPlan, sampled: Rows[Sequence], started: float) -> list[list[int]]:
        """Return the tokens of each of ``sampled``; ``started``: when the preparation of the step began."""
        held = self._kv.count_held(self._active)
        if held is not None:
            self._meters.on_blocks_held(held)
        self._start_masks(sampled)
        batch = build_step_batch(plan, sampled)
        self.wake_readers()
        runs = split_runs(batch, self._runner.step(batch).tolist())
        now = self._clock()
        prefill_rows = plan.prefill_rows
        if not batch.drafted:
            self._pace.observe(now - started, decode_rows=plan.decode_rows, prefill_rows=prefill_rows)
        if self._speculator is not None and plan.decode_rows == len(plan.chunks):
            self._speculator.observe(plan, [len(run) - 1 for run in runs], now - started)
        self._meters.on_step(
            now,
            now - started,
            prefill_chunks=len(plan.chunks) - plan.decode_rows,
            prefill_rows=prefill_rows,
            decode_rows=plan.decode_rows,
        )
        return runs

    def _start_masks(self, sampled: Rows[Sequence]) -> None:
        """Have the masks of this step's tokens made while the model runs."""
        guides = [sequence.guide for sequence in sampled if sequence.guide is not None]
        if guides:
            self._mask_workers = self._mask_workers or MaskWorkers(MASK_THREADS)
            self._mask_workers.start(guides)

    def _scorer(self, chunk: Chunk) -> Scorer | None:
        tokens = chunk.scored_tokens()
        if not tokens:
            return None
        return self._runner.scorer(tokens, chunk.sequence.ticket.request.top_logprobs or 0)

    def _commit(self, plan: StepPlan, sampled: Rows[Sequence], runs: Rows[list[int]]) -> None:
        scored = []
        for chunk in plan.chunks:
            chunk.sequence.advance(chunk.known)
            if chunk.samples:
                chunk.sequence.share_prefill()
            elif chunk.sequence.pending == 0:
                scored.append(chunk.sequence)
        now = self._clock()
        for sequence, run in zip(sampled, runs, strict=True):
            self._report(sequence, run, now)
        for sequence in scored:
            self._report(sequence, [None], now)
        for chunk in plan.chunks:
            if chunk.draft:
                accepted = max(chunk.sequence.total - chunk.stop + len(chunk.draft) - 1, 0)
                self._meters.on_draft(now, drafted=len(chunk.draft), accepted=accepted)

    def _report(self, sequence: Sequence, run: Rows[int | None], now: float) -> None:
        """Tell the reader what the tokens of ``run`` mean to it; None when it ends without one."""
        if sequence.channel.cancelled:
            self._abort(sequence)
            return
        events: list[Event] = []
        try:
            for number, token in enumerate(run):
                if number:
                    # The token before was drafted, and evaluated in the same step.
                    sequence.advance(1)
                events += self._events(sequence, token, number, now)
                if sequence.reason is not None:
                    break
        except BlockAccountingError:
            raise
        except Exception as error:
            if events:
                self._tell(sequence, events)
            self._fail([sequence], error)
            return
        if sequence.reason is not None:
            # Before the reader hears of the end, so that its next request finds the permit free.
            self._retire(sequence)
        if events:
            self._tell(sequence, events)

    def _tell(self, sequence: Sequence, events: list[Event]) -> None:
        sequence.channel.put(events)
        self._told.append(sequence.channel)

    def _events(self, sequence: Sequence, token: int | None, number: int, now: float) -> list[Event]:
        events: list[Event] = []
        if token is None:
            delta = sequence.end("stop" if sequence.channel.stopping else "length")
        elif token < 0:
            _check_exhausted(sequence)
            delta = sequence.end("length")
        else:
            if sequence.last_token_at is None:
                self._meters.on_first_token(now - sequence.ticket.submitted_at)
                self._kv.store(sequence)
                scores = sequence.scores()
                if scores is not None:
                    told = None if sequence.ticket.request.top_logprobs is None else ()
                    events.append(Delta("", (), told, scores))
            else:
                self._meters.on_token(now - sequence.last_token_at)
            delta = sequence.accept(token, now, number=number)
        if delta is not None:
            events.append(delta)
        if sequence.reason is not None:
            if sequence.computed > sequence.prompt_length:
                self._kv.store(sequence)
            events.append(sequence.finished(now))
        return events

    def _abort(self, sequence: Sequence) -> None:
        self._meters.on_aborted()
        self._retire(sequence)

    def _fail(self, sequences: Rows[Sequence], error: Exception) -> None:
        failure = _failure_of([sequence.ticket for sequence in sequences], error)
        for sequence in sequences:
            self._retire(sequence)
            # Each reader raises an exception of its own, with its own traceback.
            sequence.channel.fail(GenerationFailed(str(failure)))

    def _retire(self, sequence: Sequence) -> None:
        sequence.part()
        sequence.table.release()
        self._active.remove(sequence)
        self._on_release(sequence.ticket)


def _check_exhausted(sequence: Sequence) -> None:
    """Raise why no token was sampled, unless the answer has reached the bounds of what grammars may write."""
    if sequence.guide is None or sequence.guide[1].state != "failed":
        raise GenerationFailed(NOT_FINITE)
    if not sequence.guide[0].is_exhausted:
        raise GenerationFailed("the grammar of the answer could not be followed")


def _evaluates(active: Sequence, newcomer: Sequence) -> bool:
    """Return whether ``active`` is about to compute all that ``newcomer`` needs."""
    mine, other = active.ticket.request, newcomer.ticket.request
    return (
        active.leader is None
        and active.is_prefilling
        and not mine.prompt_logprobs
        and mine.cache_namespace == other.cache_namespace
        and mine.prompt_tokens == other.prompt_tokens
    )


def _failure_of(tickets: Rows[Ticket], error: Exception) -> GenerationFailed:
    """Log ``error`` and return what the readers of ``tickets`` are told."""
    if isinstance(error, GenerationFailed):
        failure = error
    elif isinstance(error, ConstraintError):
        failure = GenerationFailed(one_line(error))
    elif isinstance(error, StepError):
        failure = GenerationFailed(f"the inference step failed: {one_line(error)}")
    else:
        failure = GenerationFailed(f"an internal error ended the generation: {type(error).__name__}")
    request_ids = ", ".join(ticket.request.request_id for ticket in tickets)
    logger.error("%s (%s)", failure, request_ids, exc_info=None if failure is error else error)
    return failure
