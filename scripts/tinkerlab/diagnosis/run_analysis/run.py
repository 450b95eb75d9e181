"""Everything that one run left, in memory as columns and counts; read again as it grows."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkerlab.diagnosis.run_analysis import names
from tinkerlab.diagnosis.run_analysis.lines import LineReader, read_json
from tinkerlab.diagnosis.run_analysis.rollouts import (
    TOOL_MARKUP,
    EvaluationTotals,
    RolloutTotals,
    is_rollout,
)
from tinkerlab.diagnosis.run_analysis.series import Metrics
from tinkerlab.errors import InputError

if TYPE_CHECKING:
    from tinkerlab.diagnosis.run_analysis.series import Curve

METRICS = "metrics.jsonl"
KNOWN = "metrics.jsonl, *rollout_summaries.jsonl or trajectories.jsonl"


@dataclass
class Run:
    """A run folder, or a metrics file alone.

    Attributes:
        folder: None when only a metrics file was named, so that what is missing beside it
            says nothing.
        written_at: when the metrics file last changed, in seconds since 1970.
        now: the time that ages are counted to.
        holder: pid of the trainer that holds the folder's lock (this project's trainers).
    """

    path: Path
    folder: Path | None
    metrics: Metrics = field(default_factory=Metrics)
    config: dict[str, Any] = field(default_factory=dict)
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    checkpoints_at: float | None = None
    attempts: list[dict[str, Any]] = field(default_factory=list)
    rollouts: RolloutTotals = field(default_factory=RolloutTotals)
    evaluations: dict[str, EvaluationTotals] = field(default_factory=dict)
    written_at: float | None = None
    now: float = field(default_factory=time.time)
    holder: int | None = None
    readers: dict[Path, LineReader] = field(default_factory=dict)
    metrics_reader: LineReader | None = None

    @property
    def loss(self) -> Curve | None:
        return self.metrics.curve(names.TRAIN_LOSS, training_only=True)

    @property
    def learning_rate(self) -> Curve | None:
        return self.metrics.curve(names.LEARNING_RATE)

    @property
    def progress(self) -> Curve | None:
        return self.metrics.curve(names.PROGRESS, training_only=True)

    @property
    def is_rl(self) -> bool:
        return (
            self.metrics.first((*names.REWARD, *names.ENTROPY, *names.KL_SAMPLE_TRAIN)) is not None
        )

    @property
    def is_empty(self) -> bool:
        """Whether there is not one whole row of anything."""
        return not (self.metrics.rows or self.rollouts.count or self.evaluations)

    @property
    def is_foreign(self) -> bool:
        """Whether there are metrics and none of them is known, so that no check could speak."""
        if self.rollouts.count or self.evaluations:
            return False
        known = {*names.TRAINING, *names.FINITE, *names.PROGRESS, *names.STEP_TIME}
        return not any(key in known or names.is_score(key) for key in self.metrics.keys)

    @property
    def is_distillation(self) -> bool:
        return any(key.startswith(names.DISTILLATION) for key in self.metrics.keys)

    @property
    def model(self) -> str | None:
        for key in ("model_name", "base_model"):
            if isinstance(self.config.get(key), str):
                return self.config[key]
        return None

    def setting(self, key: str) -> float | None:
        """A number of the config, also one level down; None when it is absent or no number."""
        for place in (self.config, *(v for v in self.config.values() if isinstance(v, dict))):
            value = place.get(key)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return float(value)
        return None

    def read(self) -> int:
        """Read what is new; the number of new metric rows.

        Raises:
            InputError: a file is unreadable or of another kind.
        """
        self.now = time.time()
        before = self.metrics.rows
        file = self._metrics_file()
        if file is not None:
            self._read_metrics(file)
        if self.folder is not None:
            self._read_folder(self.folder)
        return self.metrics.rows - before

    def _metrics_file(self) -> Path | None:
        if self.folder is None:
            return self.path
        file = self.folder / METRICS
        return file if file.is_file() else None

    def _read_metrics(self, file: Path) -> None:
        if self.metrics_reader is None or self.metrics_reader.was_cut():
            # A resume of this project's trainers drops the rows that it will do again.
            self.metrics_reader, self.metrics = LineReader(file), Metrics()
        add = self.metrics.add
        for row in self.metrics_reader.new_rows():
            add(row)
        self.written_at = file.stat().st_mtime

    def _read_folder(self, folder: Path) -> None:
        config = folder / "config.json"
        if config.is_file():
            self.config = read_json(config)
        records = folder / "checkpoints.jsonl"
        if records.is_file() and records.stat().st_size:
            self.checkpoints = list(LineReader(records).new_rows())
            self.checkpoints_at = records.stat().st_mtime
        attempts = folder / "attempts.jsonl"
        if attempts.is_file() and attempts.stat().st_size:
            self.attempts = list(LineReader(attempts).new_rows())
        self.holder = lock_holder(folder / ".lock")
        for file in rollout_files(folder):
            self._read_rollouts(file)
        for file in sorted(folder.rglob("result.json")):
            self._evaluation(file).result = read_json(file)

    def _read_rollouts(self, file: Path) -> None:
        reader = self.readers.get(file)
        if reader is None:
            reader = self.readers[file] = LineReader(file)
        rollouts = self.rollouts
        # Held-out rollouts say nothing about the training signal.
        training = not file.name.startswith(("eval_", "test_"))
        evaluation = None
        for row in reader.new_rows():
            if not is_rollout(row):
                evaluation = evaluation or self._evaluation(file)
                evaluation.add(row)
            elif training and row.get("split", "train") == "train":
                rollouts.add(row)
        rollouts.finish_group()

    def _evaluation(self, file: Path) -> EvaluationTotals:
        assert self.folder is not None
        name = str(file.parent.relative_to(self.folder))
        name = self.folder.name if name == "." else name
        return self.evaluations.setdefault(name, EvaluationTotals(name))

    def logtree_markup(self) -> tuple[int, int]:
        """(logtree files with tool markup, of these with a tool result), scanned as text."""
        marked = answered = 0
        for file in sorted(self.folder.rglob("*_logtree.json")) if self.folder else ():
            text = file.read_text(encoding="utf-8", errors="replace")
            if TOOL_MARKUP.search(text):
                marked += 1
                answered += "tool_result_" in text or '"role": "tool"' in text
        return marked, answered

    def progress_line(self) -> str:
        """Where the run stands, in one line."""
        parts = []
        curve = self.loss or self.metrics.curve(names.REWARD)
        if curve is not None and len(curve):
            parts += [f"step {int(curve.steps[-1])}", f"{curve.key} {curve.values[-1]:.4g}"]
        progress = self.progress
        if progress is not None:
            parts.append(f"{100 * progress.values[-1]:.0f} %")
        return "  ".join(parts) or f"{self.metrics.rows} rows"


def open_run(path: Path) -> Run:
    """A run to be read, from its folder or its metrics file.

    Raises:
        InputError: there is no such path, or nothing in it that we can read.
    """
    if path.is_dir():
        if not (path / METRICS).is_file() and next(rollout_files(path), None) is None:
            raise InputError(f"{path}: no run in this folder: it holds no {KNOWN}")
        return Run(path, path)
    if not path.exists():
        raise InputError(f"{path}: no such folder or file; name a run's folder (its log_path)")
    if not path.is_file():
        raise InputError(f"{path}: neither a folder nor a file")
    if not path.stat().st_size:
        raise InputError(f"{path}: empty; nothing was logged yet")
    return Run(path, None)


def rollout_files(folder: Path) -> Iterator[Path]:
    """Rollout summaries and evaluation trajectories, at any depth, in the order of iterations."""
    for directory, subfolders, files in os.walk(folder):
        subfolders.sort()
        for name in sorted(files):
            if name.endswith("rollout_summaries.jsonl") or name == "trajectories.jsonl":
                yield Path(directory) / name


def lock_holder(lock: Path) -> int | None:
    """The pid that holds the lock of ``tinkerlab.runs.folder``; None when no process does."""
    try:
        with lock.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read().strip() or 0)
    except (OSError, ValueError):
        return None
    return None
