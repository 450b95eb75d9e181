"""The checkpoints of a run, by the optimizer updates that each one holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinkerlab.diagnosis.run_analysis import saved, thresholds
from tinkerlab.diagnosis.run_analysis.attempts import checkpoint_step, is_final, steps_per_epoch
from tinkerlab.diagnosis.run_analysis.run import Run
from tinkerlab.errors import InputError
from tinkerlab.watching import figures


@dataclass(frozen=True)
class Checkpoint:
    """One set of weights.

    Attributes:
        step: optimizer updates that they contain.
        sampler_path: None where only a training state was saved.
    """

    name: str
    step: int
    sampler_path: str | None = None
    state_path: str | None = None
    final: bool = False


def read_run(folder: Path) -> Run:
    """The run's files, whichever are there.

    Raises:
        InputError: no such folder, or no checkpoint is recorded in it.
    """
    if not folder.is_dir():
        raise InputError(f"--run {folder}: no such folder; give the log_path of a training run")
    run = Run(folder, folder)
    run.read()
    if not run.checkpoints:
        raise InputError(
            f"--run {folder}: no checkpoints.jsonl with checkpoints in it; train with"
            " save_every=N, so that there are some to choose from"
        )
    return run


def checkpoints_of(run: Run) -> tuple[list[Checkpoint], list[str]]:
    """(the run's checkpoints by step, what was left out and why).

    Records of the same step hold the same weights: the newest is kept, which is the final one
    where there is one (it has no end of life).

    Raises:
        InputError: none of the records can be used.
    """
    per_epoch, last = steps_per_epoch(run), saved.last_step(run) if run.metrics.rows else None
    by_step: dict[int, Checkpoint] = {}
    left_out = []
    for number, record in enumerate(run.checkpoints, start=1):
        name = record.get("name")
        if record.get("rolling"):
            left_out.append(f"{name}: a rolling checkpoint, which the run deletes again")
            continue
        step = updates_in(run, record, per_epoch, last)
        if not isinstance(name, str) or not name or step is None:
            left_out.append(
                f"checkpoints.jsonl record {number} ({name}): how many updates it holds can't be"
                f" told from step {record.get('step')}, epoch {record.get('epoch')}, batch"
                f" {record.get('batch')}"
            )
            continue
        earlier = by_step.get(step)
        if earlier is not None:
            left_out.append(f"{earlier.name}: the same {step} updates as {name}")
        by_step[step] = Checkpoint(
            name=name,
            step=step,
            sampler_path=_text(record.get("sampler_path")),
            state_path=_text(record.get("state_path")),
            final=is_final(record),
        )
    found = [by_step[step] for step in sorted(by_step)]
    if not found:
        raise InputError(f"{run.path}: no usable checkpoint: {'; '.join(left_out)}")
    names = [checkpoint.name for checkpoint in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise InputError(
            f"{run.path / 'checkpoints.jsonl'}: two checkpoints are named {twice!r}; rename one"
        )
    return found, left_out


def updates_in(
    run: Run, record: dict[str, Any], per_epoch: int | None, last: int | None
) -> int | None:
    """Optimizer updates in a record's weights; None where nothing tells.

    ``step`` says it where it is there (this project's trainers). tinker-cookbook's RL, DPO and
    distillation loops label with the updates done (``rl/train.py``, ``preference/train_dpo.py``);
    its supervised loop labels with a batch that is in flight, besides those submitted ahead
    (``supervised/train.py`` finish_batch), and its final checkpoint with the next epoch.
    """
    if isinstance(record.get("step"), int):
        return record["step"]
    if is_final(record) and last is not None:
        return last + 1
    label = checkpoint_step(run, record, per_epoch)
    if label is None or figures.kind_of(run) != "sft" or is_final(record):
        return label
    ahead = run.config.get("submit_ahead")
    ahead = ahead if isinstance(ahead, int) else thresholds.SUBMIT_AHEAD
    done = label + 1 + ahead
    return done if last is None else min(done, last + 1)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
