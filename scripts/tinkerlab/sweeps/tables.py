"""A sweep's results as files, and as a table on the terminal."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

from tinkerlab import cli
from tinkerlab.runs import jsonl
from tinkerlab.sweeps.results import SEED, Results, as_dict, row

if TYPE_CHECKING:
    from rich.table import Table

CSV, JSON, PLOT = "table.csv", "summary.json", "sweep.png"
_COLUMNS = ("status", "final", "first", "best", "best_step", "train", "steps", "seconds")


def write(results: Results) -> None:
    """``table.csv``, ``summary.json`` and ``sweep.png`` in the sweep's folder."""
    output = results.plan.output
    jsonl.write_atomically(output / CSV, as_csv(results).encode())
    document = json.dumps(as_dict(results), indent=2, ensure_ascii=False) + "\n"
    jsonl.write_atomically(output / JSON, cli.redact(document).encode())
    if any(run.curve is not None for run in results.runs):
        from tinkerlab.sweeps.plot import draw

        jsonl.write_atomically(output / PLOT, draw(results))


def as_csv(results: Results) -> str:
    """One line a run, in the plan's order; the deciding metric is ``final``."""
    swept = results.plan.swept
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["name", *swept, *_COLUMNS, "metric", "log_path"])
    for run in results.runs:
        values = row(run)
        settings = [run.member.settings.get(key, "") for key in swept]
        cells = ["" if values[key] is None else values[key] for key in _COLUMNS]
        writer.writerow(
            [values["name"], *settings, *cells, results.metric or "", values["log_path"]]
        )
    return buffer.getvalue()


def runs_table(results: Results) -> Table:
    """The runs, best first, then those without a result."""
    from rich.table import Table

    swept = results.plan.swept
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for key in swept:
        table.add_column(key, overflow="fold")
    for title in (results.metric or "held out", "at its best", "train", "steps", "status"):
        table.add_column(title, justify="left" if title == "status" else "right", overflow="fold")
    best = results.best
    for run in sorted(results.runs, key=lambda run: _rank(results, run.final)):
        values = row(run)
        settings = {k: run.member.settings.get(k, "") for k in swept if k != SEED}
        won = best is not None and run.final is not None and settings == best.settings
        at_best = _number(values["best"])
        if values["best_step"] is not None:
            at_best += f" @{values['best_step']}"
        status = "done before" if run.outcome.skipped else values["status"]
        table.add_row(
            *(cli.redact(run.member.settings.get(key, "")) for key in swept),
            _number(run.final),
            at_best,
            _number(values["train"]),
            str(values["steps"]),
            status,
            style="bold green" if won else None,
        )
    return table


def settings_table(results: Results) -> Table | None:
    """Mean and spread over the seeds of each setting; None where seeds are not swept."""
    from rich.table import Table

    if SEED not in results.plan.swept or not results.settings:
        return None
    keys = [key for key in results.plan.swept if key != SEED]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for key in keys:
        table.add_column(key, overflow="fold")
    for title in (f"mean {results.metric}", "sd", "seeds"):
        table.add_column(title, justify="right")
    for place, setting in enumerate(results.settings):
        table.add_row(
            *(setting.settings[key] for key in keys),
            _number(setting.mean),
            _number(setting.spread),
            str(len(setting.finals)),
            style="bold green" if place == 0 else None,
        )
    return table


def _rank(results: Results, final: float | None) -> tuple[bool, float]:
    return final is None, 0.0 if final is None else (-final if results.higher else final)


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}"
