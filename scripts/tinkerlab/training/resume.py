"""Where an interrupted run goes on, and whether it may."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinkerlab.errors import CheckFailed, InputError
from tinkerlab.runs import checkpoints, jsonl, metrics
from tinkerlab.runs.checkpoints import CheckpointRecord
from tinkerlab.runs.folder import RunFolder

if TYPE_CHECKING:
    import tinker


@dataclass(frozen=True)
class ResumePoint:
    """The first step that is still to do, and the checkpoint that holds all before it.

    Attributes:
        complete: the run's final checkpoint is recorded; there is nothing left to do.
    """

    step: int = 0
    record: CheckpointRecord | None = None
    complete: bool = False


def find_resume_point(folder: RunFolder, rest: tinker.RestClient) -> ResumePoint:
    """The newest recorded checkpoint whose state the service still has.

    Raises:
        CheckFailed: checkpoints are recorded and the service has none of them.
        InputError: the folder's files are damaged.
    """
    jsonl.repair_tail(folder.path / checkpoints.FILE_NAME)
    records = checkpoints.read(folder.path)
    if records and records[-1].final:
        return ResumePoint(records[-1].step, records[-1], complete=True)
    for record in reversed(records):
        if record.state_path and state_exists(rest, record.state_path):
            return ResumePoint(record.step, record)
    if records:
        raise CheckFailed(
            f"{folder.path}: none of its {len(records)} recorded checkpoints is on this service"
            f" any more (newest: {records[-1].state_path}); they expired, were deleted, or"
            " TINKER_BASE_URL points elsewhere; to begin again, use another run_name"
        )
    return ResumePoint()


def state_exists(rest: tinker.RestClient, path: str) -> bool:
    """Whether the service has this training state.

    Raises:
        tinker.TinkerError: it could not be asked.
    """
    import tinker

    try:
        rest.get_weights_info_by_tinker_path(path).result()
    except (tinker.NotFoundError, tinker.BadRequestError):
        return False
    return True


def rewind(folder: RunFolder, point: ResumePoint) -> int:
    """Drop what the run wrote after ``point``, since it will be done again; rows dropped."""
    records = checkpoints.read(folder.path)
    kept = [record for record in records if record.step <= point.step]
    if len(kept) != len(records):
        jsonl.rewrite(folder.path / checkpoints.FILE_NAME, (record.to_row() for record in kept))
    return metrics.keep_before(folder.path, point.step)


def refuse_changes(folder: RunFolder, saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Stop unless the settings that decide the result are those that the run began with.

    Raises:
        InputError: names each setting that differs, with both values.
    """
    changes = [
        f"{key} was {saved.get(key)!r} and is {value!r}"
        for key, value in current.items()
        if saved.get(key) != value
    ]
    if changes:
        raise InputError(
            f"{folder.path} holds a run with other settings: {'; '.join(changes)}."
            " Go on with the old ones, or begin another run with a new run_name"
        )
