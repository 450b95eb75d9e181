"""Results folders: find them, read them, and put each beside the checkpoint that it is about.

A folder is what ``eval_offline.py`` or ``evaluate.py nll`` leaves: ``summary.json`` with two
files of records, or ``scores.json`` with one. A public benchmark says so with ``suite``.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tinkerlab.errors import InputError
from tinkerlab.evaluation import hashing, results
from tinkerlab.evaluation.offline import LOG_FILE, SCORES_FILE
from tinkerlab.evaluation.selection.checkpoints import Checkpoint
from tinkerlab.evaluation.selection.layers import Evaluation, Kind

BASE = ""  # where the base model stands among the names of checkpoints
MANY_TRUNCATED = 0.1
# How replies are drawn and marked; with the items, two evaluations with the same are comparable.
_SETTINGS = ("system_prompt", "correct_at")
SIDES = ("base", "trained")
_UNFINISHED = (LOG_FILE, "partial.jsonl")


@dataclass(frozen=True)
class ResultsFolder:
    """One folder, read.

    Attributes:
        scores: by the name or path of the model, one value for each item.
    """

    path: Path
    kind: Kind
    name: str
    identity: dict[str, Any]
    higher: bool
    scores: dict[str, list[float]]
    base_model: str | None
    trained: str | None
    records_sha256: str
    scoring_code: str | None = None
    cautions: tuple[str, ...] = ()
    failed_items: int = 0


@dataclass
class Found:
    """What the folders came to.

    Attributes:
        evaluations: folders with the same items and settings, together.
        left_out: folder and reason.
        cautions: what makes their scores mean less than they seem to.
        records: hash of the records by folder, to recognise the very same selection.
    """

    evaluations: list[Evaluation] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    cautions: list[str] = field(default_factory=list)
    records: dict[str, str] = field(default_factory=dict)

    def of(self, kind: Kind) -> list[Evaluation]:
        return [evaluation for evaluation in self.evaluations if evaluation.kind == kind]


def find(places: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """(results folders at or below ``places``, each once; unfinished ones, named).

    Raises:
        InputError: a place does not exist, or holds none.
    """
    folders: dict[Path, Path] = {}
    unfinished: list[str] = []
    for place in places:
        if not place.is_dir():
            raise InputError(f"--results {place}: no such folder")
        before = len(folders) + len(unfinished)
        known = 0
        for directory, below, files in os.walk(place):
            folder = Path(directory)
            below[:] = sorted(name for name in below if name != results.LOGS_FOLDER)
            if _is_results(folder, files):
                known += folder.resolve() in folders
                folders.setdefault(folder.resolve(), folder)
                below.clear()
            elif any(name in files for name in _UNFINISHED) and "metrics.jsonl" not in files:
                unfinished.append(f"{folder}: this evaluation is not finished")
        if len(folders) + len(unfinished) + known == before:
            raise InputError(
                f"--results {place}: holds no evaluation (no {results.SUMMARY_FILE} or"
                f" {SCORES_FILE} with a task_type, at any depth); give --output folders of"
                " eval_offline.py"
            )
    return list(folders.values()), unfinished


def _is_results(folder: Path, files: Sequence[str]) -> bool:
    for name in (results.SUMMARY_FILE, SCORES_FILE):
        # A sweep writes a summary.json too: other documents have no task_type.
        if name in files and "task_type" in results.read_json(folder / name):
            return True
    return False


def read(folder: Path) -> ResultsFolder:
    """One results folder.

    Raises:
        InputError: a file is missing or damaged, or base and trained have other items.
    """
    one = folder / SCORES_FILE
    file = folder / results.SUMMARY_FILE
    file = file if file.is_file() else one
    document = results.read_json(file)
    task_type = document["task_type"]
    if not isinstance(task_type, str) or task_type not in results.FIELDS:
        raise InputError(f"{file}: unknown task_type {task_type!r}")
    models = _models(file, document)
    records = {
        side: results.read_jsonl(folder / name)
        for side, name in (("base", results.BASE_FILE), ("trained", results.TRAINED_FILE))
        if side in models
    }
    hashes = {
        side: hashing.items_sha256(rows, results.IDENTITY[task_type])
        for side, rows in records.items()
    }
    if len(set(hashes.values())) != 1:
        raise InputError(
            f"{folder}: its two models were scored on different items; see"
            f" python scripts/check_results.py {folder}"
        )
    scores = {models[side]: _scores(folder, rows, task_type) for side, rows in records.items()}
    suite = document.get("suite")
    lower = results.LOWER_IS_BETTER[task_type]
    kind: Kind = "benchmarks" if suite else "loss" if lower else "application"
    identity = identity_of(document, next(iter(hashes.values())))
    return ResultsFolder(
        path=folder,
        kind=kind,
        name=str(suite) if suite else _name(document, task_type),
        identity=identity,
        higher=not lower,
        scores=scores,
        base_model=models.get("base"),
        trained=models.get("trained"),
        records_sha256=hashing.value_sha256([scores, identity]),
        scoring_code=document.get("scoring_code_sha256"),
        cautions=tuple(_cautions(document)),
        failed_items=_failed_items(document),
    )


def _models(file: Path, document: Mapping[str, Any]) -> dict[str, str]:
    """``base`` and ``trained``, whichever the folder is about."""
    if file.name == SCORES_FILE:
        model = document.get("model")
        if not isinstance(model, str) or not model:
            raise InputError(f"{file}: it does not name its model")
        return {"trained" if model.startswith("tinker://") else "base": model}
    models = document.get("models")
    found = {side: models.get(side) if isinstance(models, dict) else None for side in SIDES}
    if not all(isinstance(name, str) and name for name in found.values()):
        raise InputError(f"{file}: it does not name its models (models.base, models.trained)")
    return {side: str(name) for side, name in found.items()}


def _scores(folder: Path, rows: Sequence[dict[str, Any]], task_type: str) -> list[float]:
    values = []
    for number, row in enumerate(rows, start=1):
        try:
            value = results.score_of(row, task_type)
        except (KeyError, TypeError, ValueError):
            value = math.nan
        if not math.isfinite(value):
            raise InputError(
                f"{folder} record {number}: no finite score; see"
                f" python scripts/check_results.py {folder}"
            )
        values.append(value)
    if not values:
        raise InputError(f"{folder}: it holds no items")
    return values


def identity_of(document: Mapping[str, Any], items_sha256: str) -> dict[str, Any]:
    """What two evaluations must share to be comparable, whichever model they are of."""
    settings = document.get("settings")
    settings = settings if isinstance(settings, dict) else {}
    models = document.get("models")
    renderer = models.get("renderer") if isinstance(models, dict) else None
    dataset = document.get("dataset")
    dataset = dataset if isinstance(dataset, dict) else {}
    return {
        "suite": document.get("suite"),
        "task_type": document.get("task_type"),
        "metric": document.get("metric"),
        "items": items_sha256,
        # Of an NLL: which tokens of the items are scored.
        "scored_tokens": dataset.get("scored_tokens_sha256"),
        "grader": _grader(document.get("grader")),
        "sampling": document.get("sampling"),
        "renderer": document.get("renderer") or renderer,
        **{name: settings.get(name) for name in _SETTINGS},
        # Of a suite: its sampling, limits and version (suite_results.SuiteRun).
        "suite_settings": {k: v for k, v in settings.items() if k != "models"}
        if document.get("suite")
        else None,
    }


def _grader(told: Any) -> Any:
    """Without what does not change a grade: where its file lies, and how long it may take."""
    if not isinstance(told, dict):
        return told
    kept = {key: value for key, value in told.items() if key not in ("path", "timeout")}
    if "path" in told:
        kept["spec"] = str(told.get("spec")).rpartition(":")[2]
    return kept


def _name(document: Mapping[str, Any], task_type: str) -> str:
    dataset = document.get("dataset")
    source = str(dataset.get("source") or dataset.get("path")) if isinstance(dataset, dict) else "?"
    source = Path(source).name if source.endswith((".jsonl", ".json")) else source
    if task_type == "sft":
        return f"NLL of {source}"
    grader = document.get("grader")
    spec = str(grader.get("spec")) if isinstance(grader, dict) else ""
    head, _, function = spec.rpartition(":")
    spec = f"{Path(head).name}:{function}" if head.endswith(".py") else spec
    return f"{source} ({spec})" if spec else source


def _failed_items(document: Mapping[str, Any]) -> int:
    """Items that a suite left out, since a request for them failed."""
    left_out = document.get("left_out")
    count = left_out.get("items") if isinstance(left_out, dict) else 0
    return count if isinstance(count, int) else 0


def _cautions(document: Mapping[str, Any]) -> list[str]:
    """Items that failed, replies that no grader could grade, or that were cut off."""
    failed = _failed_items(document)
    told = [f"{failed} items failed and are left out; the same command asks them again"]
    told = told if failed else []
    facts = document.get("facts")
    for found in facts.values() if isinstance(facts, dict) else ():
        if not isinstance(found, dict) or not found.get("replies"):
            continue
        replies, errors = found["replies"], found.get("grader_errors") or 0
        cut = found.get("truncated") or 0
        if errors:
            told.append(f"the grader failed on {errors} of {replies} replies, counted as wrong")
        if cut > MANY_TRUNCATED * replies:
            told.append(f"{cut} of {replies} replies were cut off at max_tokens")
    return list(dict.fromkeys(told))


def gather(
    folders: Sequence[ResultsFolder], checkpoints: Sequence[Checkpoint], base_model: str | None
) -> Found:
    """Match folders to checkpoints by their sampler paths, and group what is comparable."""
    names = {c.sampler_path: c.name for c in checkpoints if c.sampler_path}
    found = Found()
    groups: dict[str, list[tuple[str, ResultsFolder]]] = {}
    for folder in folders:
        name = names.get(folder.trained) if folder.trained else None
        if folder.trained is None and folder.base_model == base_model:
            name = BASE
        if name is None:
            found.left_out.append(
                f"{folder.path}: of {folder.trained or folder.base_model}, which is no checkpoint"
                " of this run"
            )
            continue
        groups.setdefault(hashing.value_sha256(folder.identity), []).append((name, folder))
        found.records[str(folder.path)] = folder.records_sha256
        found.cautions += [f"{folder.path}: {caution}" for caution in folder.cautions]
    taken = [evaluation for group in groups.values() if (evaluation := _together(group, found))]
    found.evaluations = _with_distinct_names(taken)
    return found


def _together(group: list[tuple[str, ResultsFolder]], found: Found) -> Evaluation | None:
    """The evaluation that these folders make; None if only the base model was evaluated."""
    scores: dict[str, list[float]] = {}
    folders: dict[str, Path] = {}
    bases = []
    for name, folder in group:
        if folder.base_model is not None:
            bases.append(folder.scores[folder.base_model])
        if name == BASE:
            folders.setdefault(BASE, folder.path)
        elif name in scores:
            found.left_out.append(f"{folder.path}: {name} has this result in {folders[name]}")
        else:
            scores[name], folders[name] = folder.scores[str(folder.trained)], folder.path
    first = group[0][1]
    if not scores:
        found.left_out.append(
            f"{first.path}: of the base model, with no checkpoint on the same items in the same way"
        )
        return None
    if len({folder.scoring_code for _, folder in group}) > 1:
        found.cautions.append(
            f"{first.name}: scored with different versions of the scoring code (evaluate again to"
            " be sure that they agree)"
        )
    # Several folders may hold the base model's replies, sampled anew for each: their mean.
    base = [sum(values) / len(bases) for values in zip(*bases, strict=True)] if bases else None
    return Evaluation(
        kind=first.kind,
        name=first.name,
        identity=first.identity,
        higher=first.higher,
        scores=scores,
        base=base,
        folders=folders,
        failed_items=sum(folder.failed_items for _, folder in group),
    )


def _with_distinct_names(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Numbered where two have the same name: the same file with other settings, say."""
    often = Counter(evaluation.name for evaluation in evaluations)
    seen: Counter[str] = Counter()
    named = []
    for evaluation in evaluations:
        name = evaluation.name
        seen[name] += 1
        named.append(
            replace(evaluation, name=f"{name} #{seen[name]}") if often[name] > 1 else evaluation
        )
    return named
