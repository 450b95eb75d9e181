"""Every rule that a ``results/`` folder must obey. Each finding names its rule.

The checker recomputes what the summary claims from the records, so that a number cannot be
edited, and a file cannot be swapped, without a finding. It needs no model and no service.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tinkerlab.errors import InputError
from tinkerlab.evaluation import hashing, results
from tinkerlab.runs import jsonl, provenance

# Numbers survive JSON exactly, but a mean may be summed in another order elsewhere.
TOLERANCE = 1e-6
SUMMARY_FIELDS: dict[str, tuple[type, ...]] = {
    "task_type": (str,),
    "tinker_run_id": (str,),
    "log_path": (str,),
    "wandb_url": (str, type(None)),
    "scores": (dict,),
    "models": (dict,),
    "dataset": (dict,),
    "seed": (int,),
    "scoring_code_sha256": (str,),
    "versions": (dict,),
    "git_commit": (str, type(None)),
}


@dataclass(frozen=True)
class Finding:
    """One broken rule: which, where, what is wrong, and what to do about it."""

    rule: str
    where: str
    what: str
    fix: str


@dataclass
class Verdict:
    """What a check found. ``ok`` only when something was checked and nothing is wrong."""

    folder: str
    task_type: str | None = None
    items: int = 0
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.findings and self.items > 0

    def add(self, rule: str, where: str, what: str, fix: str) -> None:
        self.findings.append(Finding(rule, where, what, fix))

    def as_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "folder": self.folder,
            "task_type": self.task_type,
            "items": self.items,
            "findings": [asdict(finding) for finding in self.findings],
            "notes": self.notes,
        }


AGAIN = "run evaluate.py again on a new --output folder"


def check_results(folder: Path) -> Verdict:
    """Check a results folder against the contract.

    Raises:
        InputError: the folder itself is missing or is not a folder.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: give the --output folder of evaluate.py")
    verdict = Verdict(folder=str(folder))
    summary = _check_summary(folder, verdict)
    if summary is None or verdict.task_type is None:
        return verdict
    verdict.summary = summary
    base = _check_records(folder / results.BASE_FILE, verdict)
    trained = _check_records(folder / results.TRAINED_FILE, verdict)
    if base is not None and trained is not None:
        verdict.items = min(len(base), len(trained))
        _check_same_items(base, trained, verdict)
        if not verdict.findings:
            _check_numbers(summary, base, trained, verdict)
            _check_items_hash(summary, base, verdict)
    _check_dataset(folder, summary, verdict)
    _check_logs(folder, summary, verdict)
    _check_examples(folder, base, verdict)
    if summary.get("scoring_code_sha256") != hashing.code_sha256(summary.get("suite")):
        verdict.notes.append(
            "scored with another version of the scoring code than this one: compare its "
            "numbers only with results of that version"
        )
    return verdict


def _check_summary(folder: Path, verdict: Verdict) -> dict[str, Any] | None:
    path = folder / results.SUMMARY_FILE
    if not path.is_file():
        verdict.add("summary-missing", path.name, "there is no summary.json", AGAIN)
        return None
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        verdict.add("summary-not-json", path.name, f"not JSON: {error}", AGAIN)
        return None
    if not isinstance(summary, dict):
        verdict.add("summary-not-json", path.name, "not a JSON object", AGAIN)
        return None
    for name, types in SUMMARY_FIELDS.items():
        value = summary.get(name)
        if name not in summary:
            verdict.add("summary-field", path.name, f"field {name!r} is missing", AGAIN)
        elif not isinstance(value, types) or isinstance(value, bool):
            verdict.add("summary-field", path.name, f"field {name!r} has a wrong type", AGAIN)
        elif isinstance(value, str) and not value:
            verdict.add("summary-field", path.name, f"field {name!r} is empty", AGAIN)
    if isinstance(summary.get("seed"), int) and summary["seed"] < 0:
        verdict.add("summary-field", path.name, "field 'seed' is negative", AGAIN)
    for part, names in {"models": ("base", "trained"), "dataset": ("path", "sha256")}.items():
        holder = summary.get(part)
        for name in names:
            if isinstance(holder, dict) and not isinstance(holder.get(name), str):
                verdict.add("summary-field", path.name, f"field {part}.{name} is missing", AGAIN)
    task_type = summary.get("task_type")
    if not isinstance(task_type, str) or task_type not in results.FIELDS:
        verdict.add(
            "task-type",
            path.name,
            f"task_type is {task_type!r}",
            f"it must be one of {', '.join(results.FIELDS)}",
        )
        return summary
    verdict.task_type = task_type
    for name in results.SCORE_NAMES[task_type]:
        if not _is_number(summary.get(name)):
            verdict.add("summary-field", path.name, f"{name!r} is not a finite number", AGAIN)
    return summary


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _check_records(path: Path, verdict: Verdict) -> list[dict[str, Any]] | None:
    """Read one record file strictly; None when it is not there to be compared."""
    task_type = verdict.task_type
    assert task_type is not None
    if not path.is_file():
        verdict.add("file-missing", path.name, "the file is missing", AGAIN)
        return None
    records: list[dict[str, Any]] = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        where = f"{path.name}:{number}"
        try:
            record = json.loads(line)
        except ValueError:
            verdict.add("line-not-json", where, "not JSON", AGAIN)
            continue
        if not isinstance(record, dict):
            verdict.add("line-not-json", where, "not a JSON object", AGAIN)
            continue
        _check_record(record, where, task_type, verdict)
        records.append(record)
    if not records:
        verdict.add("no-items", path.name, "no items were scored", AGAIN)
    seen: dict[Any, int] = {}
    for position, record in enumerate(records):
        index = record.get("index")
        if isinstance(index, int) and index in seen:
            what = f"item index {index} is there twice (records {seen[index] + 1}, {position + 1})"
            verdict.add("item-duplicated", path.name, what, AGAIN)
        seen[index if isinstance(index, int) else repr(index)] = position
    return records


def _check_record(record: dict[str, Any], where: str, task_type: str, verdict: Verdict) -> None:
    for name, types in results.FIELDS[task_type].items():
        value = record.get(name)
        if name not in record:
            verdict.add("item-field", where, f"field {name!r} is missing", AGAIN)
        elif not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            verdict.add("item-field", where, f"field {name!r} is a {type(value).__name__}", AGAIN)
        elif isinstance(value, float) and not math.isfinite(value):
            verdict.add(
                "not-finite", where, f"field {name!r} is {value}", "find out why the model failed"
            )
    if (
        task_type == "rl"
        and _is_number(record.get("correct"))
        and not (0 <= record["correct"] <= 1)
    ):
        verdict.add("item-range", where, f"correct is {record['correct']}", "it must be in 0..1")
    if task_type == "sft":
        nll = record.get("nll")
        if _is_number(nll) and nll < -TOLERANCE:  # pyright: ignore[reportOptionalOperand]
            verdict.add("item-range", where, f"nll is {nll}", "an NLL cannot be negative")
        tokens = record.get("num_tokens", 1)
        if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
            verdict.add("item-range", where, f"num_tokens is {tokens!r}", AGAIN)


def _check_same_items(
    base: list[dict[str, Any]], trained: list[dict[str, Any]], verdict: Verdict
) -> None:
    """Both files hold the same items in the same order."""
    assert verdict.task_type is not None
    identity = results.IDENTITY[verdict.task_type]
    base_indices = [repr(record.get("index")) for record in base]
    trained_indices = [repr(record.get("index")) for record in trained]
    for names, other, file in (
        (base_indices, set(trained_indices), results.TRAINED_FILE),
        (trained_indices, set(base_indices), results.BASE_FILE),
    ):
        absent = [name for name in names if name not in other]
        if absent:
            listed = ", ".join(absent[:5]) + (", ..." if len(absent) > 5 else "")
            verdict.add("item-missing", file, f"{len(absent)} items missing: index {listed}", AGAIN)
    if sorted(base_indices) == sorted(trained_indices) and base_indices != trained_indices:
        position = next(
            i for i, (a, b) in enumerate(zip(base_indices, trained_indices, strict=True)) if a != b
        )
        verdict.add(
            "item-order",
            results.TRAINED_FILE,
            f"the items stand in another order from record {position + 1} on",
            "both files must list the items in the same order",
        )
    by_index = {repr(record.get("index")): record for record in base}
    for position, record in enumerate(trained, start=1):
        twin = by_index.get(repr(record.get("index")))
        compared = identity + (("num_tokens",) if verdict.task_type == "sft" else ())
        different = [n for n in compared if twin is not None and twin.get(n) != record.get(n)]
        if different:
            verdict.add(
                "item-mismatch",
                f"{results.TRAINED_FILE}:{position}",
                f"item {record.get('index')!r}: {', '.join(different)} differs from the base file",
                "score both models on the same items",
            )


def _check_numbers(
    summary: dict[str, Any],
    base: list[dict[str, Any]],
    trained: list[dict[str, Any]],
    verdict: Verdict,
) -> None:
    """The summary's numbers follow from the records."""
    assert verdict.task_type is not None
    expected = results.scores(verdict.task_type, base, trained, seed=summary["seed"])
    claimed = {name: summary.get(name) for name in results.SCORE_NAMES[verdict.task_type]}
    claimed.update(summary["scores"])
    for name, want, got in _leaves(expected, claimed):
        if isinstance(want, float) and _is_number(got):
            same = abs(want - got) <= TOLERANCE
        else:
            same = want == got
        if not same:
            verdict.add(
                "summary-number",
                results.SUMMARY_FILE,
                f"{name} is {got!r}, but the records give {want!r}",
                AGAIN,
            )


def _leaves(want: Any, got: Any, name: str = "") -> list[tuple[str, Any, Any]]:
    """Pairs of (dotted name, wanted, found) for every value in ``want``."""
    if not isinstance(want, dict):
        return [(name, want, got)]
    pairs = []
    for key, value in want.items():
        inner = got.get(key) if isinstance(got, dict) else None
        pairs += _leaves(value, inner, f"{name}.{key}" if name else key)
    return pairs


def _check_items_hash(
    summary: dict[str, Any], base: list[dict[str, Any]], verdict: Verdict
) -> None:
    assert verdict.task_type is not None
    claimed = summary["dataset"].get("items_sha256")
    if claimed != hashing.items_sha256(base, results.IDENTITY[verdict.task_type]):
        verdict.add(
            "items-hash",
            results.SUMMARY_FILE,
            "dataset.items_sha256 is not the hash of the items in the files",
            AGAIN,
        )
    if summary["dataset"].get("items") != len(base):
        verdict.add("items-hash", results.SUMMARY_FILE, "dataset.items is not their number", AGAIN)


def _check_dataset(folder: Path, summary: dict[str, Any], verdict: Verdict) -> None:
    """The evaluation file and the user's own grader, where they can still be found, are those
    that scored.
    """
    for part, rule, what in (
        ("dataset", "dataset-hash", "the evaluation file"),
        ("grader", "grader-hash", "the grader"),
    ):
        used = summary.get(part)
        if not isinstance(used, dict) or not isinstance(used.get("path"), str):
            continue
        named = Path(used["path"]).expanduser()
        found = next((p for p in (named, folder / named) if p.is_file()), None)
        if found is None:
            verdict.notes.append(f"{named} is not here, so its hash was not compared")
        elif provenance.file_sha256(found) != used.get("sha256"):
            verdict.add(
                rule,
                str(named),
                f"{what} is not the one that was used (another SHA-256)",
                "restore the file, or score again",
            )


def _check_logs(folder: Path, summary: dict[str, Any], verdict: Verdict) -> None:
    """A run's logs are there, with the three files that explain it."""
    logs = folder / results.LOGS_FOLDER
    runs = sorted(path for path in logs.iterdir() if path.is_dir()) if logs.is_dir() else []
    fix = "run evaluate.py with --run LOG_PATH, which copies them"
    if not runs:
        verdict.add("logs-missing", f"{results.LOGS_FOLDER}/", "no run's logs are there", fix)
    for run in runs:
        for name in ("metrics.jsonl", "config.json", "checkpoints.jsonl"):
            path = run / name
            where = f"{results.LOGS_FOLDER}/{run.name}/{name}"
            if not path.is_file() or not path.stat().st_size:
                verdict.add("logs-missing", where, "the file is missing or empty", fix)
    trained = (summary.get("models") or {}).get("trained")
    run_id = summary.get("tinker_run_id")
    if runs and isinstance(trained, str) and not any(_lists(run, trained) for run in runs):
        verdict.notes.append(f"no run in {results.LOGS_FOLDER}/ lists the checkpoint {trained}")
    if isinstance(trained, str) and isinstance(run_id, str):
        try:
            matches = results.run_id_of(trained) == run_id
        except InputError:
            matches = False
        if not matches:
            verdict.add(
                "run-id",
                results.SUMMARY_FILE,
                f"tinker_run_id {run_id!r} is not the run of models.trained {trained!r}",
                AGAIN,
            )


def _lists(run: Path, sampler_path: str) -> bool:
    """Whether the run's checkpoints name this one."""
    try:
        records = jsonl.read(run / "checkpoints.jsonl")
    except InputError:
        return False
    return any(record.get("sampler_path") == sampler_path for record in records)


def _check_examples(folder: Path, base: list[dict[str, Any]] | None, verdict: Verdict) -> None:
    """Examples, where there are any, are about scored items."""
    path = folder / results.EXAMPLES_FILE
    if not path.is_file() or base is None or verdict.task_type != "sft":
        return
    try:
        examples = results.read_jsonl(path)
    except InputError as error:
        verdict.add("examples", path.name, str(error), AGAIN)
        return
    prompts = {repr(record.get("index")): record.get("prompt") for record in base}
    for example in examples:
        if prompts.get(repr(example.get("index"))) != example.get("prompt"):
            verdict.add(
                "examples",
                path.name,
                f"the example with index {example.get('index')!r} is not a scored item",
                AGAIN,
            )
