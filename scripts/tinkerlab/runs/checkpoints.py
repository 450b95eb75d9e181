"""``checkpoints.jsonl``: the checkpoints of a run, as tinker-cookbook writes and reads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinkerlab.errors import InputError
from tinkerlab.runs import jsonl

FILE_NAME = "checkpoints.jsonl"


@dataclass(frozen=True)
class CheckpointRecord:
    """One line of ``checkpoints.jsonl``.

    ``name``, ``batch``, ``epoch``, ``final``, ``state_path`` and ``sampler_path`` mean what
    they mean in ``tinker_cookbook.checkpoint_utils.CheckpointRecord``.

    Attributes:
        step: optimizer updates that the saved weights contain, so also the first step that a
            resumed run still has to do.
        batch: for tinker-cookbook's supervised loop, the next batch within ``epoch``.
        state_path: weights and optimizer state, to go on training from.
        sampler_path: weights only, to sample from.
    """

    name: str
    step: int
    epoch: int
    batch: int
    state_path: str | None = None
    sampler_path: str | None = None
    final: bool = False

    def to_row(self) -> dict[str, Any]:
        row: dict[str, Any] = {
            "name": self.name,
            "batch": self.batch,
            "epoch": self.epoch,
            "step": self.step,
            "final": self.final,
        }
        if self.state_path:
            row["state_path"] = self.state_path
        if self.sampler_path:
            row["sampler_path"] = self.sampler_path
        return row


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The raw lines, also of runs that tinker-cookbook or something else wrote."""
    return jsonl.read(folder / FILE_NAME)


def read(folder: Path) -> list[CheckpointRecord]:
    """The records of a run that this project's trainers wrote, oldest first.

    Raises:
        InputError: a record lacks ``step``, so it says nothing exact about what it contains.
    """
    records = []
    for number, row in enumerate(read_rows(folder), start=1):
        if not isinstance(row.get("name"), str) or not isinstance(row.get("step"), int):
            raise InputError(
                f"{folder / FILE_NAME}:{number}: no name or no step (optimizer updates in the"
                " checkpoint), so it can't be resumed exactly; was it written by another tool?"
                " Use a new log_path"
            )
        records.append(
            CheckpointRecord(
                name=row["name"],
                step=row["step"],
                epoch=int(row.get("epoch") or 0),
                batch=int(row.get("batch") or 0),
                state_path=row.get("state_path"),
                sampler_path=row.get("sampler_path"),
                final=bool(row.get("final")),
            )
        )
    return records
