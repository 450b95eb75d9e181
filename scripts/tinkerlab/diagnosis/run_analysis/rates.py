"""Findings about the learning rate: not as configured, or far from the formula."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tinkerlab.diagnosis.findings import Finding
from tinkerlab.diagnosis.run_analysis import losses, thresholds
from tinkerlab.diagnosis.run_analysis.run import Run

if TYPE_CHECKING:
    import numpy as np

    from tinkerlab.diagnosis.run_analysis.series import Curve


def check(run: Run) -> Iterator[Finding]:
    """All findings about the learning rate."""
    rate = run.learning_rate
    if rate is None:
        return
    rate = rate.finite()
    if not len(rate):
        return
    yield from too_high(run, rate)
    yield from not_as_configured(run, rate)


def too_high(run: Run, rate: Curve) -> Iterator[Finding]:
    """A peak far above tinker-cookbook's formula for the model.

    For a model without a formula, or an unknown one, only a run that really diverges is told.
    """
    import numpy as np

    peak = float(rate.values.max())
    if peak <= thresholds.LR_OVER_FORMULA * thresholds.SMALLEST_FORMULA_LR:
        return
    loss = run.loss
    broken = loss is not None and (
        losses.has_diverged(loss.finite().values) or not np.isfinite(loss.values).all()
    )
    recommended = formula(run.model) if run.model else None
    if recommended is not None:
        name, limit = f"get_lr({run.model!r})", recommended
    elif broken:
        name = "the largest get_lr of any model in tinker-cookbook's table"
        limit = thresholds.LARGEST_FORMULA_LR
    else:
        return
    if peak <= thresholds.LR_OVER_FORMULA * limit:
        return
    yield Finding(
        cause="lr-too-high",
        what=f"the learning rate {peak:.3g} is {peak / limit:.1f} times the recommended one"
        + ("" if recommended else " (that of the model with the largest)"),
        where=f"step {int(rate.steps[int(rate.values.argmax())])}",
        evidence=(
            f"{rate.key}: {peak:.4g} at its highest",
            f"{name}: {limit:.3g}",
            *(("the training loss diverged with it",) if broken else ()),
        ),
        fix=f"use about {limit:.2g} (tinker_cookbook.hyperparam_utils.get_lr), which is meant"
        " for LoRA and for loss weights that sum to 1 per example",
        severity="problem" if broken else "warning",
    )


def formula(model: str) -> float | None:
    """``get_lr`` of the model; None when the cookbook has no formula or does not know its size."""
    # An unknown model's size would be asked of the hub, which a diagnosis must not wait for.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from tinker_cookbook.exceptions import ConfigurationError
    from tinker_cookbook.hyperparam_utils import get_lr

    try:
        return float(get_lr(model))
    except (ConfigurationError, NotImplementedError, OSError, ValueError):
        return None


def not_as_configured(run: Run, rate: Curve) -> Iterator[Finding]:
    """A course of the learning rate that the config does not give."""
    import numpy as np

    wanted_peak = run.setting("learning_rate")  # None where it says "auto"
    schedule = run.config.get("lr_schedule")
    if run.is_rl and schedule is None:
        schedule = "constant"  # tinker_cookbook/rl/train.py logs config.learning_rate itself
    if schedule not in ("linear", "cosine", "constant"):
        return
    warm_up = int(run.setting("warmup_steps") or 0)
    closest: tuple[float, np.ndarray] | None = None
    for total in _totals(run, rate):
        course = expected_course(rate.steps, total, schedule, warm_up)
        peak = wanted_peak
        if peak is None:  # the course is checked, the height is the run's own
            top = int(np.argmax(course))
            peak = float(rate.values[top] / max(course[top], 1e-12))
        expected = peak * course
        error = float(np.abs(expected - rate.values).max() / max(abs(peak), 1e-12))
        if closest is None or error < closest[0]:
            closest = (error, expected)
    if closest is None or closest[0] <= thresholds.LR_TOLERANCE:
        return
    _, expected = closest
    worst = int(np.abs(expected - rate.values).argmax())
    first = int(np.flatnonzero(np.abs(expected - rate.values) > 0.01 * expected.max())[0])
    yield Finding(
        cause="lr-not-as-configured",
        what=f"the learning rate at step {int(rate.steps[worst])} is {rate.values[worst]:.3g},"
        f" the config gives {expected[worst]:.3g}",
        where=f"from step {int(rate.steps[first])}",
        evidence=(
            f"config.json: learning_rate {run.config.get('learning_rate')}, {schedule},"
            f" warm-up {warm_up} steps",
            f"{rate.key} logged: {_few(rate.values)}",
            f"by the config: {_few(expected)}",
        ),
        fix="find what overrides it (a second schedule, a resume with another config or another"
        " total number of steps), then go on from the last checkpoint before that step",
    )


def expected_course(steps: np.ndarray, total: int, schedule: str, warm_up: int = 0) -> np.ndarray:
    """[n] multiplier of the peak: linear warm-up, then tinker-cookbook's schedule.

    The formulas are those of ``tinker_cookbook.utils.lr_scheduling`` over whole arrays; a test
    holds them against it.
    """
    import numpy as np

    share = np.clip((steps - warm_up) / max(total - warm_up, 1), 0, 1)
    if schedule == "linear":
        course = 1 - share
    elif schedule == "cosine":
        course = 0.5 * (1 + np.cos(np.pi * share))
    else:
        course = np.ones(len(steps))
    return np.where(steps < warm_up, (steps + 1) / (warm_up + 1), course)


def _totals(run: Run, rate: Curve) -> list[int]:
    """How many steps the run may have been planned for, by all that tells of it."""
    totals: set[int] = set()
    for key in ("num_steps", "max_steps", "total_steps"):
        value = run.setting(key)
        if value:
            totals.add(int(value))
    progress = run.progress
    if progress is not None:
        for step, value in zip(progress.steps[-3:], progress.values[-3:], strict=True):
            if value > 0:
                totals.update((round((step + 1) / value), round(step / value)))
    elif not totals:
        totals.add(int(rate.steps[-1]) + 1)
    return sorted(total for total in totals if total > 0)


def _few(values: np.ndarray) -> str:
    import numpy as np

    places = np.unique(np.linspace(0, len(values) - 1, min(6, len(values))).astype(int))
    return ", ".join(f"{values[place]:.3g}" for place in places)
