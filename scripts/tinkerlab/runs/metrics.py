"""``metrics.jsonl``: one row for each optimizer step, with tinker-cookbook's key names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinkerlab.runs import jsonl

FILE_NAME = "metrics.jsonl"


def read(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run, oldest first; a torn last line (a live run) is left out."""
    return jsonl.read(folder / FILE_NAME)


def append(folder: Path, step: int, metrics: Mapping[str, Any]) -> None:
    """Add the row of ``step``."""
    jsonl.append(folder / FILE_NAME, {"step": step, **metrics})


def keep_before(folder: Path, step: int) -> int:
    """Drop the rows of ``step`` and later, atomically; the number of rows dropped.

    A resumed run does those steps again and writes their rows again.
    """
    path = folder / FILE_NAME
    jsonl.repair_tail(path)
    rows = jsonl.read(path)
    kept = [row for row in rows if row.get("step", -1) < step]
    if len(kept) != len(rows):
        jsonl.rewrite(path, kept)
    return len(rows) - len(kept)
