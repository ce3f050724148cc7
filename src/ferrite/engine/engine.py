"""The engine: one loop in one thread that admits, steps and reports."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from ferrite.engine.admission import Admission, arrival_delay
from ferrite.engine.batch import RunningBatch
from ferrite.engine.config import EngineConfig
from ferrite.engine.errors import EngineBusy, EngineStopped, GenerationFailed, RequestTooLarge, one_line
from ferrite.engine.generation import Channel, Generation
from ferrite.engine.kv_memory import session_blocks
from ferrite.engine.request import GenerationRequest
from ferrite.engine.sequence import Ticket
from ferrite.engine.text import Detokenizer
from ferrite.kv import BlockAccountingError, PrefixStats, blocks_for
from ferrite.program.step import Runner
from ferrite.telemetry import BatcherSnapshot, EngineMeters, SpeculationStats

logger = logging.getLogger(__name__)


class Engine:
    """Runs generations on ``runner``.

    Two threads meet here. Submissions and cancellations come from asyncio; they take ``_lock``, decide
    admission and return. The engine thread owns the running batch with its KV blocks, and takes the lock
    only between steps. Events go back through each generation's channel.
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
        self._config = config
        self._clock = clock
        self._n_blocks = session_blocks(runner, config)
        self.meters = EngineMeters()
        """What the engine counts: step and token meters by its thread, the others under its lock."""
        self._batch = RunningBatch(
            runner, detokenizer, config, clock=clock, meters=self.meters, on_release=self._release
        )
        self._thread: threading.Thread | None = None

        self._lock = threading.RLock()
        self._work = threading.Condition(self._lock)
        self._admission: Admission[Ticket] = Admission(
            permits=config.max_concurrent,
            n_blocks=self._n_blocks,
            wait_seconds=config.inference_wait_seconds,
            waiting_limit=config.waiting_limit,
        )
        self._arrivals: list[tuple[Ticket, float]] = []
        self._unfinished: set[Ticket] = set()
        self._draining = False
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

    @property
    def active(self) -> int:
        """Requests that hold a permit."""
        return self._admission.n_holding

    @property
    def waiting(self) -> int:
        """Requests in the waiting line; those of one group count as one."""
        return self._admission.n_waiting

    def batcher(self) -> BatcherSnapshot:
        """Return the counters, with the gauges of this moment."""
        budget = self._n_blocks if self._config.session_positions is not None else 0
        with self._lock:
            return self.meters.snapshot(
                queue_depth=self._admission.n_waiting,
                kv_blocks_total=budget,
                kv_blocks_free=max(budget - self._admission.reserved_blocks, 0),
                kv_block_size=self._runner.block_tokens,
            )

    def prefix_stats(self) -> PrefixStats | None:
        """Return what the prefix cache holds and did; None without one."""
        return self._batch.prefix_stats()

    def speculation_stats(self) -> SpeculationStats | None:
        """Return what drafts came to; None when there are none."""
        return None if self._config.speculation == "off" else self.meters.speculation()

    def start(self) -> None:
        """Start the engine thread. Requests submitted before wait for it."""
        self._thread = threading.Thread(target=self._main, name="ferrite-engine", daemon=True)
        self._thread.start()

    def check_size(self, positions: int) -> None:
        """Raise ``RequestTooLarge``, and count it, when ``positions`` (prompt plus budget) can never fit."""
        refusal = self._size_refusal(positions)
        if refusal is None:
            return
        with self._lock:
            if refusal.bound == "store":
                self.meters.on_too_large()
            else:
                self.meters.on_context_exceeded()
        raise refusal

    def check_room(self) -> None:
        """Raise ``EngineBusy``, and count it, when every request would be refused as one too many.

        For callers that have work to do before they can submit.
        """
        with self._lock:
            self._settle(self._clock())
            try:
                self._admission.check_room()
            except EngineBusy:
                self.meters.on_queue_rejected()
                raise

    def submit(self, request: GenerationRequest, *, continues: bool = False) -> Generation:
        """Hand in one request: a group of one."""
        return self.submit_group([request], continues=continues)[0]

    def submit_group(
        self, requests: Sequence[GenerationRequest], *, continues: bool = False
    ) -> list[Generation]:
        """Hand in requests that start together or wait together, as one request of the line.

        Must be called on the asyncio loop that will read the events. Each ends by itself. ``continues`` is
        for work that was admitted before, such as the next prompt of one HTTP request: it is never refused
        as busy, enters at the head of the line, and is taken while the engine drains.
        Raises at once: ``ValueError`` for more requests than permits; ``EngineStopped`` when draining,
        stopped or failed; ``RequestTooLarge`` when they can never run, alone or together; ``EngineBusy``
        when they would have to wait and may not.
        """
        if not 0 < len(requests) <= self._config.max_concurrent:
            raise ValueError(
                f"a group of {len(requests)} requests, there are {self._config.max_concurrent} permits"
            )
        blocks = self._blocks_of(requests)
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._closed is not None:
                raise EngineStopped(self._closed)
            if self._draining and not continues:
                raise EngineStopped("the server is draining")
            now = self._clock()
            group = {
                Ticket(request, Channel(loop, self._config.event_queue, self._notify), now): count
                for request, count in zip(requests, blocks, strict=True)
            }
            self._settle(now)
            try:
                deadline = self._admission.offer(group, now, continues=continues)
            except EngineBusy:
                self.meters.on_queue_rejected()
                raise
            self._unfinished.update(group)
            self._grant(now)
        return [self._generation(ticket, deadline) for ticket in group]

    async def drain(self, timeout: float) -> None:
        """Refuse new requests and return when all others have ended.

        After ``timeout`` seconds the engine is stopped, which fails those that are left.
        """
        drained: Future[None] = Future()
        with self._lock:
            self._draining = True
            self._drained.append(drained)
            self._settle(self._clock())
        _, late = await asyncio.wait([asyncio.wrap_future(drained)], timeout=timeout)
        if late:
            await asyncio.to_thread(self.stop)

    def stop(self) -> None:
        """End the engine thread after its running step and fail what is left. May be called repeatedly."""
        with self._lock:
            self._closed = self._closed or "the server is stopping"
            self._stopping = True
            self._work.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._batch.close()
        self._fail_all("the server stopped before the generation ended", EngineStopped)

    def step(self) -> None:
        """Run one step with every ready sequence. Only for the engine thread, or before ``start``."""
        with self._lock:
            arrivals, self._arrivals = self._arrivals, []
        if arrivals:
            # Starting them can take longer than the step.
            self._batch.wake_readers()
        for ticket, granted_at in arrivals:
            self._batch.start(ticket, granted_at)
        self._batch.step()
        if not self._batch.n_active:
            self._audit()

    def _main(self) -> None:
        try:
            while self._wait_for_work():
                self.step()
        except BaseException as error:
            logger.critical("the engine thread died", exc_info=error)
            with self._lock:
                self._failure = f"the engine failed: {one_line(error)}"
                self._closed = self._failure
            self._fail_all(self._failure, GenerationFailed)
        finally:
            self._batch.wake_readers()

    def _wait_for_work(self) -> bool:
        """Block until a step can do something; False when the engine stops."""
        with self._lock:
            while not self._stopping:
                if self._batch.is_ready:
                    return True
                delay = None
                if self._arrivals:
                    delay = arrival_delay(
                        self._clock(),
                        self._arrivals[0][1],
                        self._config.arrival_window_seconds,
                        free_permits=self._admission.free_permits,
                    )
                    if delay == 0:
                        return True
                self._work.wait(delay)
            return False

    def _blocks_of(self, requests: Sequence[GenerationRequest]) -> list[int]:
        """Return the KV blocks that each may need; raises ``RequestTooLarge``, and counts it."""
        blocks = []
        for request in requests:
            positions = len(request.prompt_tokens) + request.max_tokens
            self.check_size(positions)
            blocks.append(blocks_for(positions, self._runner.block_tokens))
        if (needed := sum(blocks)) > self._n_blocks:
            with self._lock:
                self.meters.on_too_large()
            message = f"the requests need {needed} KV blocks, the server has {self._n_blocks}"
            raise RequestTooLarge(message, needed=needed, limit=self._n_blocks, bound="store")
        return blocks

    def _generation(self, ticket: Ticket, deadline: float) -> Generation:
        return Generation(
            ticket.channel,
            deadline=deadline,
            clock=self._clock,
            on_deadline=self._settle_now,
            on_cancel=lambda: self._withdraw(ticket),
            on_stop=self._notify,
        )

    def _size_refusal(self, positions: int) -> RequestTooLarge | None:
        context, session = self._runner.context_length, self._config.session_positions
        if positions > context:
            message = f"the request needs {positions} positions, the context has {context}"
            return RequestTooLarge(message, needed=positions, limit=context, bound="context")
        blocks = blocks_for(positions, self._runner.block_tokens)
        if blocks > self._n_blocks:
            message = f"the request needs {blocks} KV blocks, the server has {self._n_blocks}"
            return RequestTooLarge(message, needed=blocks, limit=self._n_blocks, bound="store")
        if session is not None and positions > session:
            message = f"the request needs {positions} positions, a session has {session}"
            return RequestTooLarge(message, needed=positions, limit=session, bound="session")
        return None

    def _release(self, ticket: Ticket) -> None:
        with self._lock:
            now = self._clock()
            self._admission.release(ticket, now)
            self._unfinished.discard(ticket)
            self._settle(now)

    def _audit(self) -> None:
        self._batch.audit()
        with self._lock:
            permits, reserved = self._admission.n_holding, self._admission.reserved_blocks
            if permits != len(self._arrivals) or (reserved > 0) != (permits > 0):
                raise BlockAccountingError(
                    f"{permits} permits and {reserved} KV blocks are taken by {len(self._arrivals)} requests"
                )

    def _settle(self, now: float) -> None:
        """Move the waiting line after any change. The lock is held."""
        for group in self._admission.expire(now):
            self.meters.on_queue_rejected()
            for ticket in group:
                self._unfinished.discard(ticket)
                ticket.channel.fail(self._admission.busy("no inference permit was free in time"))
        self._grant(now)
        self._complete_drains()

    def _grant(self, now: float) -> None:
        for ticket in self._admission.grant(now):
            self._arrivals.append((ticket, now))
            self.meters.on_queue_wait(now - ticket.submitted_at)
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

    def _fail_all(self, reason: str, waiting_error: type[EngineStopped] | type[GenerationFailed]) -> None:
        """End every request; the engine thread does no more."""
        with self._lock:
            for ticket in self._unfinished:
                error = waiting_error if self._admission.withdraw(ticket) else GenerationFailed
                ticket.channel.fail(error(reason))
            self._unfinished.clear()
            self._complete_drains()
