"""A run's folder: where each file is, and the lock that keeps a second trainer out.

config.json        the resolved config, versions and commit; written before the first step
attempts.jsonl     one line for each start: training run id, first step, resumed from
metrics.jsonl      one row for each optimizer step (tinkerlab.runs.metrics)
checkpoints.jsonl  the checkpoints (tinkerlab.runs.checkpoints)
data_report.json   what the data check found
held_out.jsonl     the evaluation rows that this run never trained on
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tinkerlab.errors import InputError
from tinkerlab.runs import jsonl

_TRIES, _PAUSE_SECONDS = 5, 0.05


@dataclass(frozen=True)
class RunFolder:
    """The paths of one run."""

    path: Path

    @property
    def config_file(self) -> Path:
        return self.path / "config.json"

    @property
    def attempts_file(self) -> Path:
        return self.path / "attempts.jsonl"

    @property
    def data_report_file(self) -> Path:
        return self.path / "data_report.json"

    @property
    def held_out_file(self) -> Path:
        return self.path / "held_out.jsonl"

    def read_config(self) -> dict[str, Any] | None:
        """The saved config; None in a new folder.

        Raises:
            InputError: the file is not a JSON object.
        """
        if not self.config_file.exists():
            return None
        try:
            config = json.loads(self.config_file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(
                f"{self.config_file}: not JSON ({error}); use a new log_path"
            ) from None
        if not isinstance(config, dict):
            raise InputError(f"{self.config_file}: not a JSON object; use a new log_path")
        return config

    def write_json(self, path: Path, document: Any) -> None:
        """Write one of the folder's JSON files atomically."""
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        jsonl.write_atomically(path, text.encode())

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder and hold it for this process; released when the process ends.

        Raises:
            InputError: another process trains in this folder, or it can't be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = (self.path / ".lock").open("a+")
        except OSError as error:
            raise InputError(f"log_path {self.path}: {error.strerror}; choose another") from None
        with file:
            if not _take(file):
                file.seek(0)
                holder = file.read().strip() or "unknown"
                raise InputError(
                    f"log_path {self.path}: process {holder} is training in it; wait for it,"
                    " stop it, or use another run_name"
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield


def _take(file: IO[str]) -> bool:
    """Lock a file for this process alone; False if another one holds it.

    Who asks whether a lock is held (scripts/watch_run.py) holds it for a moment, shared: so a
    refusal counts only when it lasts.
    """
    for _ in range(_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            time.sleep(_PAUSE_SECONDS)
    return False
