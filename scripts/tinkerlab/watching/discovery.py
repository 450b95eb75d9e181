"""The run folders under the paths that a user names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tinkerlab.diagnosis.run_analysis.run import METRICS
from tinkerlab.errors import InputError

SWEEP_RECORD = "sweep.json"
"""Marks the folder of a sweep, which holds runs and is none."""

OUTPUT_LOG = "output.log"
"""What a sweep's trainer prints, in its run's folder."""

DEPTH = 4  # runs/<sweep>/<run> is 2; more would walk through whatever lies beside the runs


@dataclass(frozen=True)
class Place:
    """A run's folder, or a metrics file alone, and what to call it."""

    path: Path
    name: str


def is_run(files: Sequence[str]) -> bool:
    """Whether a folder with these files is a run's, also before its first step."""
    if METRICS in files:
        return True
    if SWEEP_RECORD in files:
        return False
    if ".lock" in files or "attempts.jsonl" in files or OUTPUT_LOG in files:
        return True  # this project's trainers
    return "config.json" in files and "logs.log" in files  # C/utils/ml_log.py setup_logging


def find(paths: Sequence[Path]) -> list[Place]:
    """Every run at or under ``paths``, by name, each once.

    Raises:
        InputError: a path that does not exist.
    """
    found: dict[Path, Place] = {}
    for path in paths:
        if not path.exists():
            raise InputError(
                f"{path}: no such folder or file; name a run's folder (its log_path), or the"
                " folder that holds them, such as runs/"
            )
        for place in _under(path):
            found.setdefault(place.path.resolve(), place)
    places = list(found.values())
    names = [place.name for place in places]
    return [
        Place(place.path, str(place.path)) if names.count(place.name) > 1 else place
        for place in places
    ]


def _under(path: Path) -> Iterator[Place]:
    if path.is_file():
        yield Place(path, path.parent.name or path.name)
        return
    for folder, subfolders, files in os.walk(path):
        here = Path(folder)
        below = here.relative_to(path)
        if is_run(files):
            yield Place(here, str(below) if below.parts else here.resolve().name)
            subfolders.clear()
        elif len(below.parts) >= DEPTH:
            subfolders.clear()
        else:
            subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
