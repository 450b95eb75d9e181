"""Which service a session trains on: the hosted one, or a rehearsal that the server starts."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

from tinkerlab.errors import InputError
from tinkerlab.mcp.errors import Refusal
from tinkerlab.mcp.settings import Settings
from tinkerlab.mcp.workspace import SESSIONS
from tinkerlab.service import has_credential

if TYPE_CHECKING:
    from tinkerlab.rehearsal.service.launch import Rehearsal


class Backend:
    """The services of one server; its rehearsal starts at the first need and ends with it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._rehearsal: asyncio.Task[Rehearsal] | None = None

    async def environment(self, rehearse: bool) -> dict[str, str]:
        """What a script needs to reach the service.

        Raises:
            Refusal: the rehearsal does not start, or there is no credential.
        """
        if not rehearse:
            if not has_credential():
                raise Refusal(
                    "bad_input",
                    "no credential for the hosted service",
                    "set TINKER_API_KEY for the server, or begin the session with rehearse=true",
                )
            return dict(os.environ)
        if self._rehearsal is None or _is_over(self._rehearsal):
            self._rehearsal = asyncio.create_task(asyncio.to_thread(self._start))
        # A cancelled call leaves the start to the next one: a second would find the store in use.
        return (await asyncio.shield(self._rehearsal)).env

    def _start(self) -> Rehearsal:
        from tinkerlab.rehearsal.service.launch import start_rehearsal

        store = self._settings.workspace / SESSIONS / "rehearsal"
        models = [part for name in self._settings.rehearsal_models for part in ("--model", name)]
        try:
            return start_rehearsal(["--store", str(store), *models], store / "server.log")
        except InputError as error:
            raise Refusal(
                "service_failed",
                f"the rehearsal did not start: {error}",
                "if another server uses this workspace, take another one",
            ) from None

    async def close(self) -> None:
        if self._rehearsal is not None:
            with contextlib.suppress(Refusal):  # told to the call that asked for it
                await asyncio.to_thread((await self._rehearsal).stop)


def _is_over(started: asyncio.Task[Rehearsal]) -> bool:
    """Whether the start failed, or the rehearsal has ended since."""
    if not started.done():
        return False
    failed = started.cancelled() or started.exception() is not None
    return failed or started.result().process.poll() is not None
