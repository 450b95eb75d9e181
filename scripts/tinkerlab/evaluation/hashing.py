"""Fingerprints that tie a result to the data and the code that made it.

An agent that edits the evaluation set or the scorer between two runs gets a number that
cannot be compared; the hashes in summary.json make that visible.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# The room that decides the scores of a public suite, by the first word of the suite's name.
_SUITE_ROOMS = {"cookbook": "benchmarks", "inspect": "inspect"}
_MAKE_NO_SCORE = ("selection", "side_by_side", "suite_results", *_SUITE_ROOMS.values())


def value_sha256(value: Any) -> str:
    """SHA-256 of a JSON-able value in its canonical form (sorted keys, no spaces)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def items_sha256(records: Iterable[dict[str, Any]], fields: tuple[str, ...]) -> str:
    """One hash over the fields that say WHICH items were scored, in their order."""
    return value_sha256([[record.get(field) for field in fields] for record in records])


def code_sha256(suite: str | None = None) -> str:
    """SHA-256 over the sources that decide a score, by their path and content.

    These are this package; the data and tasks packages, whose splits and rendering pick the
    items and their scored tokens; and the graders. What only reads scores or shows replies is
    left out, and so is what runs public suites, but for the scores of that suite. Line endings
    are normalised: a checkout on Windows is the same code.

    Args:
        suite: whose scores they are, such as ``inspect:gsm8k``; None for our own evaluations.
    """
    own = _SUITE_ROOMS.get((suite or "").partition(":")[0])
    library = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for folder in ("data", "evaluation", "grading", "tasks"):
        for path in sorted((library / folder).rglob("*.py")):
            room = path.relative_to(library).parts[1]
            if room.startswith(_MAKE_NO_SCORE) and room != own:
                continue
            digest.update(f"{path.relative_to(library).as_posix()}\0".encode())
            digest.update(path.read_bytes().replace(b"\r\n", b"\n"))
            digest.update(b"\0")
    return digest.hexdigest()
