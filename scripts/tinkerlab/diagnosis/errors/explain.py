"""Find the known errors in a text, the particular before the general, and say where they stand."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from tinkerlab.diagnosis.errors.log_text import EXCEPTION, Unit, clean, units
from tinkerlab.diagnosis.errors.patterns import Pattern, known_patterns
from tinkerlab.diagnosis.errors.stalls import Clock
from tinkerlab.diagnosis.findings import Diagnosis, Finding

# A word of each known error stands in the line, or the line is not looked at again: logs are
# long and errors are few.
_WORTH_A_LOOK = re.compile(
    r"error|exception|warn|traceback|fail|paused|time-?d? ?out|HTTP/|not|n't|must|require|invalid"
    r"|un(known|expected|supported|safe)|expired|exist|exceed|mismatch|empty|killed|heartbeat"
    r"|capacity|\bnan\b|\binf|status|\bno |deprecat|too |missing|refused|gated|poisoned|stuck|rank"
    r"|ttl|api|extraneous|consumed|bad|only|space|poll|stack|thinking|closed|context|credential"
    r"|hf_hub|scalar|loss_fn_config|wait_for|retrying|backing off|destroyed|different|interrupt"
    r"|cannot|oom|input_ids|verif|expected",
    re.IGNORECASE,
)
# What a line at INFO says may be a prompt, a reply of the model or a setting. It is looked at
# only where it carries an exception's name, a status, or a metric that is no number.
_NO_ALARM = re.compile(
    r"\b(INFO|DEBUG)\b|^I\d{4} |\"(level|levelname|severity)\": ?\"(info|debug)\""
)
_YET_SPEAKS = re.compile(
    r"\b[A-Za-z]\w*(Error|Exception|Timeout|Interrupt)\b(?!\s*=)|Error code: \d|HTTP/[\d.]+ \d"
    r"|is paused\. Reason|Session heartbeat|[\"=: ](nan|NaN|-?inf|-?Infinity)\b|Traceback"
    r"|short on capacity|no (reply|answer|response) (after|for|within|in) \d"
)
# "0 errors", "error_rate=0.0", "errors: 0": a log that is well speaks of errors too.
_NO_ERROR = re.compile(
    r"\b(no|0|zero|without) (errors?|failures?|warnings?)\b"
    r"|\b(num_|n_)?(errors?|failures?|warnings?)(_\w+)?\W{1,3}0(\.0+)?\b",
    re.IGNORECASE,
)
_HTTP = re.compile(r"HTTP/[\d.]+ (?P<status>\d{3})\b")
_HTTP_WAITING = ("2", "3", "408")  # 408 is how a long poll says "not yet"
# The paths of the Tinker API. A hub is asked for files that a model may or may not have, and
# answers 404 for those: every healthy log has such lines.
_HTTP_TINKER = re.compile(r"/api/v1/")
# The SDK repeats these by itself (``tinker/_base_client.py``, ``_should_retry``): an error only
# if an exception follows.
_HTTP_REPEATED = re.compile(r"409|429|5\d\d")

EVIDENCE_LENGTH = 300


@dataclass
class _Seen:
    """Where one known error was found."""

    pattern: Pattern
    lines: list[int] = field(default_factory=list)
    first: str = ""
    frame: str = ""
    repeated: bool = True


def explain(lines: Iterable[str], name: str = "text") -> Diagnosis:
    """Diagnose a log, a traceback or a single message.

    Args:
        lines: streamed; nothing of a log is kept but what is reported.
        name: how places in it are called, such as the file's name.
    """
    seen: dict[str, _Seen] = {}
    unknown: list[Unit] = []
    clock = Clock()
    count = 0

    def timed() -> Iterable[str]:
        nonlocal count
        for count, raw in enumerate(lines, start=1):
            text = clean(raw)
            clock.see(count, text)
            yield text

    for unit in units(timed()):
        found = _patterns_in(unit)
        for pattern, text in found:
            entry = seen.setdefault(pattern.cause, _Seen(pattern))
            entry.lines.append(unit.line)
            entry.first = entry.first or text
            entry.frame = entry.frame or unit.frame()
            entry.repeated = entry.repeated and _will_be_repeated(text)
        if not found and _is_error(unit) and len(unknown) < 100:
            unknown.append(unit)

    from_times = list(clock.findings(name))
    findings = from_times + _known(seen, name, {finding.cause for finding in from_times})
    findings += _unknown(unknown, name)
    return Diagnosis(
        healthy="no known error in it",
        checked={"lines": count},
        findings=sorted(findings, key=lambda finding: finding.severity != "problem"),
        details={"patterns": len(known_patterns())},
    )


def _patterns_in(unit: Unit) -> list[tuple[Pattern, str]]:
    """Particular patterns in the unit; generic ones only where there is none."""
    particular: dict[str, tuple[Pattern, str]] = {}
    generic: dict[str, tuple[Pattern, str]] = {}
    for text in unit.messages():
        if not _WORTH_A_LOOK.search(text) or _accuses_nobody(text):
            continue
        for pattern in known_patterns():
            if pattern.generic and particular:
                break
            if pattern.expression.search(text):
                bucket = generic if pattern.generic else particular
                bucket.setdefault(pattern.cause, (pattern, text))
                if not pattern.generic and not unit.traceback:
                    return [(pattern, text)]
    if particular:
        return list(particular.values())
    return list(generic.values())[:1]


def _accuses_nobody(text: str) -> bool:
    if _NO_ERROR.search(text) or (_NO_ALARM.search(text[:200]) and not _YET_SPEAKS.search(text)):
        return True
    http = _HTTP.search(text)
    if http is None:
        return False
    return http["status"].startswith(_HTTP_WAITING) or (
        "://" in text and not _HTTP_TINKER.search(text)
    )


def _will_be_repeated(text: str) -> bool:
    """Whether the line is the log of a single request whose status the SDK answers itself."""
    http = _HTTP.search(text)
    return bool(http and _HTTP_REPEATED.fullmatch(http["status"]))


def _is_error(unit: Unit) -> bool:
    if unit.traceback:
        return True
    return bool(EXCEPTION.match(unit.message)) and not _NO_ERROR.search(unit.message)


def _known(seen: dict[str, _Seen], name: str, told: set[str]) -> list[Finding]:
    """Findings of the patterns, those that ended the log first."""
    findings = []
    for entry in sorted(seen.values(), key=lambda entry: (entry.pattern.generic, -entry.lines[-1])):
        pattern = entry.pattern
        if pattern.cause in told:
            continue
        if pattern.cause == "heartbeat-failed" and "sdk-loop-blocked" in told:
            continue
        evidence = [_shorten(entry.first)]
        if len(entry.lines) > 1:
            evidence.append(f"{len(entry.lines)} times, last at line {entry.lines[-1]}")
        if entry.frame:
            evidence.append(f"in the script's own code: {entry.frame}")
        findings.append(
            Finding(
                pattern.cause,
                pattern.says,
                where=f"{name}:{entry.lines[0]}",
                evidence=tuple(evidence),
                fix=pattern.fix,
                then=pattern.then,
                severity="warning" if entry.repeated else pattern.severity,
            )
        )
    return findings


def _unknown(found: list[Unit], name: str) -> list[Finding]:
    """The last error that no pattern knows, as a warning: it may still be the cause."""
    if not found:
        return []
    unit = found[-1]
    evidence = [_shorten(unit.message)]
    if frame := unit.frame():
        evidence.append(f"in the script's own code: {frame}")
    if len(found) > 1:
        evidence.append(f"{len(found)} such errors, first at line {found[0].line}")
    return [
        Finding(
            "unknown-error",
            "an error that is not in the table of known ones",
            where=f"{name}:{unit.line}",
            evidence=tuple(evidence),
            fix="read the message and the frame; run the same command against the rehearsal to see"
            " whether script or service is at fault",
            then="python scripts/rehearse.py run -- COMMAND",
            severity="warning",
        )
    ]


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= EVIDENCE_LENGTH else f"{line[: EVIDENCE_LENGTH - 3]}..."
