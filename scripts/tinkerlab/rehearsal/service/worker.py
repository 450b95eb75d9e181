"""The one thread that trains: it does the released work of every training run, in order.

Sampling has threads of its own (``engine/sampling.py``), so it never waits behind a step.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

logger = logging.getLogger("tinkerlab.rehearsal")


class Worker:
    """A daemon thread that calls what it is given, one after another."""

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def put(self, work: Callable[[], None]) -> None:
        self._queue.put(work)

    def close(self, timeout: float = 30.0) -> None:
        """Let the work that was put finish, then stop."""
        self._queue.put(None)
        self._thread.join(timeout)

    def _loop(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except Exception:
                # Work reports its own failures; one that slips through must not end the thread.
                logger.exception("work raised")
