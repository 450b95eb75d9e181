"""What the data check found: the object that trainers act on and scripts print."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from tinkerlab.data.preview import Preview
from tinkerlab.data.reading import Row
from tinkerlab.data.statistics import SplitStatistics
from tinkerlab.data.words import counted
from tinkerlab.errors import InputError

EXAMPLES = 5  # places or texts that a finding lists


@dataclass(frozen=True)
class Finding:
    """Something about the data that the user should know.

    Attributes:
        kind: stable name for machines, for example ``contamination``.
        message: what and how much, one sentence.
        fix: what to do about it.
        examples: places, or lines that show it; all of them, printing shortens.
    """

    kind: str
    message: str
    fix: str
    examples: list[str] = field(default_factory=list)

    def lines(self, limit: int = EXAMPLES) -> Iterator[str]:
        """The finding as printed: message, examples, fix."""
        yield self.message
        for example in self.examples[:limit]:
            yield f"    {example}"
        if len(self.examples) > limit:
            yield f"    ... and {len(self.examples) - limit} more"
        yield f"  fix: {self.fix}"


@dataclass
class DataReport:
    """The outcome of ``check_dataset``.

    Attributes:
        train, val: rows that can be used; refused ones are left out.
        problems: training must not start while there is one.
        warnings: training may start.
        statistics: of ``train`` and ``val``, under these names.
        preview: three decoded training examples.
        renderer, renderer_reason: which one rendered, and why it was chosen.
        settings: what the check depended on (max_length, train_on_what, reduction, ...).
        dropped: rows left out with their reasons, when bad rows are skipped.
    """

    train: list[Row]
    val: list[Row]
    problems: list[Finding]
    warnings: list[Finding]
    statistics: dict[str, SplitStatistics]
    preview: list[Preview]
    renderer: str
    renderer_reason: str
    settings: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True when nothing stands against training."""
        return not self.problems

    @property
    def verdict(self) -> str:
        """One line."""
        if self.problems:
            others = len(self.problems) - 1
            more = f" (and {counted(others, 'more problem')})" if others else ""
            return f"NOT READY: {self.problems[0].message}{more}"
        warned = f", {counted(len(self.warnings), 'warning')}" if self.warnings else ""
        rows = counted(len(self.train), "row")
        return f"READY: {rows} to train on, {len(self.val):,} to evaluate on{warned}"

    def refuse_problems(self) -> None:
        """Stop a run whose data have problems.

        Raises:
            InputError: the first problem with its examples and fix, and how many more.
        """
        if self.problems:
            more = len(self.problems) - 1
            rest = f"\n({more} more: run scripts/check_data.py)" if more else ""
            raise InputError("\n".join(self.problems[0].lines()) + rest)

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return {
            "ok": self.ok,
            "verdict": self.verdict,
            "problems": [asdict(finding) for finding in self.problems],
            "warnings": [asdict(finding) for finding in self.warnings],
            "notes": self.notes,
            "statistics": {name: stats.to_json() for name, stats in self.statistics.items()},
            "renderer": {"name": self.renderer, "reason": self.renderer_reason},
            "settings": self.settings,
            "dropped": self.dropped,
            "preview": [preview.to_json() for preview in self.preview],
        }


def statistics_lines(report: DataReport) -> list[str]:
    """A line or two for each side."""
    lines = []
    for name, stats in report.statistics.items():
        if not stats.rows or stats.length is None or stats.trained is None:
            continue
        share = 100 * stats.trained_tokens / max(stats.tokens, 1)
        lines.append(
            f"{name}: {counted(stats.rows, 'row')}, {counted(stats.tokens, 'token')}, "
            f"{stats.trained_tokens:,} trained ({share:.0f} %)"
        )
        length, trained = stats.length, stats.trained
        lines.append(
            f"  tokens a row: median {length.p50}, p90 {length.p90}, p99 {length.p99}, "
            f"max {length.max}; trained a row: median {trained.p50}, p90 {trained.p90}, "
            f"max {trained.max}"
        )
        if stats.truncated_rows:
            lines.append(
                f"  cut at {report.settings['max_length']}: {counted(stats.truncated_rows, 'row')}"
                f", {counted(stats.truncated_tokens, 'token')} lost, "
                f"{stats.trained_tokens_lost:,} of them trained"
            )
    return lines
