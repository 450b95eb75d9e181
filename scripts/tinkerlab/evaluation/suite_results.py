"""A public suite's outcome as a results folder of ours, whoever ran the suite.

Two models: ``base_model.jsonl``, ``trained_model.jsonl`` and ``summary.json`` by the contract that
``checking`` checks. One model: its records and ``scores.json``, as ``offline`` leaves them. Both
carry ``suite``, such as ``cookbook:gsm8k``, which marks a public benchmark: the choice of a
checkpoint weighs those otherwise than an application's own items.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinkerlab.errors import CheckFailed
from tinkerlab.evaluation import hashing, offline_records, results
from tinkerlab.runs import provenance

ITEMS_FILE = "items.jsonl"
SCORES_FILE = "scores.json"
FILES = {"base": results.BASE_FILE, "trained": results.TRAINED_FILE}


@dataclass(frozen=True)
class SuiteItem:
    """One model's outcome on one item of a suite.

    Attributes:
        id: the suite's own name of the item, the same for every model.
        correct: a share in 0..1.
        extracted: the answer that the suite's scorer found, if it says.
        error: why the item has no outcome (a failed request, a timeout); it is left out then.
        truncated: the reply used up its tokens; None where the suite cannot tell.
        unparsed: the reply had not the form that the model's renderer reads; None as above.
    """

    id: str
    question: str
    ground_truth: str
    completion: str
    correct: bool | float
    extracted: str | None = None
    error: str | None = None
    truncated: bool | None = None
    unparsed: bool | None = None


@dataclass(frozen=True)
class SuiteRun:
    """What was run.

    Attributes:
        suite: ``cookbook:NAME`` or ``inspect:NAME``.
        models: ``base`` and ``trained``, whichever were run, by name or sampler path.
        source: where the items come from.
        settings: what makes this evaluation this one (sampling, limits, versions of the suite).
        log_path: the run's folder, if there is one.
        extra: further keys of the summary.
    """

    suite: str
    models: Mapping[str, str]
    base_model: str
    renderer: str
    source: str
    settings: Mapping[str, Any]
    seed: int = 0
    log_path: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


def write(output: Path, run: SuiteRun, found: Mapping[str, Sequence[SuiteItem]]) -> dict[str, Any]:
    """Write the folder and return its summary.

    Items that some model has no outcome for, or that the models were asked differently, are left
    out of every model's file, so that what remains is compared on equal terms; how many, and why,
    is in ``left_out``. Results of the same names are replaced: the caller has seen to it that they
    may be.

    Args:
        found: by the keys of ``run.models``, each item once, in the suite's order.

    Raises:
        CheckFailed: no item is left; an item is there twice.
    """
    kept, left_out = _common(run.suite, found)
    if not kept:
        reasons = "; ".join(sorted(set(left_out.values()))[:3])
        raise CheckFailed(
            f"{run.suite}: no item has an outcome for every model ({reasons or 'there are none'})"
        )
    tables = {key: _by_id(run.suite, items) for key, items in found.items()}
    records = {
        key: [_record(index, table[name]) for index, name in enumerate(kept)]
        for key, table in tables.items()
    }
    forget(output)
    first = next(iter(records.values()))
    results.write_jsonl(
        output / ITEMS_FILE,
        (
            {"index": r["index"], "prompt": r["question"], "answer": r["ground_truth"]}
            for r in first
        ),
    )
    dataset = {
        "path": ITEMS_FILE,
        "source": run.source,
        "sha256": provenance.file_sha256(output / ITEMS_FILE),
    }
    summary = _summary(run, records, dataset)
    summary |= {
        "suite": run.suite,
        "scoring_code_sha256": hashing.code_sha256(run.suite),
        "settings": dict(run.settings),
        "left_out": {"items": len(left_out), "reasons": _counted(left_out)},
        "facts": {key: _facts(items) for key, items in found.items()},
        **run.extra,
    }
    for key, rows in records.items():
        results.write_jsonl(output / FILES[key], rows)
    # The summary last: where it stands, everything that it speaks of is there.
    file = results.SUMMARY_FILE if len(records) == 2 else SCORES_FILE
    results.write_json(output / file, summary)
    return summary


def forget(output: Path) -> None:
    """Remove what ``write`` makes, summaries first: none of them may speak of other files."""
    for name in (results.SUMMARY_FILE, SCORES_FILE, *FILES.values(), ITEMS_FILE):
        (output / name).unlink(missing_ok=True)


def _common(
    suite: str, found: Mapping[str, Sequence[SuiteItem]]
) -> tuple[list[str], dict[str, str]]:
    """Ids with an outcome of every model, in the first model's order; the others with a reason."""
    tables = {key: _by_id(suite, items) for key, items in found.items()}
    names = list(dict.fromkeys(name for table in tables.values() for name in table))
    left_out: dict[str, str] = {}
    for name in names:
        asked = set()
        for key, table in tables.items():
            item = table.get(name)
            if item is None:
                left_out[name] = f"not run by {key}"
            elif item.error is not None:
                left_out[name] = f"{key}: {item.error}"
            else:
                asked.add((item.question, item.ground_truth))
        if len(asked) > 1:
            left_out[name] = "the models were asked different things"
    return [name for name in names if name not in left_out], left_out


def _by_id(suite: str, items: Sequence[SuiteItem]) -> dict[str, SuiteItem]:
    table = {item.id: item for item in items}
    if len(table) != len(items):
        twice = next(item.id for n, item in enumerate(items) if table[item.id] is not items[n])
        raise CheckFailed(f"{suite}: item {twice} is there more than once; its ids must differ")
    return table


def _record(index: int, item: SuiteItem) -> dict[str, Any]:
    record: dict[str, Any] = {
        "index": index,
        "question": item.question,
        "ground_truth": item.ground_truth,
        "completion": item.completion,
        "extracted_answer": item.extracted,
        "correct": item.correct,
        "id": item.id,
    }
    for name in ("truncated", "unparsed"):
        if getattr(item, name) is not None:
            record[name] = getattr(item, name)
    return record


def _summary(
    run: SuiteRun, records: Mapping[str, list[dict[str, Any]]], dataset: dict[str, Any]
) -> dict[str, Any]:
    if len(records) == 2:
        return results.summarise(
            "rl",
            records["base"],
            records["trained"],
            seed=run.seed,
            models={**run.models, "renderer": run.renderer},
            dataset=dataset,
            log_path=run.log_path,
        )
    ((key, rows),) = records.items()
    return {
        "task_type": "rl",
        "model": run.models[key],
        "base_model": run.base_model,
        "renderer": run.renderer,
        **offline_records.single_score(rows, run.seed),
        "dataset": {
            **dataset,
            "items": len(rows),
            "items_sha256": hashing.items_sha256(rows, results.IDENTITY["rl"]),
        },
        "seed": run.seed,
        "versions": provenance.versions(),
        "git_commit": provenance.git_commit(Path(__file__).parent),
    }


def _facts(items: Sequence[SuiteItem]) -> dict[str, Any]:
    """Of all items, also those that are left out; counts are None where the suite can't tell."""

    def how_many(name: str) -> int | None:
        told = [getattr(item, name) for item in items if getattr(item, name) is not None]
        return sum(told) if told else None

    return {
        "items": len(items),
        "replies": sum(item.error is None for item in items),
        "errors": sum(item.error is not None for item in items),
        "first_error": next((item.error for item in items if item.error), None),
        "truncated": how_many("truncated"),
        "unparsed": how_many("unparsed"),
        "empty": sum(not item.completion for item in items if item.error is None),
    }


def _counted(reasons: Mapping[str, str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for reason in reasons.values():
        short = reason[:200]
        counts[short] = counts.get(short, 0) + 1
    return counts
