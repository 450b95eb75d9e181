"""Promised results: stored the moment they exist, waited for without polling.

A result lives in the store, so it can be fetched late, more than once, and after a restart.
"""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import dataclass
from typing import Any

from tinkerlab.rehearsal.errors import Gone, NotFound
from tinkerlab.rehearsal.service.store import Store

JSON = "application/json"
PROTOBUF = "application/x-protobuf"


@dataclass(frozen=True)
class StoredResult:
    """A finished request's reply, ready to be sent."""

    content_type: str
    body: bytes


class Futures:
    """Begin, finish and wait for requests by their ids; finishing is safe from any thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._pending: set[str] = set()
        self._waiters: dict[str, set[asyncio.Future[None]]] = {}
        store.break_pending_futures()

    def begin(self, request_id: str, *, group: str | None = None) -> bool:
        """Register a request; False when this id was begun before (a retried request)."""
        with self._lock:
            if request_id in self._pending or not self._store.begin_future(request_id, group):
                return False
            self._pending.add(request_id)
            return True

    def known(self, request_id: str) -> bool:
        """Whether a request with this id was ever begun."""
        return request_id in self._pending or self._store.future(request_id) is not None

    def finish(self, request_id: str, payload: bytes | dict[str, Any]) -> None:
        """Store a result: protobuf bytes, or a dict that is sent as JSON."""
        if isinstance(payload, bytes):
            self._close(request_id, "finished", PROTOBUF, payload)
        else:
            self._close(request_id, "finished", JSON, json.dumps(payload).encode())

    def fail(self, request_id: str, message: str, category: str) -> None:
        """Store a failure; ``category`` is ``user`` or ``server``, as the SDK tells them apart."""
        body = json.dumps({"error": message, "category": category}).encode()
        self._close(request_id, "failed", JSON, body)

    async def wait(self, request_id: str, timeout: float) -> StoredResult | None:
        """The request's result, or None when it is still pending after ``timeout`` seconds.

        Raises:
            NotFound: no request has this id.
            Gone: the service restarted while the request was pending, so it has no result.
        """
        with self._lock:
            pending = request_id in self._pending
            if pending:
                waiter = self._add_waiter(request_id)
        if pending:
            await self._wait_for(waiter, request_id, timeout)
            if request_id in self._pending:
                return None
        row = self._store.future(request_id)
        if row is None:
            raise NotFound(f"request {request_id} is not known")
        if row.state == "broken":
            raise Gone(f"request {request_id} was pending when the service restarted")
        return StoredResult(row.content_type, row.body)

    async def wait_group(
        self, group: str, after: int, timeout: float
    ) -> list[tuple[int, str, str, int]]:
        """``(cursor, request_id, state, size)`` of the group's requests that completed after
        cursor ``after``; waits up to ``timeout`` seconds while there is none."""
        key = f"group:{group}"
        with self._lock:
            completed = self._store.completed_futures(group, after)
            if completed or timeout <= 0:
                return completed
            waiter = self._add_waiter(key)
        await self._wait_for(waiter, key, timeout)
        return self._store.completed_futures(group, after)

    def _add_waiter(self, key: str) -> asyncio.Future[None]:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(key, set()).add(waiter)
        return waiter

    async def _wait_for(self, waiter: asyncio.Future[None], key: str, timeout: float) -> None:
        try:
            await asyncio.wait([waiter], timeout=timeout)
        finally:
            with self._lock:
                waiters = self._waiters.get(key)
                if waiters is not None:
                    waiters.discard(waiter)
                    if not waiters:
                        del self._waiters[key]

    def _close(self, request_id: str, state: str, content_type: str, body: bytes) -> None:
        with self._lock:
            group = self._store.finish_future(request_id, state, content_type, body)
            self._pending.discard(request_id)
            waiters = self._waiters.pop(request_id, set())
            if group is not None:
                waiters |= self._waiters.pop(f"group:{group}", set())
        for waiter in waiters:
            waiter.get_loop().call_soon_threadsafe(_wake, waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
