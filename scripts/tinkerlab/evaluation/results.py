"""The files of ``results/``: their names, their records, and how they are written.

    logs/<run>/          copies of metrics.jsonl, config.json, checkpoints.jsonl, ...
    base_model.jsonl     one record per eval item, the untrained model
    trained_model.jsonl  the same items in the same order, the trained model
    summary.json         scores, interval, models, dataset, seed, versions, commit, hashes
    examples.jsonl       answers of both models to the first few items (optional)

An NLL is a mean over completion tokens, in nats. A file appears whole or not at all: it is
written beside its place and renamed. This module knows nothing of models or services.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tinkerlab.errors import InputError
from tinkerlab.evaluation import hashing, statistics
from tinkerlab.evaluation.statistics import PairedDifference
from tinkerlab.folders import make_folder
from tinkerlab.runs import jsonl, provenance

BASE_FILE = "base_model.jsonl"
TRAINED_FILE = "trained_model.jsonl"
SUMMARY_FILE = "summary.json"
EXAMPLES_FILE = "examples.jsonl"
LOGS_FOLDER = "logs"

# What says which item a record is about; equal in both files, in the same order.
IDENTITY = {
    "sft": ("index", "prompt", "completion"),
    "rl": ("index", "question", "ground_truth"),
}
# Every field a record must have, with its JSON type.
FIELDS: dict[str, dict[str, tuple[type, ...]]] = {
    "sft": {"index": (int,), "prompt": (str,), "completion": (str,), "nll": (int, float)},
    "rl": {
        "index": (int,),
        "question": (str,),
        "ground_truth": (str, int, float),
        "completion": (str,),
        "extracted_answer": (str, int, float, type(None)),
        "correct": (bool, int, float),
    },
}
SCORE_NAMES = {
    "sft": ("baseline_nll", "trained_nll"),
    "rl": ("baseline_score", "trained_score"),
}
LOWER_IS_BETTER = {"sft": True, "rl": False}


def dump(value: Any, *, indent: int | None = None) -> bytes:
    """JSON as UTF-8 bytes; a lone surrogate stays as its escape instead of failing.

    Raises:
        ValueError: a NaN or an infinity.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    return text.encode("utf-8", "backslashreplace")


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, never meets half of it.

    Raises:
        InputError: it can't be written there.
    """
    make_folder(path.parent)
    try:
        jsonl.write_atomically(path, content)
    except OSError as error:
        raise InputError(f"--output {path}: {error.strerror}; choose another") from None


def write_jsonl(path: Path, records: Iterable[dict[str, Any]]) -> None:
    write_whole(path, b"".join(dump(record) + b"\n" for record in records))


def write_json(path: Path, value: Any) -> None:
    write_whole(path, dump(value, indent=2) + b"\n")


def read_json(path: Path) -> dict[str, Any]:
    """One JSON object from a file.

    Raises:
        InputError: the file is missing, unreadable or holds something else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} is missing") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not readable as JSON ({error})") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Every record of a JSONL file; a torn last line (a crash while appending) is dropped.

    Raises:
        InputError: the file is missing, or a line before the last is not a JSON object.
    """
    if not path.is_file():
        raise InputError(f"{path} is missing")
    return jsonl.read(path)


def score_of(record: dict[str, Any], task_type: str) -> float:
    """The number that is averaged: an SFT item's ``nll``, an RL item's ``correct``."""
    return float(record["nll"] if task_type == "sft" else record["correct"])


def token_weights(records: Sequence[dict[str, Any]], task_type: str) -> list[float] | None:
    """Scored tokens per item when every SFT record gives them, else None (items alike)."""
    if task_type != "sft" or not all("num_tokens" in record for record in records):
        return None
    return [float(record["num_tokens"]) for record in records]


def scores(
    task_type: str,
    base: Sequence[dict[str, Any]],
    trained: Sequence[dict[str, Any]],
    *,
    seed: int,
) -> dict[str, Any]:
    """The part of the summary that follows from the two files alone.

    The headline weighs items alike (a mean over items of each one's mean per token): what the
    records hold, and what supervised training with weights that sum to 1 per example lowers.
    ``per_token`` pools all scored tokens of an SFT evaluation, so that long answers count for
    more; it is there when every record gives its ``num_tokens``.
    """
    base_name, trained_name = SCORE_NAMES[task_type]
    base_scores = [score_of(record, task_type) for record in base]
    trained_scores = [score_of(record, task_type) for record in trained]

    def compared(weights: list[float] | None) -> tuple[dict[str, Any], PairedDifference]:
        difference = statistics.paired_difference(base_scores, trained_scores, weights, seed=seed)
        means = {
            base_name: statistics.weighted_mean(base_scores, weights),
            trained_name: statistics.weighted_mean(trained_scores, weights),
            "difference": difference.as_dict(),
        }
        return means, difference

    result, difference = compared(None)
    result["verdict"] = statistics.describe(difference, lower_is_better=LOWER_IS_BETTER[task_type])
    weights = token_weights(base, task_type)
    if weights is not None:
        result["per_token"] = compared(weights)[0]
    return result


def summarise(
    task_type: str,
    base: Sequence[dict[str, Any]],
    trained: Sequence[dict[str, Any]],
    *,
    seed: int,
    models: dict[str, Any],
    dataset: dict[str, Any],
    log_path: str | None,
    wandb_url: str | None = None,
    extra: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The whole of summary.json for two files of records.

    Args:
        models: at least ``base`` (a name) and ``trained`` (a tinker:// path).
        dataset: at least ``path`` and ``sha256`` of the evaluation file.
    """
    numbers = scores(task_type, base, trained, seed=seed)
    base_name, trained_name = SCORE_NAMES[task_type]
    return {
        "task_type": task_type,
        "tinker_run_id": run_id_of(models["trained"]),
        "log_path": log_path,
        "wandb_url": wandb_url,
        base_name: numbers.pop(base_name),
        trained_name: numbers.pop(trained_name),
        "scores": numbers,
        "models": models,
        "dataset": {
            **dataset,
            "items": len(base),
            "items_sha256": hashing.items_sha256(base, IDENTITY[task_type]),
        },
        "seed": seed,
        "scoring_code_sha256": hashing.code_sha256(),
        "versions": provenance.versions(),
        "git_commit": provenance.git_commit(Path(__file__).parent),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        **(extra or {}),
    }


def run_id_of(tinker_path: str) -> str:
    """The training run's id in ``tinker://<run id>/<kind>/<name>``.

    Raises:
        InputError: not such a path.
    """
    parts = tinker_path.removeprefix("tinker://").split("/")
    if not tinker_path.startswith("tinker://") or len(parts) != 3 or not all(parts):
        raise InputError(
            f"{tinker_path!r} is not a path like tinker://<run>/sampler_weights/<name>"
        )
    return parts[0]


def copy_logs(run_folder: Path, results: Path, run_name: str) -> Path:
    """Copy a run's log files (the files directly in it, below 50 MB each) into the results.

    The copy replaces an earlier one as a whole.
    """
    target = results / LOGS_FOLDER / run_name
    fresh = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    for source in sorted(run_folder.iterdir()):
        wanted = source.suffix in {".json", ".jsonl", ".yaml", ".log", ".txt"}
        if source.is_file() and wanted and source.stat().st_size < 50_000_000:
            shutil.copy2(source, fresh / source.name)
    shutil.rmtree(target, ignore_errors=True)
    fresh.replace(target)
    return target
