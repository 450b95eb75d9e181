"""A worker process for scoring code: started clean, asked with a time limit, stopped whole.

The worker gets none of this process's environment (so no keys), none of its open files, a
temporary home folder, and a process group of its own that is killed with all its members.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from pathlib import Path
from typing import Any

from tinkerlab.errors import InputError
from tinkerlab.grading.worker import framing

MAIN = Path(__file__).parent / "worker" / "main.py"
SCRIPTS = Path(__file__).resolve().parents[2]
START_SECONDS = 120.0  # a scoring function may import torch
KEPT_OUTPUT = 2_000  # bytes of what a worker prints that an error may quote
# What a program may need to find its interpreter's libraries; nothing else is passed on.
PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")


class Crashed(Exception):
    """The worker ended by itself; the message says how."""


class Worker:
    """One running worker. Not for several threads at once.

    Args:
        setup: ``{"kind", "options", "memory_mb"}``, see ``worker.main``.

    Raises:
        InputError: the worker refuses its setup, or can't start.
    """

    def __init__(self, setup: dict[str, Any]) -> None:
        self._home = tempfile.mkdtemp(prefix="tinker-grader-")
        self._printed = bytearray()
        ours: list[int] = []
        theirs: list[int] = []
        try:
            for reading in (True, False, True):  # the worker reads, writes, and holds a lifeline
                read, write = os.pipe()
                theirs.append(read if reading else write)
                ours.append(write if reading else read)
            self._requests, self._replies, self._lifeline = ours
            self._process = subprocess.Popen(
                [sys.executable, "-Iu", str(MAIN), str(SCRIPTS), *map(str, theirs)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=theirs,
                start_new_session=True,
                cwd=self._home,
                env=_environment(self._home),
            )
        except BaseException:
            for descriptor in ours:
                os.close(descriptor)
            shutil.rmtree(self._home, ignore_errors=True)
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        # Also where nobody calls close: when this object, or the whole process, ends.
        self._stop = weakref.finalize(
            self, _stop, self._process, self._home, [self._requests, self._replies, self._lifeline]
        )
        self._drained = threading.Thread(
            target=_drain, args=(self._process, self._printed), daemon=True
        )
        self._drained.start()
        self.facts = self._started(setup)

    def _started(self, setup: dict[str, Any]) -> dict[str, Any]:
        what = setup["name"]
        try:
            framing.send(self._requests, setup)
            answer = framing.receive(self._replies, START_SECONDS)
        except framing.TimedOut:
            self.close()
            raise InputError(
                f"{what}: not ready after {START_SECONDS:.0f} s of importing"
            ) from None
        except framing.Closed:
            reason = self.epitaph()
            self.close()
            raise InputError(f"{what}: its process could not start ({reason})") from None
        except BaseException:
            self.close()
            raise
        if "refused" in answer:
            self.close()
            raise InputError(f"{answer['refused']}")
        return answer["ready"]

    def submit(self, attempts: list[dict[str, Any]]) -> None:
        """Hand over a batch; ``next_reply`` then gives one answer for each.

        Raises:
            Crashed: the worker is gone.
        """
        try:
            framing.send(self._requests, {"attempts": attempts})
        except framing.Closed:
            raise Crashed(self.epitaph()) from None

    def next_reply(self, timeout: float) -> dict[str, Any]:
        """The answer to the next attempt.

        Raises:
            framing.TimedOut: no answer within ``timeout`` seconds; the worker is then useless.
            Crashed: it ended.
        """
        try:
            reply = framing.receive(self._replies, timeout)
        except framing.Closed:
            raise Crashed(self.epitaph()) from None
        if not isinstance(reply, dict):
            raise Crashed("it wrote into the pipe of its replies")
        return reply

    def epitaph(self) -> str:
        """How the worker ended, with the last thing that it printed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
            self._drained.join(1)  # what it printed last may still be in the pipe
        code = self._process.poll()
        if code is None:
            how = "it closed its pipes"
        elif code < 0:
            how = f"killed by {signal.Signals(-code).name}"
        else:
            how = f"exit code {code}"
        printed = bytes(self._printed).decode("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(printed) if line.strip()), "")
        return f"{how}: {last[:200]}" if last else how

    def kill(self) -> None:
        """Kill the worker and everything that it started; may be called from any thread."""
        _kill(self._process)

    def close(self) -> None:
        """Kill the worker and everything that it started, and remove its home."""
        self._stop()


def _kill(process: subprocess.Popen[bytes]) -> None:
    # The group outlives its first process: what that one left behind is killed, too.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _stop(process: subprocess.Popen[bytes], home: str, descriptors: list[int]) -> None:
    _kill(process)
    process.wait()
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    shutil.rmtree(home, ignore_errors=True)


def _drain(process: subprocess.Popen[bytes], printed: bytearray) -> None:
    """Read what the worker prints, so that it never waits, and keep only the end of it."""
    stream = process.stdout
    assert stream is not None
    with contextlib.suppress(OSError, ValueError):
        while part := os.read(stream.fileno(), 2**16):
            printed += part
            del printed[:-KEPT_OUTPUT]
    stream.close()


def _environment(home: str) -> dict[str, str]:
    passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    # One thread each: a grader shares the machine with the training that waits for it.
    return {**passed, "HOME": home, "TMPDIR": home, "OMP_NUM_THREADS": "1"}
