"""Limits of a worker process: memory, processes, file size; and it dies with its host."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import signal
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
MORE_PROCESSES = 64
MAX_FILE_BYTES = 256 * 2**20


def set_limit(kind: int, value: int) -> None:
    """Lower one limit for this process and its children; never above what it already has."""
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    # macOS refuses some of them (RLIMIT_AS); what the platform has is used.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (value, value))


def limit_worker(memory_mb: int) -> None:
    """Memory, file size, processes, no core dumps: for the whole life of a worker.

    The process limit counts all of the user's processes and threads, so it is set above those
    that run now. The superuser is exempt from it.
    """
    set_limit(resource.RLIMIT_AS, memory_mb * 2**20)
    set_limit(resource.RLIMIT_FSIZE, MAX_FILE_BYTES)
    set_limit(resource.RLIMIT_CORE, 0)
    running = _threads_of_user()
    if running is not None:
        set_limit(resource.RLIMIT_NPROC, running + MORE_PROCESSES)


def die_with(lifeline: int) -> None:
    """Be killed by the kernel when the other end of the pipe ``lifeline`` closes.

    The host holds that end and never writes: it closes when the host ends, however it ends,
    and the signal needs no cooperation of the code that runs here.
    """
    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC | fcntl.fcntl(lifeline, fcntl.F_GETFL))
        signal.signal(signal.SIGIO, signal.SIG_DFL)  # the default is to terminate


def prctl(option: int, value: int) -> None:
    """Linux only; elsewhere nothing happens."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _threads_of_user() -> int | None:
    """Threads of this user's processes; None where /proc does not tell."""
    count, user = 0, os.getuid()
    try:
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if entry.stat().st_uid == user:
                        count += sum(1 for _ in Path(entry.path, "task").iterdir())
    except OSError:
        return None
    return count
