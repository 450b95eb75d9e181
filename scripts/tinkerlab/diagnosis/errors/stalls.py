"""What the times in a log say: where it stood still, and what had stopped before.

Only what the lines themselves carry is used; a log without times says nothing here.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tinkerlab.diagnosis.errors.times import Stamp, stamp_of
from tinkerlab.diagnosis.findings import Finding

# A pause of five minutes is longer than any poll or retry of the SDK between two log lines of
# a loop that logs its steps; and twenty times the usual gap, so that slow loops are left alone.
GAP_SECONDS = 300.0
GAP_FACTOR = 20.0

# Evaluations, exports and downloads take long and log nothing meanwhile: an hour for these.
LONG_WORK_SECONDS = 3600.0
_LONG_WORK = re.compile(
    r"eval|validat|benchmark|test set|download|export|merg|compil|loading|tokeniz", re.IGNORECASE
)
# A pause that comes again is part of the loop, such as an evaluation every so many steps: told
# only where it is this much longer than the third longest.
RECURRING_FACTOR = 3.0

_HEARTBEAT = re.compile(r"Session heartbeat failed for (?P<seconds>[\d.]+) ?s")
_LAST_EXCEPTION = re.compile(r"Last exception: (?P<name>\w+)")
_GAVE_UP = re.compile(
    r"\bno (?:reply|answer|response|result)s? (?:after|for|within|in) \d+|timed? ?out|TimeoutError"
    r"|still waiting|hang(?:s|ing)?\b|stuck",
    re.IGNORECASE,
)
_EXPLAINED = re.compile(r" is paused\. |short on capacity|billing status")
_NETWORK = ("APIConnectionError", "ConnectError", "ConnectionError", "gaierror")


@dataclass
class Clock:
    """Collects times while a log is read.

    Attributes:
        gaps: (seconds, number and text of the line after the gap, of the line before it).
    """

    last: Stamp | None = None
    before: tuple[int, str] = (0, "")
    gaps: list[tuple[float, int, str, int, str]] = field(default_factory=list)
    beats: list[tuple[int, datetime | None, float, str]] = field(default_factory=list)
    gave_up: list[tuple[int, datetime | None, str]] = field(default_factory=list)
    explained: bool = False

    def see(self, number: int, text: str) -> None:
        """Take one line into account."""
        self.explained = self.explained or bool(_EXPLAINED.search(text))
        stamp = stamp_of(text, self.last)
        if stamp is not None:
            if self.last is not None and self.last.way == stamp.way:
                seconds = (stamp.time - self.last.time).total_seconds()
                if seconds >= 0:
                    self.gaps.append((seconds, number, text, *self.before))
            self.last, self.before = stamp, (number, text)
        now = self.last.time if self.last else None
        beat = _HEARTBEAT.search(text)
        if beat:
            exception = _LAST_EXCEPTION.search(text)
            name = exception["name"] if exception else ""
            self.beats.append((number, now, float(beat["seconds"]), name))
        elif _GAVE_UP.search(text):
            self.gave_up.append((number, now, text))

    def findings(self, name: str) -> Iterable[Finding]:
        """Causes that follow from the times; ``name`` is the log's, for the places."""
        yield from self._heartbeats(name)
        if not self.explained and not self.beats:
            yield from self._stood_still(name)

    def _heartbeats(self, name: str) -> Iterable[Finding]:
        if not self.beats:
            return
        number, when, seconds, exception = max(self.beats, key=lambda beat: beat[2])
        network = exception in _NETWORK
        stopped = when - timedelta(seconds=seconds) if when else None
        evidence = [f"line {number}: no heartbeat got through for {seconds:.0f} s"]
        if stopped is not None:
            evidence.append(f"so they stopped at about {stopped:%H:%M:%S}")
        if exception:
            evidence.append(f"the last try ended with {exception}")
        later = [
            (line, text)
            for line, time, text in self.gave_up
            if stopped is None or time is None or time >= stopped
        ]
        if later and not network:
            line, text = later[0]
            evidence.append(f"line {line}: {_short(text)}")
            yield Finding(
                "sdk-loop-blocked",
                "heartbeats stopped before the request was given up: a blocked SDK loop or a held"
                " GIL is the first suspect, not the service",
                where=f"{name}:{number}",
                evidence=tuple(evidence),
                fix="find what kept the thread from running (heavy computation in the main thread,"
                " a blocking call in a callback), move it to another process, and take out the"
                " script's own timeout: the SDK waits and repeats by itself",
                then="python scripts/task_dump.py run -- python train.py",
            )
            return
        suspect = "the network" if network else "a blocked SDK thread or the network"
        yield Finding(
            "heartbeat-failed",
            f"no heartbeat got through for {seconds:.0f} s: {suspect}",
            where=f"{name}:{number}",
            evidence=tuple(evidence),
            fix="a connection error: look at the network and TINKER_BASE_URL. A timeout: look for"
            " code that keeps the SDK's thread from running. If it persists the session is ended;"
            " resume from the newest checkpoint",
            then="python scripts/doctor.py"
            if network
            else "python scripts/task_dump.py run -- python train.py",
        )

    def _stood_still(self, name: str) -> Iterable[Finding]:
        if len(self.gaps) < 5:
            return
        usual = statistics.median(gap[0] for gap in self.gaps)
        ordered = sorted(self.gaps, reverse=True)
        seconds, number, text, before, text_before = ordered[0]
        long_work = _LONG_WORK.search(text_before) or _LONG_WORK.search(text)
        least = LONG_WORK_SECONDS if long_work else GAP_SECONDS
        if seconds < max(least, GAP_FACTOR * usual, RECURRING_FACTOR * ordered[2][0]):
            return
        yield Finding(
            "log-stands-still",
            f"nothing was logged for {seconds / 60:.0f} minutes, against {usual:.0f} s usually",
            where=f"{name}:{before}",
            evidence=(
                f"line {before}: {_short(text_before)}",
                f"line {number}: {_short(text)}",
            ),
            fix="look at what the script did after the first of these lines; if it does it again,"
            " look at both threads while it stands",
            then="python scripts/task_dump.py attach PID",
            severity="warning",
        )


def _short(text: str, limit: int = 160) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 3]}..."
