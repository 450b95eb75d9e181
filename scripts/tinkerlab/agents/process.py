"""Run the agent: task in, log out, an end at the time limit or at Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from tinkerlab.agents.lines import LONGEST, Readable, bounded
from tinkerlab.agents.secrets import Redactor
from tinkerlab.errors import InputError

POLL_SECONDS = 0.05
STOP_SECONDS = 10.0  # that an agent has to end after it was asked
CLOSE_SECONDS = 5.0  # that what it left running has to let go of its output
STREAM, MESSAGES = "stream.jsonl", "stderr.log"

How = Literal["ended", "time limit", "interrupted"]


@dataclass(frozen=True)
class Ended:
    """How the agent's process came to its end.

    Attributes:
        cut_bytes: that were left out of lines longer than ``lines.LONGEST``.
    """

    how: How
    code: int
    seconds: float
    cut_bytes: int


class AgentProcess:
    """One agent at work in a folder.

    Args:
        logs: folder of the raw log (``stream.jsonl``) and of its messages (``stderr.log``).
        heard: is given each redacted line of its stdout.
        said: is given each redacted line of its stderr.
    """

    def __init__(
        self,
        logs: Path,
        redactor: Redactor,
        heard: Callable[[str], None],
        said: Callable[[str], None],
        longest: int = LONGEST,
    ) -> None:
        self._logs, self._redactor = logs, redactor
        self._heard, self._said = heard, said
        self._longest = longest
        self._cut = 0
        self._lock = threading.Lock()
        self._signals = 0

    def run(
        self,
        command: Sequence[str],
        task: Path,
        cwd: Path,
        env: Mapping[str, str],
        time_limit: float,
    ) -> Ended:
        """Run to the end, however it comes; nothing that it started outlives it in its group.

        Raises:
            InputError: the command can't be started.
        """
        started = time.monotonic()
        with task.open("rb") as stdin, self._handled():
            try:
                process = subprocess.Popen(
                    list(command),
                    cwd=cwd,
                    env=dict(env),
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    # Ctrl-C is ours, to pass on once.
                    start_new_session=True,
                )
            except OSError as error:
                raise InputError(f"can't run {command[0]}: {error.strerror}") from None
            readers = [
                self._reader(process.stdout, STREAM, self._heard),
                self._reader(process.stderr, MESSAGES, self._said),
            ]
            how = self._wait(process, started + time_limit)
            _clear(process.pid, readers)
        return Ended(how, process.returncode, time.monotonic() - started, self._cut)

    def _wait(self, process: subprocess.Popen[bytes], end: float) -> How:
        while process.poll() is None:
            late = time.monotonic() > end
            if late or self._signals:
                self._end(process)
                return "time limit" if late else "interrupted"
            time.sleep(POLL_SECONDS)
        return "interrupted" if self._signals else "ended"

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Ask it to end; kill it when it does not, or at the second Ctrl-C."""
        _signal(process.pid, signal.SIGINT)
        until = time.monotonic() + STOP_SECONDS
        while process.poll() is None:
            if time.monotonic() > until or self._signals > 1:
                _signal(process.pid, signal.SIGKILL)
                process.wait()
            time.sleep(POLL_SECONDS)

    def _reader(
        self, stream: IO[bytes] | None, name: str, tell: Callable[[str], None]
    ) -> threading.Thread:
        assert stream is not None
        thread = threading.Thread(target=self._read, args=(stream, name, tell), daemon=True)
        thread.start()
        return thread

    def _read(self, stream: Readable, name: str, tell: Callable[[str], None]) -> None:
        """Every line, blanked, to its file and to ``tell``; a write to the file is a whole line."""
        with (self._logs / name).open("ab") as log:
            for raw, cut in bounded(stream, self._longest):
                line = self._redactor(raw.decode("utf-8", "replace"))
                if cut:
                    # The end may be the beginning of a secret, which was not recognised.
                    line = line[: max(len(line) - self._redactor.longest, 0)]
                    line += f" [cut: {cut} more bytes]"
                log.write(line.encode() + b"\n")
                log.flush()
                with self._lock:
                    self._cut += cut
                    tell(line)

    @contextlib.contextmanager
    def _handled(self) -> Iterator[None]:
        def handle(*_: Any) -> None:
            self._signals += 1

        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _clear(group: int, readers: Sequence[threading.Thread]) -> None:
    """End what the agent left running, which would hold its output open, and read the rest."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        _signal(group, number)
        until = time.monotonic() + CLOSE_SECONDS
        for reader in readers:
            reader.join(max(until - time.monotonic(), 0))
        if not any(reader.is_alive() for reader in readers):
            break
    _signal(group, signal.SIGKILL)


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
