"""Run a sweep's trainers side by side: a bounded number, each with its log, none in another's way.

A trainer has a process group of its own, so that Ctrl-C reaches the sweep alone, which then asks
each trainer to save and stop. One that fails does not stop the others. A sweep that was killed
leaves its trainers running: the next start waits for them, and then goes on with their runs.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FrameType
from typing import Literal

from tinkerlab.cli import EXIT_OK, say
from tinkerlab.diagnosis.run_analysis.run import lock_holder
from tinkerlab.folders import make_folder
from tinkerlab.sweeps.plan import Member, Plan
from tinkerlab.sweeps.record import Record, has_final_checkpoint
from tinkerlab.watching.board import Watched
from tinkerlab.watching.discovery import OUTPUT_LOG, Place
from tinkerlab.watching.last_words import last_words
from tinkerlab.watching.status import Status

Ended = Literal["complete", "failed", "interrupted", "not started"]

POLL_SECONDS = 0.2
KILL_AFTER = 30.0  # seconds that trainers have to leave at once after the second Ctrl-C


@dataclass(frozen=True)
class Outcome:
    """What became of one run.

    Attributes:
        skipped: it was complete before this start.
        reason: what its trainer said last, when it failed.
    """

    member: Member
    status: Ended
    exit_code: int | None = None
    skipped: bool = False
    reason: str = ""


class Runner:
    """Runs a plan's members to their ends.

    Args:
        at_once: trainers that run at the same time, at most.
        show: is given the runs' statuses every ``every`` seconds.
    """

    def __init__(
        self,
        plan: Plan,
        record: Record,
        at_once: int,
        show: Callable[[list[Status]], None],
        every: float,
    ) -> None:
        self._plan = plan
        self._record = record
        self._at_once = at_once
        self._show = show
        self._every = every
        self._waiting: list[Member] = []
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._adopted: set[str] = set()
        self._outcomes: dict[str, Outcome] = {}
        self._watched = {
            member.name: Watched(Place(member.folder, member.name)) for member in plan.members
        }
        self._signals = 0
        self._killed_from = 0.0

    @property
    def interrupted(self) -> bool:
        return self._signals > 0

    def run(self) -> list[Outcome]:
        """Run what is not complete; every member's outcome, in the plan's order."""
        for member in self._plan.members:
            if self._record.is_complete(member):
                self._outcomes[member.name] = Outcome(member, "complete", EXIT_OK, skipped=True)
            else:
                self._waiting.append(member)
        previous = {n: signal.signal(n, self._handle) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            self._loop()
        finally:
            for process in self._running.values():
                process.kill()  # only a defect of ours leaves any
            for number, handler in previous.items():
                signal.signal(number, handler)
        return [self._outcomes[member.name] for member in self._plan.members]

    def _loop(self) -> None:
        shown_at = -self._every
        while True:
            self._start_some()
            if time.monotonic() - shown_at >= self._every:
                self._show(self.statuses())
                shown_at = time.monotonic()
            if not self._running and not self._waiting:
                self._show(self.statuses())
                return
            time.sleep(POLL_SECONDS)
            self._collect()
            if self._killed_from and time.monotonic() > self._killed_from:
                for process in self._running.values():
                    process.kill()

    def _start_some(self) -> None:
        if self.interrupted:
            for member in self._waiting:
                self._outcomes[member.name] = Outcome(member, "not started")
            self._waiting.clear()
            return
        for member in list(self._waiting):
            holder = lock_holder(member.folder / ".lock")
            if holder is not None:
                self._adopt(member, holder)
        free = [member for member in self._waiting if member.name not in self._adopted]
        room = max(self._at_once - len(self._running) - len(self._adopted), 0)
        for member in free[:room]:
            self._waiting.remove(member)
            self._start(member)

    def _adopt(self, member: Member, holder: int) -> None:
        """Leave a run that another process trains alone, as one of those at work."""
        if member.name not in self._adopted:
            self._adopted.add(member.name)
            say(f"{member.name}: process {holder} is training it already; waiting for that")

    def _start(self, member: Member) -> None:
        make_folder(member.folder)
        command = self._plan.command(member)
        with (member.folder / OUTPUT_LOG).open("ab") as log:
            log.write(f"$ {shlex.join(['python', *command])}\n".encode())
            log.flush()
            self._running[member.name] = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        self._record.note(member, "running")

    def _collect(self) -> None:
        """Note the trainers that have ended, and the adopted runs that were let go."""
        members = {member.name: member for member in self._plan.members}
        for name in list(self._adopted):
            if lock_holder(members[name].folder / ".lock") is None:
                self._adopted.discard(name)  # its turn comes: complete at once, or resumed
        for name, process in list(self._running.items()):
            code = process.poll()
            if code is None:
                continue
            del self._running[name]
            outcome = self._outcomes[name] = self._outcome(members[name], code)
            self._record.note(members[name], outcome.status, code)

    def _outcome(self, member: Member, code: int) -> Outcome:
        if code == EXIT_OK and has_final_checkpoint(member.folder):
            return Outcome(member, "complete", code)
        if self.interrupted and code in (130, 143, -signal.SIGTERM, -signal.SIGKILL):
            return Outcome(member, "interrupted", code)
        said = last_words(member.folder / OUTPUT_LOG)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        if code == EXIT_OK:
            how = "it ended without a final checkpoint"
        return Outcome(member, "failed", code, reason=f"{how}; {said}" if said else how)

    def statuses(self) -> list[Status]:
        """Where every run stands, in the plan's order."""
        found = []
        for member in self._plan.members:
            outcome = self._outcomes.get(member.name)
            begun = outcome is not None or member.name in self._running
            if not begun and member.name not in self._adopted:
                found.append(Status(member.name, str(member.folder), "waiting"))
                continue
            if outcome is not None and outcome.status == "not started":
                found.append(Status(member.name, str(member.folder), "waiting"))
                continue
            status = self._watched[member.name].look()
            found.append(_corrected(status, outcome))
        return found

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """The first signal asks the trainers to save and stop, the second to leave at once."""
        self._signals += 1
        if self._signals == 1:
            say("stopping: the trainers finish their steps and save; once more to leave at once")
        else:
            self._killed_from = time.monotonic() + KILL_AFTER
        for process in self._running.values():
            # SIGTERM, which a shell's background jobs do not ignore as they do SIGINT.
            process.send_signal(signal.SIGTERM)


def _corrected(status: Status, outcome: Outcome | None) -> Status:
    """What the process tells wins over what the files tell."""
    if outcome is None:
        if status.state != "stopped":
            return status
        # Its process lives: the folder's lock is taken only after the data is prepared.
        return replace(status, state="starting", reason="")
    if outcome.status == "complete":
        return replace(status, state="finished", reason="")
    return replace(status, state="stopped", reason=outcome.reason or outcome.status)
