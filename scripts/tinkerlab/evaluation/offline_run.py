"""What an evaluation takes from a training run's folder, so that it measures what was trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkerlab.errors import InputError
from tinkerlab.runs import checkpoints
from tinkerlab.runs.folder import RunFolder

if TYPE_CHECKING:
    from tinkerlab.tasks import Split


@dataclass(frozen=True)
class RunSettings:
    """A run as its folder tells it. What only an RL run has is None for a supervised one.

    Attributes:
        sampler_path: the checkpoint to sample from, the newest if none is named.
        data, split, limit: the tasks that the run held out.
        grader: its reward.
    """

    folder: Path
    name: str
    base_model: str
    sampler_path: str
    seed: int
    wandb_url: str | None
    renderer: str | None
    data: str | None = None
    split: Split = "all"
    limit: int | None = None
    grader: str | None = None
    system_prompt: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    stop: tuple[str, ...] = ()


def read(path: Path, checkpoint: str | None = None) -> RunSettings:
    """The folder of a run of one of our trainers.

    Args:
        checkpoint: a sampler path to take instead of the newest; then the run needs none.

    Raises:
        InputError: no such folder, no config, or no checkpoint to sample from.
    """
    if not path.is_dir():
        raise InputError(f"--run {path}: no such folder; give the log_path of a training run")
    folder = RunFolder(path)
    config = folder.read_config()
    if config is None:
        raise InputError(f"--run {path}: no config.json in it; give the log_path of a training run")
    rows = checkpoints.read_rows(path)
    saved = (str(row["sampler_path"]) for row in reversed(rows) if row.get("sampler_path"))
    sampler_path = checkpoint or next(saved, None)
    if sampler_path is None:
        raise InputError(
            f"--run {path}: no checkpoint to sample from in {checkpoints.FILE_NAME}; let the run"
            " finish, or name one with --checkpoint"
        )
    resolved = config.get("resolved") or {}
    try:
        return RunSettings(
            folder=path,
            name=str(config.get("run_name") or path.resolve().name),
            base_model=str(config["base_model"]),
            sampler_path=sampler_path,
            seed=int(config.get("seed") or 0),
            wandb_url=config.get("wandb_url"),
            renderer=resolved.get("renderer") or config.get("renderer"),
            **_of_rl(config),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{folder.config_file}: not a config of our trainers ({error})") from None


def _of_rl(config: dict[str, Any]) -> dict[str, Any]:
    if not config.get("reward"):
        return {}
    own = config.get("eval_dataset")
    return {
        "data": own or config.get("dataset"),
        "split": "all" if own else "test",
        "limit": config.get("max_eval_tasks") or None,
        "grader": config["reward"],
        "system_prompt": config.get("system_prompt"),
        "max_tokens": config.get("max_tokens"),
        "temperature": config.get("eval_temperature"),
        "stop": tuple(config.get("stop") or ()),
    }
