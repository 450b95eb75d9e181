"""Weights & Biases, for those who ask for it with ``wandb_project``."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from tinkerlab.errors import InputError
from tinkerlab.runs.checkpoints import CheckpointRecord
from tinkerlab.runs.folder import RunFolder


class WandbTracker:
    """Logs every row to one W&B run, which a resumed training continues by its id.

    Resuming by name would begin a second run of that name. Steps that a resume does again are
    logged again; W&B keeps the first value of a step, which is the same one.

    Raises:
        InputError: the wandb package is not installed.
    """

    def __init__(
        self, project: str, run_name: str, folder: RunFolder, config: Mapping[str, Any]
    ) -> None:
        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise InputError(
                f"wandb_project={project} needs the wandb package: pip install wandb, or leave"
                " wandb_project out"
            ) from None
        self._run = wandb.init(
            project=project,
            name=run_name,
            id=_run_id(folder),
            resume="allow",
            dir=str(folder.path),
            config=dict(config),
        )

    @property
    def url(self) -> str | None:
        return self._run.url

    def row(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._run.log(dict(metrics), step=step)

    def checkpoint(self, record: CheckpointRecord) -> None:
        self._run.summary["last_checkpoint"] = record.state_path

    def finish(self, exit_code: int) -> None:
        """Upload what is left and mark the run as finished or failed."""
        self._run.finish(exit_code=exit_code)


def _run_id(folder: RunFolder) -> str:
    """The id kept in the run's folder, made at the first start."""
    file = folder.path / "wandb_id"
    if not file.exists():
        file.write_text(uuid.uuid4().hex[:12], encoding="utf-8")
    return file.read_text(encoding="utf-8").strip()
