"""Read a results folder into the plain values that the page shows.

The records and the summary must be there; everything else (logs, examples, export report) is
shown where it exists, because a report on an old or foreign run is still worth having.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinkerlab.errors import InputError
from tinkerlab.evaluation import results
from tinkerlab.evaluation.checking import Verdict, check_results

# What a run of each kind of task logs at every step, and of its held-out items.
TRAIN_KEYS = {
    "sft": ("train_mean_nll", "train/mean_nll", "loss"),
    "rl": ("env/all/reward/total",),
}
HELD_OUT_KEYS = {
    "sft": ("test/nll", "val/nll", "eval/nll", "val_nll", "nll"),
    "rl": ("test/env/all/correct", "test/env/all/reward/total"),
}


@dataclass
class ReportData:
    """What the page shows, before any of it is formatted.

    Attributes:
        scores: computed from the records, as the summary's should be; the page never shows a
            number that the records do not give.
    """

    folder: Path
    summary: dict[str, Any]
    task_type: str
    base: list[dict[str, Any]]
    trained: list[dict[str, Any]]
    verdict: Verdict
    scores: dict[str, Any]
    run_name: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    data_report: dict[str, Any] = field(default_factory=dict)
    examples: list[dict[str, Any]] = field(default_factory=list)
    export: dict[str, Any] = field(default_factory=dict)

    @property
    def changes(self) -> list[float]:
        """Trained minus base for every item, in item order."""
        return [
            results.score_of(after, self.task_type) - results.score_of(before, self.task_type)
            for before, after in zip(self.base, self.trained, strict=True)
        ]

    @property
    def train_curve(self) -> list[tuple[int, float]]:
        return _curve(self.metrics, TRAIN_KEYS.get(self.task_type, ()))

    @property
    def held_out_curve(self) -> list[tuple[int, float]]:
        return _curve(self.metrics, HELD_OUT_KEYS.get(self.task_type, ()))


def collect(folder: Path, export_report: Path | None = None) -> ReportData:
    """Read everything there is to show about one results folder.

    Raises:
        InputError: the folder, its summary or its records are missing or unreadable, or the
            two models were scored on different items.
    """
    verdict = check_results(folder)
    summary = results.read_json(folder / results.SUMMARY_FILE)
    task_type = summary.get("task_type")
    if not isinstance(task_type, str) or task_type not in results.FIELDS:
        raise InputError(f"{folder / results.SUMMARY_FILE}: unknown task_type {task_type!r}")
    base = results.read_jsonl(folder / results.BASE_FILE)
    trained = results.read_jsonl(folder / results.TRAINED_FILE)
    broken = {
        "item-field",
        "item-missing",
        "item-order",
        "item-range",
        "line-not-json",
        "no-items",
        "not-finite",
        "summary-field",
    }
    found = next((f for f in verdict.findings if f.rule in broken), None)
    if found or len(base) != len(trained):
        reason = f"{found.where}: {found.what}" if found else "files of different length"
        raise InputError(
            f"{folder} cannot be shown ({reason}); see python scripts/check_results.py {folder}"
        )
    scores = results.scores(task_type, base, trained, seed=summary["seed"])
    data = ReportData(folder, summary, task_type, base, trained, verdict, scores)
    _read_logs(data)
    if (folder / results.EXAMPLES_FILE).is_file():
        data.examples = results.read_jsonl(folder / results.EXAMPLES_FILE)
    if export_report is not None:
        data.export = results.read_json(export_report)
    return data


def _read_logs(data: ReportData) -> None:
    """The logs of the run that made the trained model, else of the first run."""
    logs = data.folder / results.LOGS_FOLDER
    runs = sorted(p for p in logs.iterdir() if p.is_dir()) if logs.is_dir() else []
    if not runs:
        return
    wanted = Path(str(data.summary.get("log_path"))).name
    run = next((p for p in runs if p.name == wanted), runs[0])
    data.run_name = run.name
    for name in ("config", "data_report"):
        if (run / f"{name}.json").is_file():
            setattr(data, name, results.read_json(run / f"{name}.json"))
    for name in ("metrics", "checkpoints"):
        if (run / f"{name}.jsonl").is_file():
            setattr(data, name, results.read_jsonl(run / f"{name}.jsonl"))


def _curve(metrics: list[dict[str, Any]], keys: tuple[str, ...]) -> list[tuple[int, float]]:
    """(step, value) of the first of ``keys`` that the run logged; non-finite values dropped."""
    key = next((k for k in keys if any(k in row for row in metrics)), None)
    points = []
    for position, row in enumerate(metrics):
        value = row.get(key) if key else None
        if isinstance(value, (int, float)) and math.isfinite(value):
            step = row.get("step")
            points.append((step if type(step) is int else position, float(value)))
    return points
