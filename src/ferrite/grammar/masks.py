"""Masks made beside the model's step, so that it does not wait for them."""

import logging
import queue
import threading
from collections.abc import Iterable

from ferrite.grammar.constraint import Constraint, MaskTarget

logger = logging.getLogger(__name__)


class MaskWorkers:
    """Threads that fill masks. Whoever reads a mask waits for it at its target, never here."""

    def __init__(self, threads: int = 1) -> None:
        self._jobs: queue.SimpleQueue[tuple[Constraint, MaskTarget] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"ferrite-masks-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, jobs: Iterable[tuple[Constraint, MaskTarget]]) -> None:
        """Begin a mask for each constraint that has none; returns at once.

        A target always settles: it fails where the constraint has no next token or an error, and
        ``Constraint.is_exhausted`` tells the two apart.
        """
        for constraint, target in jobs:
            target.begin()
            self._jobs.put((constraint, target))

    def close(self) -> None:
        """Finish what was started and end the threads."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            _fill(*job)
            del job


def _fill(constraint: Constraint, target: MaskTarget) -> None:
    filled = False
    try:
        filled = constraint.fill(target)
    except Exception as error:
        logger.error("a mask could not be made: %s", error)
    finally:
        if filled:
            target.publish()
        else:
            target.fail()
