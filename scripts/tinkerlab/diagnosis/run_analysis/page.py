"""The analysis as one self-contained HTML page: verdict, findings, curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tinkerlab import pages
from tinkerlab.diagnosis.findings import Diagnosis
from tinkerlab.diagnosis.run_analysis import names, plots, reinforcement, timing
from tinkerlab.diagnosis.run_analysis.attempts import take_apart
from tinkerlab.diagnosis.run_analysis.run import Run
from tinkerlab.diagnosis.run_analysis.series import Curve

LINES = 3


def render(run: Run, diagnosis: Diagnosis) -> str:
    """The whole page as HTML text."""
    settings = {
        key: value
        for key, value in run.config.items()
        if isinstance(value, (str, int, float)) and not isinstance(value, bool)
    }
    values = {
        "run": run,
        "diagnosis": diagnosis,
        "name": run.path.resolve().name if run.folder else run.path.name,
        "pictures": list(pictures(run)),
        "settings": settings,
    }
    return pages.fill(Path(__file__).with_name("page.html.j2"), values)


def pictures(run: Run) -> list[dict[str, Any]]:
    """Title, key and SVG of each picture for which the run has data."""
    marks = [attempt.first for attempt in take_apart(run).listed[1:]][:12]
    wanted: list[tuple[str, Sequence[Curve | None]]] = [
        ("Loss (NLL, nats per token)", [run.loss, run.metrics.curve(names.HELD_OUT_LOSS)]),
        ("Reward", [run.metrics.curve(names.REWARD, training_only=True)]),
        ("Evaluations", reinforcement.scores(run)[:LINES]),
        ("Learning rate", [run.learning_rate]),
        ("KL between sampler and trainer", [run.metrics.curve(names.KL_SAMPLE_TRAIN)]),
        ("Entropy (nats per token)", [run.metrics.curve(names.ENTROPY)]),
        ("Tokens per reply", [run.metrics.curve(names.REPLY_TOKENS)]),
        ("Groups with unequal rewards", [run.metrics.curve(names.GROUPS_MIXED)]),
        ("Seconds per step", _times(run)),
    ]
    found = []
    for title, curves in wanted:
        shown = [curve for curve in curves if curve is not None and len(curve.finite())]
        if shown:
            keys = [curve.key for curve in shown]
            found.append({"title": title, "keys": keys, "svg": plots.draw(title, shown, marks)})
    return found


def _times(run: Run) -> Sequence[Curve]:
    """The whole step, and its two longest parts."""
    total = run.metrics.curve(names.STEP_TIME, training_only=True)
    if total is None:
        return []
    measured = timing.parts(run, total)
    longest = sorted(measured, key=lambda name: -float(measured[name].sum()))[: LINES - 1]
    return [total, *(Curve(f"time/{name}", total.steps, measured[name]) for name in longest)]
