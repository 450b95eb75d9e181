"""Builds results folders that obey the contract, for tests to show or to break."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tinkerlab.evaluation import results
from tinkerlab.runs import provenance

RUN = "11111111-2222-3333-4444-555555555555:train:0"


def sft_records(count: int = 24, seed: int = 0, gain: float = 0.2) -> tuple[list, list]:
    """Base and trained records; the trained NLL is lower by ``gain`` on average."""
    random = np.random.default_rng(seed)
    base, trained = [], []
    for index in range(count):
        tokens = int(random.integers(4, 60))
        nll = float(random.gamma(4, 0.25))
        item = {
            "index": index,
            "prompt": f"user: question {index}\nassistant:",
            "completion": f" answer number {index}",
            "num_tokens": tokens,
        }
        base.append({**item, "nll": nll})
        change = float(random.normal(-gain, 0.1)) if gain else 0.0
        trained.append({**item, "nll": max(nll + change, 0.01)})
    return base, trained


def rl_records(count: int = 40, seed: int = 0) -> tuple[list, list]:
    random = np.random.default_rng(seed)
    files: tuple[list, list] = ([], [])
    for index in range(count):
        for file, chance in zip(files, (0.3, 0.8), strict=True):
            correct = bool(random.random() < chance)
            file.append(
                {
                    "index": index,
                    "question": f"{index} + 1 = ?",
                    "ground_truth": str(index + 1),
                    "completion": f"it is {index + 1 if correct else index}",
                    "extracted_answer": str(index + 1 if correct else index),
                    "correct": correct,
                }
            )
    return files


def write_folder(
    root: Path,
    task_type: str = "sft",
    records: tuple[list, list] | None = None,
    *,
    steps: int = 24,
    examples: list[dict[str, Any]] | None = None,
) -> Path:
    """A complete folder ``root/results`` with the evaluation file beside it."""
    base, trained = records or (sft_records() if task_type == "sft" else rl_records())
    folder = root / "results"
    data_file = root / "eval.jsonl"
    root.mkdir(parents=True, exist_ok=True)
    data_file.write_text("".join(json.dumps(record) + "\n" for record in base))
    logs = folder / results.LOGS_FOLDER / "run-1"
    logs.mkdir(parents=True)
    results.write_json(
        logs / "config.json",
        {
            "base_model": "tiny:llama",
            "lora_rank": 16,
            "learning_rate": 1e-3,
            "train_batch_size": 8,
            "num_steps": steps,
            "train_file": str(data_file),
            "train_on_what": "all_assistant_messages",
            "note": "<script>alert('config')</script>",
        },
    )
    rows = []
    for step in range(steps):
        trained_on, held_out = ("train_mean_nll", "test/nll")
        if task_type == "rl":
            trained_on, held_out = ("env/all/reward/total", "test/env/all/correct")
        sign = -1 if task_type == "sft" else 1
        row: dict[str, Any] = {"step": step, trained_on: 0.5 + sign * 0.01 * step}
        if step % 4 == 0:
            row[held_out] = 0.55 + sign * 0.008 * step
        rows.append(row)
    results.write_jsonl(logs / "metrics.jsonl", rows)
    results.write_jsonl(
        logs / "checkpoints.jsonl",
        [
            {
                "name": "final",
                "batch": steps,
                "state_path": f"tinker://{RUN}/weights/final",
                "sampler_path": f"tinker://{RUN}/sampler_weights/final",
                "final": True,
            }
        ],
    )
    if examples is not None:
        results.write_jsonl(folder / results.EXAMPLES_FILE, examples)
    results.write_jsonl(folder / results.BASE_FILE, base)
    results.write_jsonl(folder / results.TRAINED_FILE, trained)
    summary = results.summarise(
        task_type,
        base,
        trained,
        seed=0,
        models={"base": "tiny:llama", "trained": f"tinker://{RUN}/sampler_weights/final"},
        dataset={"path": str(data_file), "sha256": provenance.file_sha256(data_file)},
        log_path=str(root / "run-1"),
    )
    results.write_json(folder / results.SUMMARY_FILE, summary)
    return folder


def edit_jsonl(path: Path, change: Callable[[list[dict[str, Any]]], Any]) -> None:
    """Apply ``change`` to a file's list of records, in place; NaN may be written."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    change(records)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def edit_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))
