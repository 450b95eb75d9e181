"""Rows of a Hub dataset, as a file: streamed, renamed, and only those that a trainer can read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinkerlab.data import formats
from tinkerlab.data.messages import RowError
from tinkerlab.errors import InputError
from tinkerlab.folders import make_folder
from tinkerlab.runs import jsonl, provenance
from tinkerlab.tasks import hub
from tinkerlab.tasks.rows import task_of

EVERY = 2000  # rows read from one progress line to the next
TRIED = 2000  # unusable rows at the start that are enough: the columns are wrong
TASKS = "tasks"
PAIRS = "preference pairs"


@dataclass(frozen=True)
class Fetched:
    """What was taken.

    Attributes:
        format: how the rows can be read: a supervised format, tasks, or preference pairs.
        left_out: reason -> count of rows that no trainer could read.
    """

    dataset: str
    path: Path
    rows: int
    format: str
    left_out: dict[str, int]

    def document(self) -> dict[str, Any]:
        return {
            "dataset": self.dataset,
            "path": str(self.path),
            "rows": self.rows,
            "format": self.format,
            "left_out": self.left_out,
            "sha256": provenance.file_sha256(self.path),
        }


def fetch(
    dataset: str,
    output: Path,
    limit: int,
    columns: Mapping[str, str],
    say: Callable[[str], None],
    source: Callable[[str], Iterator[dict[str, Any]]] | None = None,
) -> Fetched:
    """Write the first ``limit`` usable rows of ``dataset`` to ``output``.

    Args:
        columns: new name -> name in the dataset.
        source: gives the raw rows of a dataset; the Hub unless a test gives another.

    Raises:
        InputError: no such dataset or column, or no row that can be used among the first
            ``TRIED``.
    """
    source = source or hub.rows
    left_out: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    lines = []
    for number, row in enumerate(source(dataset), start=1):
        row = _renamed(row, columns, dataset)
        try:
            kinds[kind_of(row)] += 1
        except RowError as error:
            left_out[str(error)[:160]] += 1
        else:
            lines.append(json.dumps(row, ensure_ascii=False, default=str))
        if number % EVERY == 0:
            say(f"read {number} rows")
        if len(lines) >= limit or (not lines and number >= TRIED):
            break
    if not lines:
        many = f" among its first {left_out.total()}" if left_out else ""
        reason = next(iter(left_out), "it is empty")
        raise InputError(
            f"{dataset}: no row that a trainer can read{many} ({reason}); rename columns with"
            " --columns"
        )
    make_folder(output.parent)
    content = "".join(line + "\n" for line in lines).encode("utf-8", "backslashreplace")
    jsonl.write_atomically(output, content)
    return Fetched(dataset, output, len(lines), ", ".join(kinds), dict(left_out))


def kind_of(row: dict[str, Any]) -> str:
    """What a trainer would read this row as.

    Raises:
        RowError: nothing that it knows.
    """
    if row.get("chosen") is not None and row.get("rejected") is not None:
        return PAIRS
    try:
        found = formats.detect(row)
        found.convert(row)
        return found.name
    except RowError as error:
        try:
            task_of(row, "")
        except RowError:
            raise error from None
        return TASKS


def _renamed(row: dict[str, Any], columns: Mapping[str, str], dataset: str) -> dict[str, Any]:
    for new, old in columns.items():
        if old not in row:
            raise InputError(f"{dataset} has no column {old!r}; it has {', '.join(row)}")
        row[new] = row.pop(old)
    return row
