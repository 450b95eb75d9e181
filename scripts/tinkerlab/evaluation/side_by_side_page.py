"""The comparison as text for a terminal and as one self-contained HTML page."""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tinkerlab.evaluation.side_by_side import BASE, Comparison

TEMPLATE = Path(__file__).with_name("side_by_side.html.j2")
_NAMES = {
    "mean_tokens": ("mean tokens", "{:.0f}"),
    "cut": ("cut off", "{:.0%}"),
    "empty": ("empty", "{:.0%}"),
    "looping": ("repeat themselves", "{:.0%}"),
    "same_as_base": ("same as base", "{:.0%}"),
    "matches_reference": ("equal the reference", "{:.0%}"),
}


def terminal_lines(comparison: Comparison, width: int) -> Iterator[str]:
    """Each prompt with the replies below each other, then the facts as a table."""
    label = max(map(len, [*comparison.models, "reference"]))
    for number, task in enumerate(comparison.tasks, start=1):
        yield f"{number}. {_short(task.question, 3 * width)}"
        if task.answer is not None:
            yield from _entry("reference", str(task.answer), label, width)
        for name in comparison.models:
            for reply in comparison.replies[name][number - 1]:
                cut = " [cut]" if reply.truncated else ""
                yield from _entry(name, (reply.text or "(empty)") + cut, label, width)
        yield ""
    yield from facts_table(comparison)
    for warning in comparison.warnings():
        yield f"warning: {warning}"


def facts_table(comparison: Comparison) -> Iterator[str]:
    """One line per fact, one column per model."""
    rows = fact_rows(comparison)
    names = list(comparison.models)
    first = max(len(title) for title, _ in rows)
    widths = [max(len(name), 6) for name in names]
    yield " " * first + "".join(f"  {n:>{w}}" for n, w in zip(names, widths, strict=True))
    for title, cells in rows:
        yield f"{title:<{first}}" + "".join(
            f"  {cell:>{w}}" for cell, w in zip(cells, widths, strict=True)
        )


def fact_rows(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """(title, one cell per model) of every fact that some model has."""
    facts = [comparison.facts(name) for name in comparison.models]
    rows = []
    for key, (title, form) in _NAMES.items():
        if any(found[key] is not None for found in facts):
            rows.append((title, ["-" if f[key] is None else form.format(f[key]) for f in facts]))
    return rows


def html(comparison: Comparison) -> str:
    """The page; whatever models and users wrote is escaped."""
    from tinkerlab import pages

    rows = []
    for index, task in enumerate(comparison.tasks):
        base = comparison.replies.get(BASE)
        cells = []
        for name in comparison.models:
            shown = []
            for place, reply in enumerate(comparison.replies[name][index]):
                against = base[index][place].text if base and name != BASE else None
                shown.append({"pieces": changed_words(against, reply.text), "reply": reply})
            cells.append({"model": name, "replies": shown})
        rows.append({"task": task, "cells": cells})
    return pages.fill(
        TEMPLATE,
        {
            "comparison": comparison,
            "rows": rows,
            "facts": fact_rows(comparison),
            "warnings": comparison.warnings(),
        },
    )


def changed_words(before: str | None, after: str) -> list[tuple[bool, str]]:
    """``after`` in pieces, each with whether it is not in ``before``, word by word."""
    if before is None or before == after:
        return [(False, after)]
    old, new = (re.findall(r"\S+|\s+", text) for text in (before, after))
    pieces: list[tuple[bool, str]] = []
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for kind, _, _, start, end in matcher.get_opcodes():
        if start < end:
            pieces.append((kind != "equal", "".join(new[start:end])))
    return pieces


def _entry(name: str, text: str, label: int, width: int) -> Iterator[str]:
    indent = " " * (label + 5)
    lines: Sequence[str] = [
        line
        for part in text.split("\n")
        for line in textwrap.wrap(part, max(20, width - len(indent))) or [""]
    ]
    for number, line in enumerate(lines):
        yield f"   {name:<{label}}  {line}" if number == 0 else f"{indent}{line}"


def _short(text: str, most: int) -> str:
    flat: Any = " ".join(text.split())
    return flat if len(flat) <= most else f"{flat[: most - 3]}..."
