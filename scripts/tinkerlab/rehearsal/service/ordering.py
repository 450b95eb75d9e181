"""Requests of one training run take effect in the order of their sequence numbers.

The SDK numbers a training client's requests and may send them out of order (the chunks of
one large ``forward_backward`` go out in parallel, the first one last:
tinker/lib/public_interfaces/training_client.py) and again (every POST is retried).
"""

from __future__ import annotations

from collections.abc import Callable

Work = Callable[[], None]


class RequestOrder:
    """Releases the work of one training run in sequence order, each number once.

    Not thread-safe: the service calls it on its event loop only.
    """

    def __init__(self, release: Callable[[Work], None], *, first: int) -> None:
        """``release`` gets each piece of work when its turn has come; ``first`` is the
        sequence number of the run's first request."""
        self._release = release
        self._next = first
        self._waiting: dict[int, Work] = {}
        self._refused: set[int] = set()

    def submit(self, seq_id: int | None, work: Work) -> None:
        """Take in one request; a number below the next one runs at once.

        That happens when a refused request is sent again after the reason for the refusal
        went away (a checkpoint name that was freed), with later numbers already passed.
        """
        if seq_id is None or seq_id < self._next:
            self._release(work)
            return
        self._refused.discard(seq_id)
        self._waiting[seq_id] = work
        self._advance()

    def refuse(self, seq_id: int | None) -> None:
        """Note that a number was answered with an error and must not hold up later ones."""
        if seq_id is None or seq_id < self._next or seq_id in self._waiting:
            return
        self._refused.add(seq_id)
        self._advance()

    @property
    def held(self) -> list[int]:
        """Sequence numbers that wait for an earlier one to arrive."""
        return sorted(self._waiting)

    def _advance(self) -> None:
        while True:
            if self._next in self._waiting:
                self._release(self._waiting.pop(self._next))
            elif self._next in self._refused and self._waiting:
                # The client may still send this number again; skip it only for a successor.
                self._refused.discard(self._next)
            else:
                return
            self._next += 1
