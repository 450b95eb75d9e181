"""Run one of the project's scripts for a tool: its JSON document, or why there is none.

The script's messages go to a log file of the session. A script that is told to stop gets an
interrupt, on which the trainers save before they end; a tool call that is cancelled leaves its
script running, since what it does is on the disk and paid for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinkerlab import cli
from tinkerlab.mcp.errors import Refusal

SCRIPTS = Path(__file__).resolve().parents[2]
POLL_SECONDS = 0.5
STOP_SECONDS = 60.0
_MESSAGE_LINES = 3


@dataclass(frozen=True)
class Outcome:
    """How a script ended.

    Attributes:
        document: what it printed with ``--json``; None where it printed none.
        message: its last line on stderr that says why, for an exit code other than 0.
    """

    code: int
    document: Any
    message: str


def script(name: str, *arguments: str) -> list[str]:
    """The command that runs one of the project's scripts."""
    return [sys.executable, str(SCRIPTS / name), *arguments]


def tinker_command(*arguments: str) -> list[str]:
    """The command ``tinker``, as JSON where it has it."""
    return [sys.executable, "-m", "tinker.cli", "--format", "json", *arguments]


class Job:
    """One running command.

    Args:
        cwd: where it runs; relative paths in configs are meant from there.
        log: its stderr is appended to this file.
    """

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path
    ) -> None:
        self.log = log
        self._command = list(command)
        self._env, self._cwd = dict(env), cwd
        self._process: asyncio.subprocess.Process | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int | None:
        """Of the process; None before it was started."""
        return self._process.pid if self._process is not None else None

    async def run(
        self,
        watch: Callable[[], Awaitable[None]] | None = None,
        started: Callable[[], None] | None = None,
    ) -> Outcome:
        """Start the script, wait for its end, and read what it printed.

        Args:
            watch: awaited every half second meanwhile.
            started: called as soon as there is a process.

        Raises:
            Refusal: an argument that no command can be given.
        """
        self.log.parent.mkdir(parents=True, exist_ok=True)
        start = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as stream:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=stream,
                    env=self._env,
                    cwd=self._cwd,
                    # An interrupt at the terminal is the server's to pass on.
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:  # too long, a NUL, half a surrogate pair
                raise Refusal(
                    "bad_input",
                    f"the arguments can't be passed on: {error}",
                    "shorter plain text; put long text into a file of the workspace",
                ) from None
        if started is not None:
            started()
        printed = asyncio.ensure_future(self._read())
        while not printed.done():
            await asyncio.wait({printed}, timeout=POLL_SECONDS)
            if watch is not None:
                await watch()
        code = await self._process.wait()
        return Outcome(code, _document(await printed), self._last_words(start))

    async def _read(self) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        return await self._process.stdout.read()

    async def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Ask the script to save and end; end it when that takes longer than ``seconds``."""
        if self._process is None or self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)
        try:
            await asyncio.wait_for(self._process.wait(), seconds)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def _last_words(self, start: int) -> str:
        with self.log.open("rb") as file:
            file.seek(max(start, self.log.stat().st_size - 20_000))
            lines = file.read().decode(errors="replace").strip().splitlines()
        for line in reversed(lines):
            if line.startswith(("error: ", "failed: ")):
                return cli.redact(line.partition(": ")[2])
        return cli.redact(" / ".join(lines[-_MESSAGE_LINES:]))


def _document(printed: bytes) -> Any:
    try:
        return json.loads(printed)
    except ValueError:
        return None


def expect(outcome: Outcome, allowed: Sequence[int] = (0,)) -> Any:
    """The document of a script that ended with one of the ``allowed`` codes.

    Raises:
        Refusal: it ended otherwise, or printed no document.
    """
    if outcome.code in allowed and outcome.document is not None:
        return outcome.document
    if "is training in it" in outcome.message:
        raise Refusal("busy", outcome.message, "it trains on by itself; ask status, or wait")
    if outcome.code == 2:
        raise Refusal("bad_input", outcome.message, "mend what the message names, and call again")
    if outcome.code in (130, 143, -signal.SIGINT, -signal.SIGTERM):
        raise Refusal("stopped", outcome.message or "it was stopped", "call again to go on")
    kind = "service_failed" if "the service" in outcome.message else "run_failed"
    raise Refusal(kind, outcome.message, "see the session's log; the debug skill reads it")
