"""What the runs of a sweep came to, by run and by setting, and how far that may be trusted."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinkerlab.diagnosis.run_analysis import names, saved
from tinkerlab.diagnosis.run_analysis.run import Run
from tinkerlab.diagnosis.run_analysis.series import Curve
from tinkerlab.errors import InputError
from tinkerlab.sweeps.plan import Member, Plan
from tinkerlab.sweeps.runner import Outcome
from tinkerlab.watching import figures
from tinkerlab.watching.status import newest

SEED = "seed"
LOSSES_OF_TOKENS = ("nll", "loss")


@dataclass(frozen=True)
class Result:
    """One run.

    Attributes:
        curve: the deciding metric over the steps, finite values only; None without any.
        held_out: hash of the held-out items, to tell whether two runs were scored on the same.
    """

    outcome: Outcome
    steps: int
    seconds: float | None
    train: float | None
    curve: Curve | None
    held_out: str | None

    @property
    def member(self) -> Member:
        return self.outcome.member

    @property
    def final(self) -> float | None:
        """The deciding metric at the end; None unless the run is complete."""
        if self.curve is None or self.outcome.status != "complete":
            return None
        return float(self.curve.values[-1])


@dataclass(frozen=True)
class Setting:
    """The complete runs that differ in their seed alone.

    Attributes:
        finals: final value by seed (``""`` where seeds are not swept).
    """

    name: str
    settings: dict[str, str]
    finals: dict[str, float]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.finals.values())

    @property
    def spread(self) -> float | None:
        """Standard deviation over the seeds (n - 1); None of a single run."""
        return statistics.stdev(self.finals.values()) if len(self.finals) > 1 else None


@dataclass
class Results:
    """A whole sweep.

    Attributes:
        metric: what decides; None where no run logged an evaluation.
        settings: best first.
    """

    plan: Plan
    runs: list[Result]
    metric: str | None
    higher: bool
    settings: list[Setting] = field(default_factory=list)

    @property
    def best(self) -> Setting | None:
        return self.settings[0] if self.settings else None

    @property
    def failed(self) -> list[Outcome]:
        return [run.outcome for run in self.runs if run.outcome.status == "failed"]


def collect(plan: Plan, outcomes: Sequence[Outcome], metric: str | None = None) -> Results:
    """Read what every run logged, and put the settings in order.

    Raises:
        InputError: ``metric`` was named and no run logged it.
    """
    read = [_read(outcome.member.folder) for outcome in outcomes]
    logged = list(dict.fromkeys(key for run in read for key in run.metrics.keys))
    if metric is None:
        # The kind of training is told by whichever run got far enough to log an evaluation.
        found = (figures.held_out_key(run, figures.kind_of(run)) for run in read)
        metric = next((key for key in found if key), None)
    elif logged and metric not in logged:
        held_out = [key for key in logged if key.startswith(names.EVALUATION)]
        raise InputError(
            f"metric {metric!r}: no run logged it; logged: {', '.join(held_out or logged)}"
        )
    higher = metric is not None and figures.higher_is_better(metric)
    runs = [_result(outcome, run, metric) for outcome, run in zip(outcomes, read, strict=True)]
    results = Results(plan, runs, metric, higher)
    results.settings = sorted(
        _settings(results), key=lambda setting: -setting.mean if higher else setting.mean
    )
    return results


def _read(folder: Path) -> Run:
    run = Run(folder, folder)
    if folder.is_dir():
        run.read()
    return run


def _result(outcome: Outcome, run: Run, metric: str | None) -> Result:
    train = newest(run, figures.TRAINED_ON[figures.kind_of(run)], training_only=True)
    times = run.metrics.curve(names.STEP_TIME)
    curve = run.metrics.curve(metric) if metric else None
    curve = curve.finite() if curve is not None else None
    last = saved.last_step(run) if run.metrics.rows else None
    resolved = run.config.get("resolved")
    return Result(
        outcome=outcome,
        steps=0 if last is None else last + 1,
        seconds=float(times.finite().values.sum()) if times is not None else None,
        train=train.value if train and math.isfinite(train.value) else None,
        curve=curve if curve is not None and len(curve) else None,
        held_out=resolved.get("held_out_sha256") if isinstance(resolved, dict) else None,
    )


def _settings(results: Results) -> list[Setting]:
    found: dict[str, Setting] = {}
    for run in results.runs:
        if run.final is None:
            continue
        settings = {k: run.member.settings.get(k, "") for k in results.plan.swept if k != SEED}
        name = told(settings) or "all seeds"
        seed = run.member.settings.get(SEED, "") if SEED in results.plan.swept else ""
        found.setdefault(name, Setting(name, settings, {})).finals[seed] = run.final
    return list(found.values())


def told(settings: dict[str, str]) -> str:
    """``learning_rate=1e-4 lora_rank=16``."""
    return " ".join(f"{key}={value}" for key, value in settings.items() if value != "")


def verdict(results: Results) -> list[str]:
    """The best setting in one line, then everything that speaks against trusting it."""
    best = results.best
    if best is None or results.metric is None:
        complete = any(run.outcome.status == "complete" for run in results.runs)
        why = "no held-out evaluation was logged" if complete else "no run is complete"
        return [f"no best setting: {why}"]
    lines = [f"best: {best.name}  {_value(results, best)}"]
    if len(results.settings) == 1:
        return [*lines, *_caveats(results)]
    second = results.settings[1]
    gap = abs(best.mean - second.mean)
    if gap == 0:
        tied = sum(setting.mean == best.mean for setting in results.settings)
        return [
            f"tied: {tied} settings reach {_value(results, best)}, the first is {best.name};"
            " decide by another --metric, or hold out more items",
            *_caveats(results),
        ]
    lines.append(f"next: {second.name}  {_value(results, second)}, {gap:.4g} behind")
    shared = [seed for seed in best.finals if seed in second.finals]
    if SEED not in results.plan.swept:
        lines.append(
            "caution: one seed a setting, so it is unknown how much another seed would change"
            f" each figure; add seed=0,1,2 before you trust a difference of {gap:.2g}"
        )
    elif len(shared) > 1:
        ahead = [best.finals[seed] - second.finals[seed] for seed in shared]
        wins = sum((value > 0) == results.higher and value != 0 for value in ahead)
        lines.append(
            f"seed by seed, the best is ahead of the next in {wins} of {len(shared)}"
            f" (from {min(ahead):+.2g} to {max(ahead):+.2g})"
            + ("" if wins == len(shared) else ": within the noise, the two are not told apart")
        )
    return [*lines, *_caveats(results)]


def _value(results: Results, setting: Setting) -> str:
    spread = setting.spread
    around = "" if spread is None else f" ± {spread:.2g} (sd of {len(setting.finals)} seeds)"
    return f"{results.metric} {setting.mean:.4g}{around}"


def _caveats(results: Results) -> list[str]:
    lines = []
    by_seed: dict[str, set[str]] = {}
    for run in results.runs:
        if run.final is not None and run.held_out:
            by_seed.setdefault(run.member.settings.get(SEED, ""), set()).add(run.held_out)
    if any(len(hashes) > 1 for hashes in by_seed.values()):
        lines.append(
            "caution: the runs were scored on different held-out items, so their figures do not"
            " compare; set val_file to the same rows for all"
        )
    elif len({h for hashes in by_seed.values() for h in hashes}) > 1:
        lines.append("note: each seed holds out other items, so the spread includes theirs")
    if "base_model" in results.plan.swept and str(results.metric).endswith(LOSSES_OF_TOKENS):
        lines.append("caution: a loss per token does not compare between different tokenizers")
    if len(results.settings) > 1:
        lines.append(
            f"the winner of {len(results.settings)} looks better than it is: score it once more"
            " on items that chose nothing (scripts/evaluate.py)"
        )
    return lines


def as_dict(results: Results) -> dict[str, Any]:
    """Everything, for ``--json`` and ``summary.json``."""
    best = results.best
    return {
        "trainer": results.plan.trainer.script,
        "metric": results.metric,
        "higher_is_better": results.higher,
        "swept": list(results.plan.swept),
        "best": best.settings if best else None,
        "verdict": verdict(results),
        "settings": [
            {
                "settings": setting.settings,
                "mean": setting.mean,
                "sd": setting.spread,
                "runs": len(setting.finals),
            }
            for setting in results.settings
        ],
        "runs": [row(run) for run in results.runs],
    }


def row(run: Result) -> dict[str, Any]:
    """One run, flat enough for a line of a table."""
    best = step = None
    if run.curve is not None:
        higher = figures.higher_is_better(run.curve.key)
        place = int(run.curve.values.argmax() if higher else run.curve.values.argmin())
        best, step = float(run.curve.values[place]), int(run.curve.steps[place])
    first = float(run.curve.values[0]) if run.curve is not None else None
    return {
        "name": run.member.name,
        "settings": run.member.settings,
        "status": run.outcome.status,
        "final": run.final,
        "first": first,
        "best": best,
        "best_step": step,
        "train": run.train,
        "steps": run.steps,
        "seconds": None if run.seconds is None else round(run.seconds, 1),
        "exit_code": run.outcome.exit_code,
        "reason": run.outcome.reason,
        "log_path": str(run.member.folder),
    }
