"""Which rows of a metrics file belong together: attempts at one run, or several runs at once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from tinkerlab.diagnosis.run_analysis.run import Run

_LOOKED_BACK = 8  # rising sequences that a row may go on; more are not told apart


@dataclass
class Attempt:
    """Rows whose steps rise.

    Attributes:
        rows: numbers of its rows.
        first, last: its first and last step.
    """

    rows: list[int]
    first: int
    last: int


@dataclass(frozen=True)
class Attempts:
    """A metrics file taken apart.

    Attributes:
        listed: oldest first.
        returns: how often the file comes back to an attempt that was left for another one. A
            resume never does; runs that write at the same time do it all along.
        stride: usual distance of two rows' steps.
    """

    listed: list[Attempt]
    returns: int
    stride: int

    @property
    def interleaved(self) -> bool:
        return self.returns >= 2


def take_apart(run: Run) -> Attempts:
    """The attempts in the run's training rows."""
    import numpy as np

    rows = run.metrics.training_rows()
    steps = run.metrics.row_steps()[rows]
    if not len(steps):
        return Attempts([], 0, 1)
    rises = np.diff(steps)
    rises = rises[rises > 0]
    stride = int(Counter(rises.tolist()).most_common(1)[0][0]) if len(rises) else 1
    breaks = np.flatnonzero(np.diff(steps) <= 0)
    if not len(breaks):  # the usual case, without a loop over 100,000 rows
        return Attempts([Attempt(rows.tolist(), int(steps[0]), int(steps[-1]))], 0, stride)
    recent: list[Attempt] = []  # most recently used first
    listed: list[Attempt] = []
    returns = 0
    for row, step in zip(rows.tolist(), steps.tolist(), strict=True):
        place = next((i for i, a in enumerate(recent) if a.last + stride == step), None)
        if place is None:
            place = next((i for i, a in enumerate(recent) if a.last < step), None)
        if place is None:
            attempt = Attempt([], step, step)
            listed.append(attempt)
        else:
            attempt = recent.pop(place)
            returns += place > 0
        attempt.rows.append(row)
        attempt.last = step
        recent.insert(0, attempt)
        del recent[_LOOKED_BACK:]
    return Attempts(listed, returns, stride)


def is_final(record: dict[str, Any]) -> bool:
    """Whether a record is the run's last one: tinker-cookbook 0.5.8 tells it by the name alone."""
    return bool(record.get("final")) or record.get("name") == "final"


def checkpoint_step(run: Run, record: dict[str, Any], per_epoch: int | None) -> int | None:
    """The step that a run resumed from this record begins with, by what its label says.

    ``step`` where it is there (this project's trainers), otherwise tinker-cookbook's ``batch``
    within ``epoch``. None where the epoch's length is needed and unknown.
    """
    step, batch, epoch = record.get("step"), record.get("batch"), record.get("epoch") or 0
    if isinstance(step, int):
        return step
    if not isinstance(batch, int) or not isinstance(epoch, int):
        return None
    if epoch == 0 or run.is_rl:
        return batch
    return epoch * per_epoch + batch if per_epoch else None


def steps_per_epoch(run: Run) -> int | None:
    """Batches of an epoch, from where ``epoch`` first rises; None within the first epoch."""
    curve = run.metrics.curve("epoch", training_only=True)
    if curve is None:
        return None
    later = curve.values > curve.values[0]
    if curve.values[0] != 0 or not later.any():
        return None
    index = int(later.argmax())
    return int(curve.steps[index]) if curve.values[index] == 1 else None


def values_of(run: Run, attempt: Attempt, key: str) -> dict[int, float]:
    """The attempt's finite values of a metric, by step."""
    import numpy as np

    rows = np.array(attempt.rows)
    values, steps = run.metrics.dense(key)[rows], run.metrics.row_steps()[rows]
    good = np.isfinite(values)
    return dict(zip(steps[good].tolist(), values[good].tolist(), strict=True))
