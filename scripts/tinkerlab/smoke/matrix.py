"""Run the cells, a bounded number side by side, and keep what became of each.

A cell is two commands in processes of their own: a trainer, and checkpoint_compare.py, which
samples from what the trainer saved. Ctrl-C reaches this process alone, which then asks the
trainers to save and stop.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from tinkerlab.cli import EXIT_OK, redact
from tinkerlab.smoke import judging
from tinkerlab.smoke.cells import STEPS, Cell, shown
from tinkerlab.smoke.record import Record
from tinkerlab.watching.discovery import OUTPUT_LOG
from tinkerlab.watching.last_words import last_words

POLL_SECONDS = 0.1
STOP_SECONDS = 30.0  # that a command has to save and end before it is killed
REPLY_CHARACTERS = 300
TIMED_OUT = "it took longer than --time-limit"

Tell = Callable[[str], None]


class Matrix:
    """The cells of one start.

    Args:
        env: in which the commands find their service.
        time_limit: seconds for each command.
    """

    def __init__(
        self, record: Record, env: Mapping[str, str], inputs: Path, time_limit: float, tell: Tell
    ) -> None:
        self._record, self._inputs = record, inputs
        self._env = {**env, "PYTHONUNBUFFERED": "1"}
        self._time_limit = time_limit
        self._tell = tell
        self._stop = threading.Event()

    @property
    def interrupted(self) -> bool:
        return self._stop.is_set()

    def run(self, cells: Sequence[Cell], at_once: int, done: Callable[[], object]) -> None:
        """Run every cell; ``done`` is called each time that the record has grown.

        SIGINT and SIGTERM stop it: cells at work are noted as interrupted, the others stay as
        they were.
        """
        with self._signals(), ThreadPoolExecutor(at_once) as pool:
            futures = {pool.submit(self._cell, cell): cell for cell in cells}
            for finished, future in enumerate(as_completed(futures), start=1):
                row = future.result()
                if row is None:
                    continue
                cell = futures[future]
                self._record.note(cell, row)
                done()
                why = f": {row['reason']}" if row["reason"] else ""
                log = f" (all of it: {row['log']})" if row["status"] == "failed" else ""
                self._tell(
                    f"[{finished}/{len(cells)}] {cell.name} ({cell.model}): {row['status']}"
                    f" after {row['seconds']:.0f} s{why}{log}"
                )

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def handle(number: int, _: Any) -> None:
            if not self._stop.is_set():
                self._tell("stopping: the trainers save and end")
            self._stop.set()

        before = {n: signal.signal(n, handle) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _cell(self, cell: Cell) -> dict[str, Any] | None:
        """One cell from start to judgement; None where it was not started."""
        if self._stop.is_set():
            return None
        started = time.monotonic()
        attempt = self._record.new_attempt(cell)
        run, log = attempt / "run", attempt / OUTPUT_LOG
        command = cell.training(self._inputs, run)
        code, _, late = self._call(command, log)
        found = judging.judge_training(
            cell.method, run, code, TIMED_OUT if late else last_words(log), STEPS
        )
        reply = ""
        if found.checks.get("checkpoint") and not self._stop.is_set():
            code, printed, late = self._call(cell.sampling(run), log)
            said = TIMED_OUT if late else last_words(log)
            reply = judging.judge_sampling(found, code, printed, said)
        if self._stop.is_set() and found.checks.get("sampled") is not True:
            found.status, found.reason = "interrupted", "stopped before its end"
        return {
            "status": found.status,
            "reason": redact(found.reason),
            "checks": found.checks,
            "figures": found.figures,
            "reply": redact(reply[:REPLY_CHARACTERS]),
            "saved": found.saved,
            "exit_code": code,
            "seconds": round(time.monotonic() - started, 1),
            "command": shown(command),
            "run": str(run),
            "log": str(log),
        }

    def _call(self, command: Sequence[str], log: Path) -> tuple[int, str, bool]:
        """Run one command: its exit code, what it printed, whether it exceeded its time.

        stdout and stderr go to ``log``; of a command with ``--json``, stdout is kept apart.
        """
        apart = command[-1] == "--json"
        with log.open("ab") as stream:
            stream.write(f"$ {shown(command)}\n".encode())
            stream.flush()
            process = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if apart else stream,
                stderr=stream,
                env=dict(self._env),
                start_new_session=True,
            )
        printed: list[bytes] = []
        reader = threading.Thread(target=lambda: printed.append(_all(process)), daemon=True)
        reader.start()
        late = self._wait(process)
        reader.join(STOP_SECONDS)
        return process.returncode, b"".join(printed).decode("utf-8", "replace"), late

    def _wait(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait for the end, or bring it about; whether the time limit did."""
        end = time.monotonic() + self._time_limit
        while process.poll() is None:
            late = time.monotonic() > end
            if late or self._stop.is_set():
                _end(process)
                return late and process.returncode != EXIT_OK
            time.sleep(POLL_SECONDS)
        return False


def _all(process: subprocess.Popen[bytes]) -> bytes:
    return process.stdout.read() if process.stdout is not None else b""


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask a command to save and stop; kill it and what it started when it does not."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
