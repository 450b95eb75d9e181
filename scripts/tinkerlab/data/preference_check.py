"""What the check of preference pairs finds: the rules of pairs, rendered as training renders them."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tinkerlab.data.datums import render
from tinkerlab.data.messages import RowError
from tinkerlab.data.preferences import (
    PreferencePair,
    contradictions,
    repeated,
    shared_pairs,
)
from tinkerlab.data.report import Finding
from tinkerlab.data.tokenizers import ModelLimits
from tinkerlab.data.words import counted, of_rows
from tinkerlab.errors import InputError

TRAINED = "last_assistant_message"  # tinker-cookbook's default for a pair's two sides

# What is said of each kind of refused pair, and how to mend it.
_REFUSED = {
    "render": ("can't be rendered", "mend these rows, or leave them out with skip_bad_rows=true"),
    "identical_pairs": (
        "have sides that are the same once rendered: they hold no preference",
        "remove them, or leave them out with skip_bad_rows=true",
    ),
    "too_long": (
        "are too long: the ends of their replies would be cut, and judged by what is left",
        "raise max_seq_len, or leave them out with skip_bad_rows=true",
    ),
    "vocabulary": ("hold token ids that the model has no row for", "use the model's own tokenizer"),
}


@dataclass(frozen=True)
class Sides:
    """Lengths of a rendered pair, in tokens: the whole of both sides, and their trained replies."""

    tokens: int
    chosen: int
    rejected: int


@dataclass
class PairReport:
    """What stands against training on the pairs.

    Attributes:
        train, val: pairs that can be used.
        problems: training must not start while there is one.
        warnings: training may start.
        sides: lengths of the training pairs.
        preview: the first pair as text, its trained tokens in double brackets.
    """

    train: list[PreferencePair]
    val: list[PreferencePair]
    problems: list[Finding] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)
    sides: list[Sides] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    preview: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """One line."""
        if self.problems:
            return f"NOT READY: {self.problems[0].message}"
        pairs = counted(len(self.train), "pair")
        return f"READY: {pairs} to train on, {len(self.val):,} to evaluate on"

    def statistics(self) -> dict[str, Any]:
        """Of the training pairs; empty without any."""
        if not self.sides:
            return {}
        chosen = [pair.chosen for pair in self.sides]
        rejected = [pair.rejected for pair in self.sides]
        longer = sum(pair.chosen > pair.rejected for pair in self.sides)
        return {
            "pairs": len(self.sides),
            "tokens": sum(pair.tokens for pair in self.sides),
            "chosen_tokens_median": statistics.median(chosen),
            "rejected_tokens_median": statistics.median(rejected),
            "chosen_longer": longer / len(self.sides),
        }

    def statistics_lines(self) -> list[str]:
        found = self.statistics()
        if not found:
            return []
        return [
            f"train: {counted(found['pairs'], 'pair')}, {counted(found['tokens'], 'token')}; reply"
            f" tokens, median: chosen {found['chosen_tokens_median']:g}, rejected"
            f" {found['rejected_tokens_median']:g}; the chosen one is the longer in"
            f" {found['chosen_longer']:.0%}"
        ]

    def lines(self) -> Iterator[str]:
        """Statistics, what was left out, a preview and warnings, as a trainer prints them."""
        yield from self.statistics_lines()
        yield from (f"left out: {row}" for row in self.dropped[:20])
        if len(self.dropped) > 20:
            yield f"left out: {len(self.dropped) - 20} more"
        yield from self.preview
        for warning in self.warnings:
            yield "warning: " + "\n".join(warning.lines())

    def refuse_problems(self) -> None:
        """Stop a run whose pairs have problems.

        Raises:
            InputError: the first problem with its examples and fix, and how many more.
        """
        if self.problems:
            more = len(self.problems) - 1
            rest = f"\n({more} more: run scripts/check_data.py)" if more else ""
            raise InputError("\n".join(self.problems[0].lines()) + rest)

    def to_json(self) -> dict[str, Any]:
        """Plain data for the run's folder."""
        return {
            "verdict": self.verdict,
            "problems": [asdict(finding) for finding in self.problems],
            "warnings": [asdict(finding) for finding in self.warnings],
            "statistics": self.statistics(),
            "dropped": self.dropped,
        }


def check_pairs(
    train: Sequence[PreferencePair],
    val: Sequence[PreferencePair],
    renderer: Any,
    tokenizer: Any,
    *,
    max_length: int,
    limits: ModelLimits | None = None,
    allow_contamination: bool = False,
    skip_bad_rows: bool = False,
) -> PairReport:
    """Judge pairs that were read without fault, as training would render them.

    Args:
        max_length: tokens of a side that are kept.
        skip_bad_rows: leave out what can't be used instead of finding a problem; ids over the
            vocabulary are always a problem.
    """
    limits = limits or ModelLimits()
    report = PairReport([], [])
    refused: dict[str, list[str]] = defaultdict(list)
    longest = min(max_length, limits.context_length or max_length)
    for pairs, kept in ((train, report.train), (val, report.val)):
        for pair in pairs:
            sides, why = _measure(pair, renderer, longest, limits.vocab_size)
            if sides is None:
                kind, reason = why
                refused[kind].append(f"{pair.place}: {reason}")
                continue
            kept.append(pair)
            if pairs is train:
                report.sides.append(sides)
    for kind, places in refused.items():
        if skip_bad_rows and kind != "vocabulary":
            report.dropped += places
        else:
            message, fix = _REFUSED[kind]
            report.problems.append(
                Finding(kind, f"{counted(len(places), 'pair')} {message}", fix, places)
            )
    if not report.train and not report.problems:
        report.problems.append(
            Finding("nothing_usable", "no training pair can be used", "mend the rows")
        )
    _compare(report, allow_contamination)
    if report.train:
        report.preview = _preview(report.train[0], renderer, tokenizer)
    return report


def _measure(
    pair: PreferencePair, renderer: Any, longest: int, vocab_size: int | None
) -> tuple[Sides | None, tuple[str, str]]:
    """The pair's lengths, or None with the kind of fault and its reason."""
    rendered = []
    for side in ("chosen", "rejected"):
        try:
            example = render(pair.conversation(side), renderer, TRAINED)
        except RowError as error:
            return None, ("render", f"{side}: {error}")
        trained = sum(weight > 0 for weight in example.weights)
        if not trained:
            return None, ("render", f"{side}: the renderer trains none of its tokens")
        if len(example.tokens) > longest:
            return None, ("too_long", f"{side} has {len(example.tokens)} tokens, over {longest}")
        if vocab_size is not None and max(example.tokens) >= vocab_size:
            reason = f"{side}: token id {max(example.tokens)}, the model has {vocab_size}"
            return None, ("vocabulary", reason)
        rendered.append((example.tokens, trained))
    (chosen, chosen_trained), (rejected, rejected_trained) = rendered
    if chosen == rejected:
        return None, ("identical_pairs", "chosen and rejected give the same tokens")
    return Sides(len(chosen) + len(rejected), chosen_trained, rejected_trained), ("", "")


def _compare(report: PairReport, allow_contamination: bool) -> None:
    """What the pairs say about each other."""
    shared = shared_pairs(report.train, report.val)
    if shared:
        leak = Finding(
            "contamination",
            f"{of_rows(len(shared), len(report.val), 'evaluation')} also stand in the training"
            " data: scoring them would measure memory",
            "remove them from one side, or set allow_contamination=true to go on knowingly",
            [f"{val.place} = {train.place}" for val, train in shared],
        )
        (report.warnings if allow_contamination else report.problems).append(leak)
    opposite = contradictions([*report.train, *report.val])
    if opposite:
        report.warnings.append(
            Finding(
                "contradicting_pairs",
                f"{counted(len(opposite), 'pair')} prefer what another pair rejects",
                "keep one of each two, unless the raters really disagreed",
                [f"{pair.place} against {other.place}" for pair, other in opposite],
            )
        )
    again = repeated(report.train)
    if again:
        report.warnings.append(
            Finding(
                "repeated_rows",
                f"{of_rows(again, len(report.train), 'training')} repeat an earlier one",
                "remove them, unless you mean to weight these pairs",
            )
        )


def _preview(pair: PreferencePair, renderer: Any, tokenizer: Any) -> list[str]:
    lines = []
    for side in ("chosen", "rejected"):
        example = render(pair.conversation(side), renderer, TRAINED)
        text, inside = "", False
        run: list[int] = []
        for token, weight in zip(example.tokens, example.weights, strict=True):
            if (weight > 0) != inside:
                text += tokenizer.decode(run) + ("[[" if weight > 0 else "]]")
                run, inside = [], weight > 0
            run.append(token)
        text += tokenizer.decode(run) + ("]]" if inside else "")
        lines.append(f"--- {pair.place} ({side}), trained tokens marked:\n{text}")
    return lines
