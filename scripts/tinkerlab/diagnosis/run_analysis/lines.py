"""JSON Lines read as a stream, with a place to go on from: live files grow while we read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tinkerlab.errors import InputError

SHOWN_BAD = 5


class LineReader:
    """Reads the objects of a JSONL file once each, over any number of calls.

    A last line without its newline that is no JSON yet is left for the next call: a live run
    writes it at this moment, or was killed while it did.

    Attributes:
        bad: numbers of the lines (from 1) that are no JSON objects; the first few only.
        bad_count: how many there are.
        torn: whether the file ends in half a line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self.bad: list[int] = []
        self.bad_count = 0
        self.torn = False
        self._offset = 0
        self._number = 0
        self._inode = 0

    def new_rows(self) -> Iterator[dict[str, Any]]:
        """The objects that were added since the last call.

        Raises:
            InputError: the file can't be read, or its first line is no JSON object.
        """
        try:
            file = self.path.open("rb")
        except OSError as error:
            raise InputError(f"{self.path}: {error.strerror}") from None
        loads = json.loads
        with file:
            self._inode = os.fstat(file.fileno()).st_ino
            file.seek(self._offset)
            self.torn = False
            for line in file:
                try:
                    row = loads(line)
                except (ValueError, RecursionError):
                    row = None
                    if not line.endswith(b"\n"):
                        self.torn = True
                        break
                self._offset += len(line)
                self._number += 1
                if isinstance(row, dict):
                    self.count += 1
                    yield row
                elif line.strip():
                    self._refuse()

    def was_cut(self) -> bool:
        """Whether the file is another one now, or shorter than what was read of it.

        A trainer that resumes renames a shorter file into place, which may have outgrown the old
        one by the time of the next look.
        """
        now = self.path.stat()
        return now.st_size < self._offset or (self._inode != 0 and now.st_ino != self._inode)

    def _refuse(self) -> None:
        if self.count == 0:
            raise InputError(
                f"{self.path}:{self._number}: not a JSON object; a file of JSON lines is expected,"
                " one object a line (is it the right file?)"
            )
        self.bad_count += 1
        if len(self.bad) < SHOWN_BAD:
            self.bad.append(self._number)


def read_json(path: Path) -> dict[str, Any]:
    """One JSON object.

    Raises:
        InputError: unreadable, or something else.
    """
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path}: not JSON; repair or remove it") from None
    if not isinstance(document, dict):
        raise InputError(f"{path}: not a JSON object; repair or remove it")
    return document
