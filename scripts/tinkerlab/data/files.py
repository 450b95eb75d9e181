"""Check data files from end to end, as a supervised run would read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinkerlab.data.check import check_dataset
from tinkerlab.data.datums import Reduction
from tinkerlab.data.preference_files import check_preference_files
from tinkerlab.data.preferences import is_preference_file
from tinkerlab.data.reading import LoadedData, scan
from tinkerlab.data.renderers import resolve_renderer
from tinkerlab.data.report import DataReport, Finding
from tinkerlab.data.splits import (
    MAX_TRAIN_ROWS,
    MAX_VAL_ROWS,
    VAL_FRACTION,
    Splits,
    make_splits,
)
from tinkerlab.data.tokenizers import load_tokenizer, model_limits
from tinkerlab.errors import InputError


@dataclass(frozen=True)
class CheckPlan:
    """What to check; the names and defaults are those of a training config.

    Attributes:
        tokenizer: folder or name to take the tokenizer from; None for the model's own.
    """

    train_file: Path
    base_model: str
    val_file: Path | None = None
    tokenizer: str | None = None
    renderer: str = "auto"
    train_on_what: str = "all_assistant_messages"
    max_seq_len: int = 2048
    reduction: Reduction = "mean"
    val_fraction: float = VAL_FRACTION
    max_train_rows: int = MAX_TRAIN_ROWS
    max_val_rows: int = MAX_VAL_ROWS
    seed: int = 0
    skip_bad_rows: bool = False
    allow_contamination: bool = False


@dataclass(frozen=True)
class FilesReport:
    """The files as read, and the report over what is usable in them."""

    files: list[LoadedData]
    report: DataReport

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``--json``; every bad row is listed."""
        files = [
            {
                "path": str(data.path),
                "format": data.format,
                "rows": len(data.rows),
                "bad_rows": [{"line": bad.line, "reason": bad.reason} for bad in data.bad],
                "notes": data.notes,
            }
            for data in self.files
        ]
        return {**self.report.to_json(), "files": files}


def check_files(plan: CheckPlan, progress: Callable[[str], None] | None = None) -> FilesReport:
    """Read, split, render and judge.

    Bad rows don't end the check: what can be said about the others is said, too. A file of
    preference pairs is checked as scripts/dpo_trainer.py would read it.

    Raises:
        InputError: a file that can't be read as JSON lines, no such tokenizer or renderer.
    """
    paths = [plan.train_file, *([plan.val_file] if plan.val_file else [])]
    if is_preference_file(plan.train_file):
        return FilesReport(*check_preference_files(plan))
    files = [scan(path, plan.train_on_what) for path in paths]
    bad = _bad_rows(files, plan.skip_bad_rows)
    if not files[0].rows:
        return FilesReport(files, _without_rows(files[0], bad, plan))

    few: list[Finding] = []
    try:
        splits = make_splits(
            files[0].rows,
            files[1].rows if plan.val_file else None,
            val_fraction=plan.val_fraction,
            max_train_rows=plan.max_train_rows,
            max_val_rows=plan.max_val_rows,
            seed=plan.seed,
        )
    except InputError as error:
        few = [Finding("too_few_rows", str(error), "add rows, or evaluate on a file of its own")]
        splits = Splits(files[0].rows, [])

    tokenizer = load_tokenizer(plan.tokenizer or plan.base_model)
    report = check_dataset(
        splits,
        resolve_renderer(plan.base_model, tokenizer, plan.renderer),
        tokenizer,
        max_length=plan.max_seq_len,
        train_on_what=plan.train_on_what,
        reduction=plan.reduction,
        limits=model_limits(plan.base_model),
        allow_contamination=plan.allow_contamination,
        skip_bad_rows=plan.skip_bad_rows,
        progress=progress,
    )
    report.problems[:0] = [*bad, *few]
    report.dropped[:0] = [
        f"{data.path.name} {row}" for data in files for row in data.bad if plan.skip_bad_rows
    ]
    return FilesReport(files, report)


def _bad_rows(files: list[LoadedData], skipped: bool) -> list[Finding]:
    return [
        Finding(
            "bad_rows",
            f"{data.path.name}: {data.refused}",
            "mend these lines, or leave them out with skip_bad_rows=true (here: --skip-bad-rows)",
            [str(row) for row in data.bad],
        )
        for data in files
        if data.bad and not (skipped and data.rows)
    ]


def _without_rows(data: LoadedData, bad: list[Finding], plan: CheckPlan) -> DataReport:
    return DataReport(
        train=[],
        val=[],
        problems=bad or [Finding("no_rows", f"{data.path.name}: no usable row", "add rows")],
        warnings=[],
        statistics={},
        preview=[],
        renderer="",
        renderer_reason="not looked for: there is nothing to render",
        settings={"max_length": plan.max_seq_len, "train_on_what": plan.train_on_what},
    )
