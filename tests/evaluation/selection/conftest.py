"""Synthetic runs and results whose right choice is known beforehand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tinkerlab.evaluation import results

MODEL = "tiny:llama"


def sampler(name: str, run: str = "run-1") -> str:
    return f"tinker://{run}/sampler_weights/{name}"


def lines(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """``make_run(held_out=[...])``: a checkpoint every 10 updates, named 000010, ..., final.

    ``held_out[i]`` and ``train[i]`` are logged at step 10 i; entry 0 is before training.
    """

    def make(
        held_out: Sequence[float] = (),
        train: Sequence[float] = (),
        *,
        key: str = "test/nll",
        train_key: str = "train_mean_nll",
        count: int = 4,
        config: Mapping[str, Any] | None = None,
        folder: str = "run",
    ) -> Path:
        path = tmp_path / folder
        path.mkdir()
        rows: list[dict[str, Any]] = []
        for step in range(10 * count + 1):
            row: dict[str, Any] = {"step": step}
            if train and step < 10 * count:
                left, right = train[step // 10], train[min(step // 10 + 1, len(train) - 1)]
                row[train_key] = left + (right - left) * (step % 10) / 10
            if step % 10 == 0 and step // 10 < len(held_out):
                row[key] = held_out[step // 10]
            if len(row) > 1:
                rows.append(row)
        if rows:
            lines(path / "metrics.jsonl", rows)
        names = [f"{10 * (i + 1):06d}" for i in range(count - 1)] + ["final"]
        records = [
            {
                "name": name,
                "step": 10 * (i + 1),
                "final": name == "final",
                "state_path": f"tinker://run-1/weights/{name}",
                "sampler_path": sampler(name),
            }
            for i, name in enumerate(names)
        ]
        lines(path / "checkpoints.jsonl", records)
        (path / "config.json").write_text(json.dumps({"base_model": MODEL, **(config or {})}))
        return path

    return make


@pytest.fixture
def make_results(tmp_path: Path) -> Callable[..., Path]:
    """A folder as eval_offline.py leaves it, of one model, or of two where ``base`` is given.

    ``make_results("000010", 40)``: 40 of 100 items are right, one after the other from the
    item ``first`` on. ``name`` is the checkpoint's, or "base".
    """

    def make(
        name: str,
        right: int,
        *,
        of: int = 100,
        first: int = 0,
        model: str | None = None,
        base: int | None = None,
        suite: str | None = None,
        parent: str = "results",
        question: str = "question",
        **changes: Any,
    ) -> Path:
        folder = tmp_path / parent / name
        model = model or (MODEL if name == "base" else sampler(name))

        def records(count: int) -> list[dict[str, Any]]:
            return [
                {
                    "index": i,
                    "question": f"{question} {i}",
                    "ground_truth": "yes",
                    "completion": "?",
                    "extracted_answer": None,
                    "correct": int((i - first) % of < count),
                }
                for i in range(of)
            ]

        document: dict[str, Any] = {
            "task_type": "rl",
            "dataset": {"source": "data/tasks.jsonl", "path": "items.jsonl"},
            "grader": {"spec": "exact", "timeout": 10.0},
            "sampling": {"max_tokens": 16, "temperature": 0.0, "seed": 0},
            "renderer": "role_colon",
            "settings": {"system_prompt": None, "correct_at": None},
            **({"suite": suite} if suite else {}),
            **changes,
        }
        if base is not None:
            document["models"] = {"base": MODEL, "trained": model, "renderer": "role_colon"}
            results.write_jsonl(folder / results.BASE_FILE, records(base))
            results.write_jsonl(folder / results.TRAINED_FILE, records(right))
            results.write_json(folder / results.SUMMARY_FILE, document)
        else:
            document["model"] = model
            trained = model.startswith("tinker://")
            file = results.TRAINED_FILE if trained else results.BASE_FILE
            results.write_jsonl(folder / file, records(right))
            results.write_json(folder / "scores.json", document)
        return folder

    return make


@pytest.fixture
def choose(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict[str, Any]]]:
    """``choose(run, ...)``: exit code and document of ``select_checkpoint.py --json``."""

    def run(folder: Path, *arguments: Any) -> tuple[int, dict[str, Any]]:
        import select_checkpoint as script

        code = script.main(["--run", str(folder), *map(str, arguments), "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run
