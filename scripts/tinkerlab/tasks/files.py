"""Tasks from a file of JSON lines."""

from __future__ import annotations

import json
from pathlib import Path

from tinkerlab.data.messages import RowError, kind
from tinkerlab.errors import InputError
from tinkerlab.tasks.rows import task_of
from tinkerlab.tasks.types import Task

LISTED = 5


def read(path: Path) -> list[Task]:
    """Every task of a file, in order.

    Raises:
        InputError: no such file, an empty one, or lines that are no tasks: names the first.
    """
    try:
        lines = path.expanduser().read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"data file {path}: {error.strerror}") from None
    tasks, bad = [], []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            tasks.append(_task(line, f"{path.name} line {number}"))
        except RowError as error:
            bad.append(f"line {number}: {error}")
    if bad:
        more = f"; and {len(bad) - LISTED} more" if len(bad) > LISTED else ""
        raise InputError(
            f"data file {path}: {len(bad)} of {len(bad) + len(tasks)} lines can't be used:"
            f" {'; '.join(bad[:LISTED])}{more}"
        )
    if not tasks:
        raise InputError(f"data file {path}: is empty; give it one JSON object a line")
    return tasks


def _task(line: bytes, place: str) -> Task:
    try:
        row = json.loads(line.decode("utf-8-sig"), parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise RowError("not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise RowError(f"not JSON: {error.msg} (column {error.colno})") from None
    except (ValueError, RecursionError):
        raise RowError("not usable JSON: too many digits, or nested too deeply") from None
    if not isinstance(row, dict):
        raise RowError(f"must be a JSON object, not {kind(row)}")
    return task_of(row, place)


def _no_constant(name: str) -> None:
    raise RowError(f"not JSON: {name} has no meaning in JSON")
