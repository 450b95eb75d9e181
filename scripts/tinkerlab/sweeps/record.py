"""``sweep.json``: which runs of a sweep are done, so that the same command does the rest."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tinkerlab.diagnosis.run_analysis.run import lock_holder
from tinkerlab.errors import InputError
from tinkerlab.folders import make_folder
from tinkerlab.runs import checkpoints, jsonl
from tinkerlab.runs.folder import RunFolder
from tinkerlab.sweeps.plan import Member, Plan
from tinkerlab.watching.discovery import SWEEP_RECORD


class Record:
    """The record of the sweep in ``plan.output``; members of earlier commands stay in it.

    Raises:
        InputError: the folder holds something else, or a sweep of another trainer.
    """

    def __init__(self, plan: Plan) -> None:
        self._path = plan.output / SWEEP_RECORD
        self._document = _open(self._path, plan)

    def is_complete(self, member: Member) -> bool:
        """Whether a run is done, with these very settings and files, and its weights recorded."""
        row = self._document["runs"].get(member.name)
        if row is None or row["status"] != "complete":
            return False
        # Through JSON and back: what was saved can only be compared with what can be saved.
        same = row["config"] == _plain(member.config) and row["inputs"] == dict(member.inputs)
        return same and has_final_checkpoint(member.folder)

    def note(self, member: Member, status: str, exit_code: int | None = None) -> None:
        """Write down what became of a run."""
        self._document["runs"][member.name] = {
            "status": status,
            "exit_code": exit_code,
            "settings": member.settings,
            "config": _plain(member.config),
            "inputs": dict(member.inputs),
        }
        text = json.dumps(self._document, indent=2, ensure_ascii=False) + "\n"
        jsonl.write_atomically(self._path, text.encode())


def has_final_checkpoint(folder: Path) -> bool:
    """Whether the run's last checkpoint record is its final one."""
    try:
        records = checkpoints.read(folder)
    except InputError:
        return False
    return bool(records) and records[-1].final


@contextlib.contextmanager
def only_one(plan: Plan) -> Iterator[Record]:
    """The record of the plan's folder, which is held for this process.

    Raises:
        InputError: as ``Record``; another sweep is at work in the folder, or it can't be written.
    """
    Record(plan)  # refused, if it must be, before anything is left in the folder
    holder = lock_holder(plan.output / ".lock")
    if holder is not None:
        raise InputError(
            f"--output {plan.output}: process {holder} runs a sweep in it; wait for it, or choose"
            " another"
        )
    with RunFolder(plan.output).locked():
        yield Record(plan)


def _open(path: Path, plan: Plan) -> dict[str, Any]:
    folder = path.parent
    if not path.exists():
        if folder.is_dir() and any(entry.name != ".lock" for entry in folder.iterdir()):
            raise InputError(f"{folder} holds something else; choose another --output")
        make_folder(folder)
        return {"trainer": plan.trainer.script, "runs": {}}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        trainer, _ = document["trainer"], document["runs"].items()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{path}: damaged; choose another --output, or remove it") from None
    if trainer != plan.trainer.script:
        raise InputError(f"{folder} holds a sweep of {trainer}; choose another --output")
    return document


def _plain(config: Any) -> Any:
    return json.loads(json.dumps(dict(config), default=str))
