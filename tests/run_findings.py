"""What analyze_run.py says of rows that a test makes, and runs that are well to begin from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tinkerlab.diagnosis.findings import Finding
from tinkerlab.diagnosis.run_analysis.analysis import analyze
from tinkerlab.diagnosis.run_analysis.run import Run, open_run

Rows = Iterable[Mapping[str, Any]]
NAN = float("nan")


def findings(rows: Rows, **config: Any) -> dict[str, Finding]:
    """What is said about a metrics file alone, by cause."""
    run = Run(Path("metrics.jsonl"), None)
    run.config = config
    for row in rows:
        run.metrics.add(row)
    return {finding.cause: finding for finding in analyze(run).findings}


def folder(tmp_path: Path, rows: Rows, **files: Any) -> Path:
    """A run folder; ``config=`` and ``checkpoints=`` make the files of these names."""
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if "config" in files:
        (tmp_path / "config.json").write_text(json.dumps(files["config"]))
    if "checkpoints" in files:
        text = "".join(json.dumps(row) + "\n" for row in files["checkpoints"])
        (tmp_path / "checkpoints.jsonl").write_text(text)
    return tmp_path


def of_folder(path: Path) -> dict[str, Finding]:
    run = open_run(path)
    run.read()
    return {finding.cause: finding for finding in analyze(run).findings}


def sft(count: int, total: int | None = None, **more: Any) -> list[dict[str, Any]]:
    total = total or count
    noise = np.random.default_rng(0)
    return [
        {
            "step": step,
            "epoch": 0,
            "progress": (step + 1) / total,
            "learning_rate": 1e-4,
            "train_mean_nll": 1 + 1.5 * float(np.exp(-step / 10) + noise.normal(0, 0.02)),
            "time/total": 2.0,
            **more,
        }
        for step in range(count)
    ]


def rl(count: int, make: Callable[[float], Mapping[str, float]]) -> list[dict[str, Any]]:
    """RL rows with a rising reward; ``make`` gives further metrics at a share of the run."""
    noise = np.random.default_rng(0)
    return [
        {
            "progress/batch": step,
            "progress/done_frac": (step + 1) / count,
            "env/all/reward/total": 0.3 + 0.4 * step / count + float(noise.normal(0, 0.02)),
            **make(step / max(count - 1, 1)),
        }
        for step in range(count)
    ]
