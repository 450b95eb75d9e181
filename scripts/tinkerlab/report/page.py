"""Fill the report's template: what each value and picture of it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tinkerlab import pages
from tinkerlab.evaluation import results
from tinkerlab.report import figures, views
from tinkerlab.report.collect import ReportData


def render(data: ReportData) -> str:
    """The whole page as HTML text."""
    values = _values(data)
    values["pictures"] = {name: svg for name, svg in _pictures(data).items() if svg is not None}
    return pages.fill(Path(__file__).with_name("page.html.j2"), values, {"number": _number})


def _pictures(data: ReportData) -> dict[str, str | None]:
    lower = results.LOWER_IS_BETTER[data.task_type]
    difference = data.scores["difference"]
    unit = "change in NLL" if data.task_type == "sft" else "change in score"
    return {
        "interval": figures.interval(
            difference["mean"], difference["low"], difference["high"], lower_is_better=lower
        ),
        "curves": figures.training_curves(
            data.train_curve,
            data.held_out_curve,
            "NLL, nats per token" if data.task_type == "sft" else "reward, held out: share right",
        ),
        "changes": figures.item_changes(data.changes, lower_is_better=lower, unit=unit),
    }


def _values(data: ReportData) -> dict[str, Any]:
    """Everything that the template names."""
    base_name, trained_name = results.SCORE_NAMES[data.task_type]
    lower = results.LOWER_IS_BETTER[data.task_type]
    main_settings, other_settings = views.settings(data.config)
    sides, data_rows = views.data_table(data.data_report)
    checkpoints = views.checkpoints(data.checkpoints)
    return {
        "data": data,
        "summary": data.summary,
        "scores": data.scores,
        "is_sft": data.task_type == "sft",
        "before": data.scores[base_name],
        "after": data.scores[trained_name],
        "difference": data.scores["difference"],
        "outcome": _outcome(data),
        "improved": sum(1 for change in data.changes if change and (change < 0) == lower),
        "settings": main_settings,
        "other_settings": other_settings,
        "sides": sides,
        "data_rows": data_rows,
        "warnings": views.data_warnings(data.data_report),
        "examples": views.examples(data.examples),
        "checkpoints": checkpoints,
        "export": views.export(data.export),
        "has_train": bool(data.train_curve),
        "held_out": data.held_out_curve,
        "serving": views.serving(data.summary, data.config, checkpoints, data.export),
    }


def _outcome(data: ReportData) -> str:
    """better, worse or unclear: decides the colour of the headline."""
    difference = data.scores["difference"]
    if difference["includes_zero"]:
        return "unclear"
    lower = results.LOWER_IS_BETTER[data.task_type]
    return "better" if (difference["mean"] < 0) == lower else "worse"


def _number(value: Any) -> str:
    """A number as a reader wants it; anything else as it is."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, (int, float)):
        return "–" if value is None else str(value)
    if isinstance(value, int):
        return f"{value:,}".replace(",", "\u202f")
    return f"{value:.4g}" if abs(value) >= 1e-3 or not value else f"{value:.1e}"
