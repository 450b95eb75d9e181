"""All runs that are watched: read as they grow, analyzed when there is news, each look in turn."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tinkerlab.diagnosis.findings import Finding
from tinkerlab.diagnosis.run_analysis.analysis import analyze
from tinkerlab.diagnosis.run_analysis.run import METRICS, Run
from tinkerlab.errors import InputError
from tinkerlab.watching import discovery
from tinkerlab.watching.discovery import OUTPUT_LOG, Place
from tinkerlab.watching.last_words import last_words
from tinkerlab.watching.status import ENDED, Status, status_of

# Files whose time of change is a sign of life; logs.log is tinker-cookbook's.
SIGNS = (METRICS, "checkpoints.jsonl", "attempts.jsonl", "config.json", ".lock", "logs.log")
LOGS = (OUTPUT_LOG, "logs.log")
AGAIN_AFTER = 0.2  # seconds to the second look at a file that cannot be read
UNREADABLE_AFTER = 5.0  # seconds that a file may stay half written
ANALYSIS_SHARE = 0.1  # of the time at most that goes into analysis: long runs take seconds
AGES_EVERY = 60.0  # seconds after which a run is analyzed again though it wrote nothing


class Watched:
    """One run: its columns stay in memory, each look reads only what is new."""

    def __init__(self, place: Place, stalled_after: float | None = None) -> None:
        self.place = place
        self._stalled_after = stalled_after
        folder = None if place.path.is_file() else place.path
        self.run = Run(place.path, folder)
        self._findings: list[Finding] = []
        self._unseen = True  # there is something that no analysis has looked at
        self._state = ""
        self._last: Status | None = None
        self._unread_since: float | None = None
        self._analyzed_at = self._analyze_from = 0.0

    def look(self) -> Status:
        """Read what is new; where the run stands now."""
        first = not self._analyzed_at
        try:
            grew = self.run.read() != 0 and not first
            status = self._status(grew)
        except (InputError, OSError) as error:
            # A config that is being written is whole at the next look.
            if self._unread_since is None:
                self._unread_since = time.monotonic()
                if self._last is None:
                    time.sleep(AGAIN_AFTER)
                    return self.look()
            if self._last and time.monotonic() < self._unread_since + UNREADABLE_AFTER:
                return self._last
            said = error.strerror if isinstance(error, OSError) else str(error)
            reason = str(said).removeprefix(f"{self.place.path}/")
            return Status(self.place.name, str(self.place.path), "unreadable", reason)
        self._unseen |= grew or status.state != self._state
        self._state = status.state
        if self._is_due(force=status.state in ENDED and self._unseen):
            self._analyze()
            status = self._status(grew)
        if status.state == "stopped":
            status = self._with_last_words(status)
        self._last, self._unread_since = status, None
        return status

    def _status(self, grew: bool) -> Status:
        return status_of(
            self.run,
            self.place.name,
            idle=idle_seconds(self.run),
            grew=grew,
            stalled_after=self._stalled_after,
            findings=self._findings,
        )

    def _is_due(self, *, force: bool) -> bool:
        now = time.monotonic()
        if force or not self._analyzed_at:
            return True
        return now >= self._analyze_from and (self._unseen or now >= self._analyzed_at + AGES_EVERY)

    def _analyze(self) -> None:
        began = time.monotonic()
        self._findings = [] if self.run.is_empty else analyze(self.run).findings
        self._unseen = False
        self._analyzed_at = time.monotonic()
        took = self._analyzed_at - began
        self._analyze_from = self._analyzed_at + took * (1 / ANALYSIS_SHARE - 1)

    def _with_last_words(self, status: Status) -> Status:
        folder = self.run.folder
        said = next((w for log in LOGS if folder and (w := last_words(folder / log))), None)
        problem = next((f for f in status.findings if f.severity == "problem"), None)
        if said:
            return replace(status, reason=said)
        if problem and problem.cause != "final-checkpoint-missing":
            return replace(status, reason=f"{status.reason}: {problem.what}")
        return status


class Board:
    """The runs at and under some paths; those that begin later join.

    Raises:
        InputError: a path does not exist.
    """

    def __init__(self, paths: Sequence[Path], stalled_after: float | None = None) -> None:
        self._paths = paths
        self._stalled_after = stalled_after
        self._watched: dict[Path, Watched] = {}
        discovery.find(paths)

    def look(self) -> list[Status]:
        """One status for each run, in the order of their names."""
        try:
            for place in discovery.find(self._paths):
                if place.path not in self._watched:
                    self._watched[place.path] = Watched(place, self._stalled_after)
        except InputError:  # a path was removed since: its runs say so themselves
            if not self._watched:
                raise
        return [watched.look() for watched in self._watched.values()]


def idle_seconds(run: Run) -> float:
    """Seconds since the run last wrote one of its files; 0 where it has none yet."""
    newest = run.written_at or 0.0
    if run.folder is not None:
        with os.scandir(run.folder) as entries:
            for entry in entries:
                sign = entry.name in SIGNS or entry.name in LOGS
                if sign or entry.name.endswith("rollout_summaries.jsonl"):
                    newest = max(newest, entry.stat().st_mtime)
    return max(time.time() - newest, 0.0) if newest else 0.0
