"""Check files of preference pairs from end to end, as a DPO run would read them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tinkerlab.data.preference_check import TRAINED, check_pairs
from tinkerlab.data.preferences import LoadedPairs, scan_pairs, split_pairs
from tinkerlab.data.reading import LoadedData
from tinkerlab.data.renderers import resolve_renderer
from tinkerlab.data.report import DataReport, Finding
from tinkerlab.data.tokenizers import load_tokenizer, model_limits
from tinkerlab.errors import InputError

if TYPE_CHECKING:
    from tinkerlab.data.files import CheckPlan

FOR_DPO = "preference pairs: these train with scripts/dpo_trainer.py"


def check_preference_files(plan: CheckPlan) -> tuple[list[LoadedData], DataReport]:
    """Read, split, render and judge; the rows of what comes out are the chosen sides.

    Raises:
        InputError: a file that can't be read as JSON lines, no such tokenizer or renderer.
    """
    paths = [plan.train_file, *([plan.val_file] if plan.val_file else [])]
    loaded = [scan_pairs(path) for path in paths]
    files = [_as_file(path, found) for path, found in zip(paths, loaded, strict=True)]
    problems = [
        Finding(
            "bad_rows",
            f"{found.name}: {found.refused}",
            "mend these lines, or leave them out with skip_bad_rows=true (here: --skip-bad-rows)",
            [str(row) for row in found.bad],
        )
        for found in loaded
        if found.bad and not (plan.skip_bad_rows and found.pairs)
    ]
    settings = {"max_length": plan.max_seq_len, "train_on_what": TRAINED, "reduction": "none"}
    if not loaded[0].pairs:
        problems = problems or [Finding("no_rows", f"{loaded[0].name}: no usable pair", "add rows")]
        reason = "not looked for: there is nothing to render"
        report = DataReport([], [], problems, [], {}, [], "", reason, settings, [FOR_DPO])
        return files, report
    try:
        train, val, notes = split_pairs(
            loaded[0].pairs,
            loaded[1].pairs if plan.val_file else None,
            val_fraction=plan.val_fraction,
            max_train_rows=plan.max_train_rows,
            max_val_rows=plan.max_val_rows,
            seed=plan.seed,
        )
    except InputError as error:
        train, val, notes = loaded[0].pairs, [], []
        fix = "add pairs, or evaluate on a file of its own"
        problems.append(Finding("too_few_rows", str(error), fix))
    tokenizer = load_tokenizer(plan.tokenizer or plan.base_model)
    resolved = resolve_renderer(plan.base_model, tokenizer, plan.renderer)
    pairs = check_pairs(
        train,
        val,
        resolved.renderer,
        tokenizer,
        max_length=plan.max_seq_len,
        limits=model_limits(plan.base_model),
        allow_contamination=plan.allow_contamination,
        skip_bad_rows=plan.skip_bad_rows,
    )
    warnings = [Finding("renderer", text, "check renderer=...") for text in resolved.warnings]
    skipped = [f"{found.name} {row}" for found in loaded for row in found.bad if plan.skip_bad_rows]
    report = DataReport(
        train=[pair.conversation("chosen") for pair in pairs.train],
        val=[pair.conversation("chosen") for pair in pairs.val],
        problems=[*problems, *pairs.problems],
        warnings=[*warnings, *pairs.warnings],
        statistics={},
        preview=[],
        renderer=resolved.name,
        renderer_reason=resolved.reason,
        settings=settings,
        notes=[FOR_DPO, *notes, *pairs.statistics_lines()],
        dropped=[*skipped, *pairs.dropped],
    )
    return files, report


def _as_file(path: Path, found: LoadedPairs) -> LoadedData:
    rows = [pair.conversation("chosen") for pair in found.pairs]
    name = f"preference {found.format}"
    return LoadedData(Path(path), rows, found.bad, name, found.notes)
