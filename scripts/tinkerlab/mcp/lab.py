"""The server's state: its settings, services and sessions, and who works on which session now."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from tinkerlab.mcp.backend import Backend
from tinkerlab.mcp.errors import Refusal
from tinkerlab.mcp.jobs import Job, Outcome
from tinkerlab.mcp.sessions import Session, Sessions
from tinkerlab.mcp.settings import Settings
from tinkerlab.service import has_credential


class Lab:
    """What the tools share."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.backend = Backend(settings)
        self.sessions = Sessions(settings.workspace)
        self._locks: dict[str, asyncio.Lock] = {}
        self._doing: dict[str, str] = {}
        # More than one when a cancelled call left its own running.
        self._jobs: dict[str, list[Job]] = {}
        # Sessions whose call shall start nothing more.
        self._stopped: set[str] = set()

    def rehearse(self, wanted: bool | None) -> bool:
        """Whether a new session rehearses: as asked, else wherever there is no credential."""
        return not has_credential() if wanted is None else wanted

    def doing(self, session_id: str) -> str | None:
        """What is going on in a session now."""
        return self._doing.get(session_id)

    @contextlib.asynccontextmanager
    async def hold(self, session_id: str, doing: str) -> AsyncIterator[Session]:
        """The session, for one call at a time.

        Raises:
            Refusal: there is no such session, or another call holds it too long.
        """
        self.sessions.get(session_id)  # an unknown one is said at once
        lock = self._locks.setdefault(session_id, asyncio.Lock())
        try:
            await asyncio.wait_for(lock.acquire(), self.settings.busy_seconds)
        except TimeoutError:
            raise Refusal(
                "busy",
                f"session {session_id} is busy: {self._doing.get(session_id, 'another call')}",
                "ask status, stop it, or call again later",
            ) from None
        try:
            self._doing[session_id] = doing
            session = self.sessions.get(session_id)
            session.beat(doing)
            try:
                yield session
            finally:
                session.beat("idle")
        finally:
            self._doing.pop(session_id, None)
            self._stopped.discard(session_id)
            lock.release()

    async def run(
        self,
        session: Session,
        command: Sequence[str],
        log: str,
        watch: Callable[[], Awaitable[None]] | None = None,
    ) -> Outcome:
        """Run a command for a session, against its service, from the workspace's folder.

        Raises:
            Refusal: there is no service, or ``stop`` was called meanwhile.
        """
        env = await self.backend.environment(session.rehearse)
        jobs = self._jobs[session.id] = self._running(session.id)
        if session.rehearse and not jobs:
            # Our rehearsal has the store, so the one of a killed server is gone.
            await asyncio.to_thread(end_orphan, session.run, session.processes)
        if session.id in self._stopped:
            raise Refusal("stopped", "it was stopped before it began", "call again to go on")
        job = Job(command, env, self.settings.workspace, session.log(log))
        jobs.append(job)

        async def look() -> None:
            session.beat(self._doing.get(session.id, "working"))
            if watch is not None:
                await watch()

        def started() -> None:
            session.note_processes([job.pid for job in self._running(session.id) if job.pid])

        return await job.run(look, started)

    def _running(self, session_id: str) -> list[Job]:
        return [job for job in self._jobs.get(session_id, []) if job.running]

    async def stop(self, session_id: str) -> bool:
        """Stop what runs in a session; whether anything did."""
        jobs = self._running(session_id)
        at_work = session_id in self._doing
        if at_work:
            self._stopped.add(session_id)
        await asyncio.gather(*(job.stop() for job in jobs))
        return bool(jobs) or at_work

    async def close(self) -> None:
        """Let everything save and end, then stop the rehearsal."""
        await asyncio.gather(*(job.stop() for jobs in self._jobs.values() for job in jobs))
        await self.backend.close()


def end_orphan(run: Path, started: Sequence[int], seconds: float = 10.0) -> None:
    """End the trainer of a rehearsal that died with its server, which is one of ``started``.

    It would hold the run for the minutes that the SDK tries to reach a service which cannot come
    back. Killing it loses nothing: the next trainer goes on from the last checkpoint. On the
    hosted service such a trainer trains on, and is left alone; so is one that somebody began by
    hand, perhaps on a rehearsal of his own.
    """
    from tinkerlab.diagnosis.run_analysis.run import lock_holder

    lock = run / ".lock"
    until = time.monotonic() + seconds
    while (pid := lock_holder(lock)) in started and time.monotonic() < until:
        assert pid is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def plain_numbers(row: dict[str, Any]) -> dict[str, float]:
    """The finite numbers of a metrics row."""
    import math

    return {
        key: float(value)
        for key, value in row.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
