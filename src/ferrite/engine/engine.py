"""The engine: one loop in one thread that admits, schedules, steps and reports."""

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from ferrite.engine.admission import Admission
from ferrite.engine.config import EngineConfig
from ferrite.engine.errors import EngineStopped, GenerationFailed, RequestTooLarge
from ferrite.engine.events import Event, Finished
from ferrite.engine.generation import Channel, Generation
from ferrite.engine.request import GenerationRequest
from ferrite.engine.scheduler import StepPlan, plan_step
from ferrite.engine.sequence import Sequence, Ticket
from ferrite.engine.step_batch import build_step_batch
from ferrite.engine.text import Detokenizer, TextStream, compile_stops
from ferrite.kv import BlockAccountingError, BlockPool, BlockTable, blocks_for
from ferrite.program.step import Runner, StepError

logger = logging.getLogger(__name__)


class Engine:
    """Runs generations on ``runner``.

    Two threads meet here. Submissions and cancellations come from asyncio; they take ``_lock``, decide
    admission and return. The engine thread owns the running sequences and the KV blocks, and takes the
    lock only between steps. Events go back through each generation's channel.
    """

    def __init__(
        self,
        runner: Runner,
        detokenizer: Callable[[], Detokenizer],
        config: EngineConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``detokenizer`` makes the state of one generation; ``clock`` reads seconds."""
        self._runner = runner
        self._detokenizer = detokenizer
        self._config = config
        self._clock = clock
        self._pool = BlockPool(runner.n_blocks)
        self._active: list[Sequence] = []
        self._thread: threading.Thread | None = None

        self._lock = threading.RLock()
        self._work = threading.Condition(self._lock)
        self._admission: Admission[Ticket] = Admission(
            permits=config.max_concurrent,
            n_blocks=runner.n_blocks,
            wait_seconds=config.inference_wait_seconds,
            waiting_limit=config.waiting_limit,
        )
        self._arrivals: list[tuple[Ticket, float]] = []
        self._unfinished: set[Ticket] = set()
        self._closed: str | None = None
        self._stopping = False
        self._failure: str | None = None
        self._drained: list[Future[None]] = []

    @property
    def healthy(self) -> bool:
        """False once the engine thread has died; see ``failure``."""
        return self._failure is None

    @property
    def failure(self) -> str | None:
        """Why the engine thread died, in one line."""
        return self._failure

    def start(self) -> None:
        """Start the engine thread. Requests submitted before wait for it."""
        self._thread = threading.Thread(target=self._main, name="ferrite-engine", daemon=True)
        self._thread.start()

    def submit(self, request: GenerationRequest) -> Generation:
        """Hand in a request; must be called on the asyncio loop that will read the events.

        Raises at once: ``EngineStopped`` when draining, stopped or failed; ``RequestTooLarge`` when it can
        never run; ``EngineBusy`` when it would have to wait and may not.
        """
        positions = len(request.prompt_tokens) + request.max_tokens
        if positions > self._runner.context_length:
            raise RequestTooLarge(
                f"the request needs {positions} positions, the context has {self._runner.context_length}"
            )
        channel = Channel(asyncio.get_running_loop(), self._config.event_queue, self._notify)
        with self._lock:
            if self._closed is not None:
                raise EngineStopped(self._closed)
            now = self._clock()
            ticket = Ticket(request, channel, now)
            self._settle(now)
            deadline = self._admission.offer(ticket, blocks_for(positions, self._runner.block_tokens), now)
            self._unfinished.add(ticket)
            self._grant(now)
        return Generation(
            channel,
            deadline=deadline,
            clock=self._clock,
            on_deadline=self._settle_now,
            on_cancel=lambda: self._withdraw(ticket),
        )

    async def drain(self, timeout: float) -> None:
        """Refuse new requests and return when all others have ended.

        After ``timeout`` seconds the engine is stopped, which fails those that are left.
        """
        drained: Future[None] = Future()
        with self._lock:
            self._close("the server is draining")
            self._drained.append(drained)
            self._settle(self._clock())
        _, late = await asyncio.wait([asyncio.wrap_future(drained)], timeout=timeout)
        if late:
            await asyncio.to_thread(self.stop)

    def stop(self) -> None:
        """End the engine thread after its running step and fail what is left. May be called repeatedly."""
        with self._lock:
            self._close("the server is stopping")
            self._stopping = True
            self._work.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._fail_all("the server stopped before the generation ended", EngineStopped)

    def step(self) -> None:
        """Run one step with every ready sequence. Only for the engine thread, or before ``start``."""
        self._start_arrivals()
        self._drop_cancelled()
        plan = plan_step([s for s in self._active if s.channel.has_room], self._config.prefill_chunk)
        if plan.chunks:
            try:
                tokens = self._run(plan)
            except Exception as error:
                self._fail(plan, error)
            else:
                self._commit(plan, tokens)
        if not self._active:
            self._audit()

    def _main(self) -> None:
        try:
            while self._wait_for_work():
                self.step()
        except BaseException as error:
            logger.critical("the engine thread died", exc_info=error)
            with self._lock:
                self._failure = f"the engine failed: {_one_line(error)}"
                self._closed = self._failure
            self._fail_all(self._failure, GenerationFailed)

    def _wait_for_work(self) -> bool:
        """Block until a step can do something; False when the engine stops."""
        with self._lock:
            while not self._stopping:
                if self._arrivals or any(s.channel.has_room or s.channel.cancelled for s in self._active):
                    return True
                self._work.wait()
            return False

    def _start_arrivals(self) -> None:
        with self._lock:
            arrivals, self._arrivals = self._arrivals, []
        for ticket, granted_at in arrivals:
            try:
                self._active.append(self._new_sequence(ticket, granted_at))
            except Exception as error:
                self._release(ticket)
                ticket.channel.fail(_failure_of([ticket], error))

    def _new_sequence(self, ticket: Ticket, granted_at: float) -> Sequence:
        request = ticket.request
        return Sequence(
            ticket=ticket,
            sampler=self._runner.sampler(request.sampling, request.prompt_tokens, secrets.randbits(63)),
            table=BlockTable(self._pool, self._runner.block_tokens),
            text=TextStream(self._detokenizer(), compile_stops(request.stop)),
            granted_at=granted_at,
        )

    def _drop_cancelled(self) -> None:
        for sequence in [s for s in self._active if s.channel.cancelled]:
            self._retire(sequence)

    def _run(self, plan: StepPlan) -> list[int]:
        """Return one token per sampling chunk."""
        for chunk in plan.chunks:
            for source, target in chunk.sequence.table.prepare_write(chunk.start, chunk.stop):
                self._runner.copy_block(source, target)
        batch = build_step_batch(plan)
        tokens: list[int] = self._runner.step(batch).tolist()
        if len(tokens) != len(batch.samplers):
            raise StepError(f"{len(batch.samplers)} rows were to be sampled, {len(tokens)} were")
        return tokens

    def _commit(self, plan: StepPlan, tokens: list[int]) -> None:
        for chunk in plan.chunks:
            chunk.sequence.advance(chunk.count)
        now = self._clock()
        for chunk, token in zip(plan.sampling, tokens, strict=True):
            self._report(chunk.sequence, token, now)

    def _report(self, sequence: Sequence, token: int, now: float) -> None:
        if sequence.channel.cancelled:
            self._retire(sequence)
            return
        try:
            if token < 0:
                raise GenerationFailed("the model produced non-finite logits")
            events: list[Event] = sequence.accept(token, now)
        except Exception as error:
            self._retire(sequence)
            sequence.channel.fail(_failure_of([sequence.ticket], error))
            return
        if not events:
            return
        if isinstance(events[-1], Finished):
            # Before the reader hears of the end, so that its next request finds the permit free.
            self._retire(sequence)
        sequence.channel.put(events)

    def _fail(self, plan: StepPlan, error: Exception) -> None:
        failure = _failure_of([chunk.sequence.ticket for chunk in plan.chunks], error)
        for chunk in plan.chunks:
            self._retire(chunk.sequence)
            chunk.sequence.channel.fail(GenerationFailed(str(failure)))

    def _retire(self, sequence: Sequence) -> None:
        sequence.table.release()
        self._active.remove(sequence)
        self._release(sequence.ticket)

    def _release(self, ticket: Ticket) -> None:
        with self._lock:
            now = self._clock()
            self._admission.release(ticket, now)
            self._unfinished.discard(ticket)
            self._settle(now)

    def _audit(self) -> None:
        self._pool.audit([])
        with self._lock:
            permits, reserved = self._admission.n_holding, self._admission.reserved_blocks
            if permits != len(self._arrivals) or (reserved > 0) != (permits > 0):
                raise BlockAccountingError(
                    f"{permits} permits and {reserved} KV blocks are taken by {len(self._arrivals)} requests"
                )

    def _settle(self, now: float) -> None:
        """Move the waiting line after any change. The lock is held."""
        for ticket in self._admission.expire(now):
            self._unfinished.discard(ticket)
            ticket.channel.fail(self._admission.busy("no inference permit was free in time"))
        self._grant(now)
        self._complete_drains()

    def _grant(self, now: float) -> None:
        for ticket in self._admission.grant(now):
            self._arrivals.append((ticket, now))
            ticket.channel.grant()
        self._work.notify()

    def _complete_drains(self) -> None:
        if self._unfinished:
            return
        for drained in self._drained:
            if drained.set_running_or_notify_cancel():
                drained.set_result(None)
        self._drained.clear()

    def _settle_now(self) -> None:
        with self._lock:
            self._settle(self._clock())

    def _withdraw(self, ticket: Ticket) -> None:
        with self._lock:
            if self._admission.withdraw(ticket):
                self._unfinished.discard(ticket)
            self._settle(self._clock())

    def _notify(self) -> None:
        with self._lock:
            self._work.notify()

    def _close(self, reason: str) -> None:
        self._closed = self._closed or reason

    def _fail_all(self, reason: str, waiting_error: type[EngineStopped] | type[GenerationFailed]) -> None:
        """End every request; the engine thread does no more."""
        with self._lock:
            for ticket in self._unfinished:
                error = waiting_error if self._admission.withdraw(ticket) else GenerationFailed
                ticket.channel.fail(error(reason))
            self._unfinished.clear()
            self._complete_drains()


def _failure_of(tickets: list[Ticket], error: Exception) -> GenerationFailed:
    """Log ``error`` and return what the readers of ``tickets`` are told."""
    if isinstance(error, GenerationFailed):
        failure = error
    elif isinstance(error, StepError):
        failure = GenerationFailed(f"the inference step failed: {_one_line(error)}")
    else:
        failure = GenerationFailed(f"an internal error ended the generation: {type(error).__name__}")
    request_ids = ", ".join(ticket.request.request_id for ticket in tickets)
    logger.error("%s (%s)", failure, request_ids, exc_info=None if failure is error else error)
    return failure


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
