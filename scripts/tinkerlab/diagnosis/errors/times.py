"""The time that a log line carries, in the ways in which logs write it.

Only times of one way of writing are compared with each other: two loggers of one program may
differ in time zone. A time of day without a year (``[10:01:30]``, ``01/09/26 10:01:30``, syslog,
absl) is taken as the same day as the line before, or the next after midnight; its date is not
read, because 01/09 is a day in January or in September.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

_DAY = timedelta(days=1)
_NO_DATE = datetime(2000, 1, 1)

_ISO = re.compile(r"(\d{4})[-/](\d\d)[-/](\d\d)[ T_](\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?")
_JSON_ISO = re.compile(
    r"\"(?:@?timestamp|ts|time|asctime|datetime|date|created(?:_at)?)\"\s*:\s*\"" + _ISO.pattern
)
_EPOCH = re.compile(
    r"(?:^\W{0,2}|\b(?:ts|time)=|\"(?:@?timestamp|ts|time|created(?:_at)?)\"\s*:\s*\"?)"
    r"(1\d{9})(\d{3})?(?:\.(\d{1,6})\d*)?(?![\d%])"
)
_CLOCK = re.compile(
    r"^\W{0,3}"
    r"(?:\d\d?/\d\d?/\d{2,4},? |[A-Z][a-z]{2} [ \d]?\d |[IWEF]\d{4} |[A-Z]+ \d\d-\d\d )?"
    r"([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:[.,](\d{1,6})\d*)?(?![\d<])"
)
# Where a JSON log has its time is up to it; elsewhere a time stands at the head of the line.
_HEAD = 80


@dataclass
class Stamp:
    """A time, and the way in which it was written."""

    way: str
    time: datetime


def stamp_of(text: str, last: Stamp | None = None) -> Stamp | None:
    """The time of a line, or None; ``last`` is the stamp before it, for times without a date."""
    try:
        if text[:1] == "{":
            found = _JSON_ISO.search(text)
            return _iso(found) if found else _epoch(_EPOCH.search(text))
        head = text[:_HEAD]
        if found := _ISO.search(head):
            return _iso(found)
        return _clock(_CLOCK.match(head), last) or _epoch(_EPOCH.search(head))
    except ValueError:  # a 31st of June
        return None


def _iso(found: re.Match[str]) -> Stamp:
    year, month, day, clock, fraction = found.groups()
    text = f"{year}-{month}-{day} {clock}.{(fraction or '0').ljust(6, '0')}"
    return Stamp("date", datetime.fromisoformat(text))


def _epoch(found: re.Match[str] | None) -> Stamp | None:
    if found is None:
        return None
    fraction = found[2] or found[3] or "0"
    seconds = int(found[1]) + int(fraction) / 10 ** len(fraction)
    return Stamp("epoch", datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None))


def _clock(found: re.Match[str] | None, last: Stamp | None) -> Stamp | None:
    if found is None:
        return None
    hour, minute, second, fraction = found.groups()
    day = _NO_DATE
    if last is not None and last.way == "clock":
        day = last.time.replace(hour=0, minute=0, second=0, microsecond=0)
    time = day + timedelta(
        hours=int(hour),
        minutes=int(minute),
        seconds=int(second),
        microseconds=int((fraction or "0").ljust(6, "0")),
    )
    if last is not None and last.way == "clock" and last.time - time > _DAY / 2:
        time += _DAY
    return Stamp("clock", time)
