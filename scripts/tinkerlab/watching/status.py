"""Where one run stands: its state, its step, its figures, and what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tinkerlab.diagnosis.findings import Finding
from tinkerlab.diagnosis.run_analysis import names, saved
from tinkerlab.diagnosis.run_analysis.run import Run
from tinkerlab.watching import figures

if TYPE_CHECKING:
    from tinkerlab.diagnosis.run_analysis.series import Curve

State = Literal["waiting", "starting", "running", "finished", "stalled", "stopped", "unreadable"]
ENDED: tuple[State, ...] = ("finished", "stalled", "stopped", "unreadable")
GOES_ON: tuple[State, ...] = ("starting", "running")

STALLED_AFTER = 600.0  # seconds of silence, and ...
STALLED_STEPS = 5  # ... times the longest step so far: evaluations and saves are long steps
GONE_AFTER = 6  # times that: where no lock tells, a process that is silent so long has ended
RECENT = 20  # steps whose mean time is the pace


@dataclass(frozen=True)
class Figure:
    """A metric's newest value.

    Attributes:
        first: its first value; the change since the start is ``value - first``.
    """

    key: str
    value: float
    step: int
    first: float | None = None

    @property
    def label(self) -> str:
        return figures.label(self.key)

    @property
    def change(self) -> float | None:
        return None if self.first is None else self.value - self.first

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which has no NaN: that is None, with the metric still named."""
        return {
            "key": self.key,
            "value": _finite(self.value),
            "step": self.step,
            "first": _finite(self.first),
            "change": _finite(self.change),
        }


@dataclass(frozen=True)
class Status:
    """One run at one moment.

    Attributes:
        reason: why it is stopped, stalled or unreadable; "" otherwise.
        idle: seconds since anything was written.
        done, total: optimizer steps; ``total`` is None where nothing tells it.
        seconds_per_step: mean of the last ``RECENT`` steps.
        eta: seconds to the last step, only of a run that goes on.
    """

    name: str
    path: str
    state: State
    reason: str = ""
    kind: figures.Kind = "sft"
    idle: float | None = None
    done: int = 0
    total: int | None = None
    train: Figure | None = None
    held_out: Figure | None = None
    kl: Figure | None = None
    entropy: Figure | None = None
    seconds_per_step: float | None = None
    eta: float | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def needs_attention(self) -> bool:
        """A serious warning, or a run that ended without finishing."""
        broken = self.state in ENDED and self.state != "finished"
        return broken or any(finding.severity == "problem" for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        def figure(value: Figure | None) -> dict[str, Any] | None:
            return value.as_dict() if value else None

        return {
            "name": self.name,
            "path": self.path,
            "kind": self.kind,
            "state": self.state,
            "reason": self.reason,
            "idle_seconds": _rounded(self.idle),
            "steps": self.done,
            "total_steps": self.total,
            "train": figure(self.train),
            "held_out": figure(self.held_out),
            "kl_sample_train": figure(self.kl),
            "entropy": figure(self.entropy),
            "seconds_per_step": _rounded(self.seconds_per_step),
            "eta_seconds": _rounded(self.eta),
            "needs_attention": self.needs_attention,
            "findings": [finding.as_dict() for finding in self.findings],
        }


def status_of(
    run: Run,
    name: str,
    *,
    idle: float,
    grew: bool,
    stalled_after: float | None,
    findings: Sequence[Finding] = (),
) -> Status:
    """The status of a run that has been read.

    Args:
        idle: seconds since the newest of the run's own files was written.
        grew: whether it wrote rows since it was last looked at.
        stalled_after: seconds of silence that are a stall; None for ``STALLED_AFTER`` or, if
            that is longer, ``STALLED_STEPS`` of the run's longest steps.
    """
    kind = figures.kind_of(run)
    pace, longest = step_times(run)
    limit = stalled_after or max(STALLED_AFTER, STALLED_STEPS * (longest or 0.0))
    state, reason = state_of(run, idle=idle, grew=grew, limit=limit)
    last, total = saved.last_step(run), total_steps(run)
    done = 0 if last is None or not run.metrics.rows else last + 1
    held_out = figures.held_out_key(run, kind)
    going_on = state in GOES_ON and total is not None and pace is not None and done
    if state in GOES_ON:
        # Between a run's last row and its final save there is nothing missing yet.
        findings = [f for f in findings if f.cause != "final-checkpoint-missing"]
    return Status(
        name=name,
        path=str(run.path),
        state=state,
        reason=reason,
        kind=kind,
        idle=idle,
        done=done if total is None else min(done, total),
        total=total,
        train=newest(run, figures.TRAINED_ON[kind], training_only=True),
        held_out=newest(run, (held_out,) if held_out else ()),
        kl=newest(run, names.KL_SAMPLE_TRAIN),
        entropy=newest(run, names.ENTROPY),
        seconds_per_step=pace,
        eta=max(total - done, 0) * pace if going_on and total and pace else None,
        findings=tuple(findings),
    )


def state_of(run: Run, *, idle: float, grew: bool, limit: float) -> tuple[State, str]:
    """What the run is doing, and why it no longer does anything."""
    started: State = "running" if run.metrics.rows else "starting"
    silent = f"nothing was written for {span(idle)}"
    if run.holder is not None:
        if idle > limit:
            return "stalled", f"{silent}, while process {run.holder} holds the folder"
        return started, ""
    if saved.final_record(run) is not None:
        return "finished", ""
    if grew:
        return started, ""
    if run.folder is not None and (run.folder / ".lock").exists():
        # The trainers of this project hold it as long as they live.
        where = "before the first step" if not run.metrics.rows else "without a final checkpoint"
        return "stopped", f"its process ended {where}"
    saves = run.folder is not None and bool(run.checkpoints or run.setting("save_every"))
    if saved.is_complete(run):
        return (started, "") if saves and idle <= limit else ("finished", "")
    if idle > GONE_AFTER * limit:
        return "stopped", silent
    return ("stalled", silent) if idle > limit else (started, "")


def total_steps(run: Run) -> int | None:
    """Steps of the whole plan: from the config, or from the share that each row tells."""
    planned = run.setting("total_steps") or run.setting("num_steps") or run.setting("max_steps")
    if planned:
        return int(planned)
    progress = run.progress
    if progress is None:
        return None
    progress = progress.finite()
    if len(progress) > 1:
        # Loops log (step + 1) / total or step / total: the slope is 1 / total in both.
        steps = float(progress.steps[-1] - progress.steps[0])
        share = float(progress.values[-1] - progress.values[0])
        if share > 0 and steps > 0:
            return round(steps / share)
    if len(progress) and progress.values[-1] > 0:
        return round((int(progress.steps[-1]) + 1) / float(progress.values[-1]))
    return None


def step_times(run: Run) -> tuple[float | None, float | None]:
    """(mean of the recent steps, longest of all), in seconds; None where no times are logged."""
    curve = run.metrics.curve(names.STEP_TIME, training_only=True)
    curve = curve.finite() if curve is not None else None
    if curve is None or not len(curve):
        return None, None
    return float(curve.values[-RECENT:].mean()), float(curve.values.max())


def newest(run: Run, keys: Sequence[str], *, training_only: bool = False) -> Figure | None:
    """The last value of the first of ``keys`` that the run logs, with its first value."""
    curve: Curve | None = run.metrics.curve(keys, training_only=training_only) if keys else None
    if curve is None:
        return None
    first = float(curve.values[0]) if len(curve) > 1 else None
    return Figure(curve.key, float(curve.values[-1]), int(curve.steps[-1]), first)


def span(seconds: float) -> str:
    """A duration in words of one unit or two: ``45 s``, ``12 min``, ``3 h 05 min``, ``2 days``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:02.0f} min"
    return f"{seconds / 86400:.0f} days"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
