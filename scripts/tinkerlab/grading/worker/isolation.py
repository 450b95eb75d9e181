"""What keeps generated code from the network, from keys, and from outliving its attempt.

On Linux, kernel namespaces where the kernel grants them (no privilege is needed on most
machines): no network, no sight of the host process's memory and environment, common credential
folders hidden, and a PID namespace per attempt whose end kills every process in it. Without
namespaces an attempt is still a process of its own with limits, whose descendants are hunted
down. This is a guard against the mistakes and tricks of a model under training, not a jail for
an attacker: the code can read files that the user can read.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import time
from pathlib import Path

from tinkerlab.grading.worker import limits

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MS_RDONLY, MS_REC, MS_PRIVATE = 1, 0x4000, 0x40000
HIDDEN = (".tinker", ".ssh", ".aws", ".azure", ".config", ".kube", ".docker", ".cache/huggingface")
ATTEMPT_FILE_BYTES = 16 * 2**20
HUNT_SECONDS = 2.0


class Isolation:
    """Isolates this process once, and each attempt that it forks.

    Attributes:
        network: whether generated code can reach the network.
        pid_namespace: whether an attempt's processes die with it for certain.
    """

    def __init__(self, user_home: str, *, use_namespaces: bool = True) -> None:
        self.network = True
        self.pid_namespace = False
        self._own_pids: int | None = None
        if use_namespaces and sys.platform.startswith("linux"):
            self._enter(user_home)
        # Orphans of an attempt become children of this process, where they can be found.
        limits.prctl(limits.PR_SET_CHILD_SUBREAPER, 1)

    def _enter(self, user_home: str) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWPID) != 0:
            return
        self.network = False
        _hide_credentials(libc, user_home)
        # Only a process that lives in the new PID namespace may make further ones below it.
        _go_on_in_child()
        with contextlib.suppress(OSError):
            self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
            # Tried once here, so that the facts of the worker are true.
            self.pid_namespace = self._fresh_pids(libc) and self._back_to_own_pids(libc)

    def fork(self) -> int:
        """``os.fork`` with a PID namespace for the child, where that can be had."""
        if not self.pid_namespace:
            return os.fork()
        libc = ctypes.CDLL(None, use_errno=True)
        self._fresh_pids(libc)
        try:
            return os.fork()
        finally:
            self._back_to_own_pids(libc)

    def end(self, pid: int) -> None:
        """Kill an attempt with everything that it started, and collect what is left of it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        if self.pid_namespace:
            os.waitpid(pid, 0)  # the kernel ends the namespace's other processes first
            return
        deadline = time.monotonic() + HUNT_SECONDS
        while time.monotonic() < deadline:
            for child in _children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            time.sleep(0.001)

    def _fresh_pids(self, libc: ctypes.CDLL) -> bool:
        return libc.unshare(CLONE_NEWPID) == 0

    def _back_to_own_pids(self, libc: ctypes.CDLL) -> bool:
        return self._own_pids is not None and libc.setns(self._own_pids, CLONE_NEWPID) == 0


def enter_attempt(cpu_seconds: int, memory_mb: int) -> None:
    """Limits of one attempt, in its own process, before its code runs."""
    os.setsid()
    limits.prctl(limits.PR_SET_PDEATHSIG, signal.SIGKILL)
    limits.set_limit(resource.RLIMIT_CPU, cpu_seconds)
    limits.set_limit(resource.RLIMIT_AS, memory_mb * 2**20)
    limits.set_limit(resource.RLIMIT_FSIZE, ATTEMPT_FILE_BYTES)


def _go_on_in_child() -> None:
    """Fork; the child goes on, and this process only waits to end as the child ends."""
    pid = os.fork()
    if pid == 0:
        limits.prctl(limits.PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


def _hide_credentials(libc: ctypes.CDLL, user_home: str) -> None:
    """Mount nothing over the folders where keys live, seen only by this process's children."""
    libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None)
    for name in HIDDEN:
        folder = Path(user_home, name)
        if folder.is_dir():
            libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", MS_RDONLY, b"size=4k")


def _children() -> list[int]:
    """Living children of this process, adopted orphans among them; none without /proc."""
    with contextlib.suppress(OSError, ValueError):
        listed = Path("/proc/thread-self/children").read_text()
        return [int(pid) for pid in listed.split()]
    return []
