"""The report, which is also the memory: written after every cell, read by the next start."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tinkerlab.cli import redact
from tinkerlab.diagnosis.run_analysis.run import lock_holder
from tinkerlab.errors import InputError
from tinkerlab.folders import make_folder
from tinkerlab.runs import jsonl, provenance
from tinkerlab.runs.folder import RunFolder
from tinkerlab.smoke.cells import Cell

KIND = "tinker model matrix"
UNFINISHED = "not run"


class Record:
    """The report at ``path``; cells of earlier commands stay in it.

    Raises:
        InputError: the file is something else, or damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: dict[str, dict[str, Any]] = _read(path)

    @property
    def folder(self) -> Path:
        """Where the cells' run folders are: beside the report, with its name."""
        return self._path.with_name(f"{self._path.stem}-cells")

    def passed(self, cell: Cell) -> bool:
        """Whether the cell passed before, on this service, with this model and these settings."""
        row = self.rows.get(cell.name)
        return bool(row and row["status"] == "passed" and row["settings"] == cell.identity())

    def new_attempt(self, cell: Cell) -> Path:
        """An empty folder for one more attempt; those before stay."""
        above = self.folder / cell.name
        taken = [int(path.name) for path in above.glob("*") if path.name.isdecimal()]
        attempt = above / str(max(taken, default=0) + 1)
        make_folder(attempt)
        return attempt

    def note(self, cell: Cell, row: Mapping[str, Any]) -> None:
        """Keep what became of a cell; ``write`` puts it on the disk."""
        self.rows[cell.name] = {
            "family": cell.family,
            "method": cell.method,
            "model": cell.model,
            **row,
            "settings": cell.identity(),
        }

    def write(self, cells: Sequence[Cell], allowed: int) -> dict[str, Any]:
        """Write the report about ``cells`` and return it."""
        found = summary(self.rows, cells, allowed)
        found["cells"] = self.rows
        text = redact(json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False))
        jsonl.write_atomically(self._path, f"{text}\n".encode("utf-8", "backslashreplace"))
        return json.loads(text)


def summary(
    rows: Mapping[str, Mapping[str, Any]], cells: Sequence[Cell], allowed: int
) -> dict[str, Any]:
    """The head of the report: how many of the cells that were asked for passed."""
    states = {cell.name: rows.get(cell.name, {}).get("status", UNFINISHED) for cell in cells}
    # An outcome under other settings, left from an earlier start, says nothing of this one.
    for cell in cells:
        if cell.name in rows and rows[cell.name]["settings"] != cell.identity():
            states[cell.name] = UNFINISHED
    counts = Counter(states.values())
    return {
        "kind": KIND,
        "ok": counts["failed"] <= allowed and not counts[UNFINISHED] + counts["interrupted"],
        "service": cells[0].settings.service if cells else None,
        "asked": list(states),
        "counts": dict(counts),
        "failed": [name for name, status in states.items() if status == "failed"],
        "allowed_failures": allowed,
        "versions": provenance.versions(),
    }


@contextlib.contextmanager
def only_one(path: Path) -> Iterator[Record]:
    """The report at ``path``, held for this process; nothing is written when it is refused.

    Raises:
        InputError: as ``Record``; or another process is at work on it, or no place to write.
    """
    folder = Record(path).folder
    holder = lock_holder(folder / ".lock")
    if holder is not None:
        raise InputError(
            f"--output {path}: process {holder} runs a matrix there; wait for it, or choose another"
        )
    make_folder(folder)
    with RunFolder(folder).locked():
        yield Record(path)


def _read(path: Path) -> dict[str, dict[str, Any]]:
    if path.is_dir():
        raise InputError(f"--output {path} is a folder; name a file, such as {path}/report.json")
    if path.suffix != ".json":
        raise InputError(f"--output {path}: end it in .json")
    if not path.exists():
        return {}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        kind, rows = document["kind"], document["cells"]
        whole = all({"status", "settings"} <= row.keys() for row in rows.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        kind, rows, whole = None, {}, False
    if kind != KIND or not whole:
        raise InputError(f"--output {path} is no report of this script; choose another")
    return rows
