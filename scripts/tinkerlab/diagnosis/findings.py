"""What every diagnostic script says: a verdict first, then each cause with evidence and fix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from tinkerlab.errors import InputError

Severity = Literal["problem", "warning"]


@dataclass(frozen=True)
class Finding:
    """One cause, decided.

    Attributes:
        cause: a stable name in kebab-case, such as ``stale-sampler``: what tests, pages and
            agents refer to.
        what: one line that says what is wrong.
        where: file and line, step, tensor or setting.
        evidence: the values seen, one fact a line.
        fix: what to do about it.
        then: the command to run next, when there is one.
        severity: a ``problem`` makes the script exit with 1, a ``warning`` does not.
    """

    cause: str
    what: str
    where: str = ""
    evidence: tuple[str, ...] = ()
    fix: str = ""
    then: str = ""
    severity: Severity = "problem"

    def as_dict(self) -> dict[str, Any]:
        return {
            "cause": self.cause,
            "severity": self.severity,
            "what": self.what,
            "where": self.where,
            "evidence": list(self.evidence),
            "fix": self.fix,
            "then": self.then,
        }

    def lines(self) -> Iterator[str]:
        place = f"{self.where}: " if self.where else ""
        yield f"{self.severity} [{self.cause}] {place}{self.what}"
        yield from (f"    seen: {fact}" for fact in self.evidence)
        if self.fix:
            yield f"    fix: {self.fix}"
        if self.then:
            yield f"    next: {self.then}"


@dataclass
class Diagnosis:
    """What one diagnostic script found.

    Attributes:
        healthy: the verdict when there is no finding, one sentence.
        checked: how many things of each kind were looked at, such as ``{"steps": 400}``. All
            zero means that nothing was checked, which is never reported as healthy.
        findings: causes, the most important first.
        notes: facts that accuse nobody: versions, intended differences, what was left out.
        details: further values for ``--json``.
    """

    healthy: str
    checked: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def problems(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "problem"]

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def verdict(self) -> str:
        """One line: the first problem, or the first warning, or that all is well."""
        if not self.findings:
            return f"OK: {self.healthy}"
        problems = self.problems
        word, listed = ("PROBLEM", problems) if problems else ("WARNING", self.findings)
        more = f" (and {len(self.findings) - 1} more)" if len(self.findings) > 1 else ""
        return f"{word}: {listed[0].what}{more}"

    def require_checked(self) -> None:
        """Refuse to be a verdict about nothing.

        Raises:
            InputError: nothing was looked at.
        """
        if not any(self.checked.values()):
            kinds = ", ".join(self.checked) or "anything"
            raise InputError(f"nothing was checked: the input holds no {kinds}")

    def as_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "verdict": self.verdict,
            "checked": self.checked,
            "findings": [finding.as_dict() for finding in self.findings],
            "notes": self.notes,
            **self.details,
        }

    def lines(self) -> Iterator[str]:
        """The report for people: verdict, what was looked at, findings, notes."""
        yield self.verdict
        yield "checked: " + ", ".join(
            f"{count:,} {kind.replace('_', ' ')}" for kind, count in self.checked.items()
        )
        for finding in sorted(self.findings, key=lambda finding: finding.severity != "problem"):
            yield ""
            yield from finding.lines()
        if self.notes:
            yield ""
            yield from (f"note: {note}" for note in self.notes)
