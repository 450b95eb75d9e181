"""JSON Lines files that survive a kill: appended a whole line at a time, read with a torn tail.

A process that dies while it writes leaves at most one unfinished last line. Readers skip it,
and the next writer cuts it off before it appends, so that it never ends up in the middle.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tinkerlab.errors import InputError

Row = dict[str, Any]


def read(path: Path) -> list[Row]:
    """All rows of ``path``; none when there is no such file. A torn last line is left out.

    Raises:
        InputError: a line other than the last is not a JSON object.
    """
    if not path.exists():
        return []
    rows: list[Row] = []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("not an object")
        except ValueError as error:
            if all(not rest.strip() for rest in lines[number:]):
                break  # torn by a kill: that line was never finished
            raise InputError(
                f"{path}:{number}: not a JSON object ({error}); the file was edited or damaged,"
                " remove that line"
            ) from None
        rows.append(row)
    return rows


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Add one row and return only once it is on the disk.

    NaN and infinities are written as Python's ``NaN`` and ``Infinity``, as tinker-cookbook
    does: the row of a diverged step is the evidence that a diagnosis needs.
    """
    line = json.dumps(row, ensure_ascii=False).encode() + b"\n"
    with path.open("ab") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def rewrite(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Replace the file's contents in one go: a kill leaves the old file or the new one."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write_atomically(path, text.encode())


def write_atomically(path: Path, content: bytes) -> None:
    """Write ``content`` to a temporary file beside ``path`` and rename it over ``path``."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def repair_tail(path: Path) -> None:
    """Cut an unfinished last line off, or finish one that only lacks its newline."""
    if not path.exists():
        return
    content = path.read_bytes()
    if not content or content.endswith(b"\n"):
        return
    start = content.rfind(b"\n") + 1
    try:
        complete = isinstance(json.loads(content[start:]), dict)
    except ValueError:
        complete = False
    write_atomically(path, content + b"\n" if complete else content[:start])
