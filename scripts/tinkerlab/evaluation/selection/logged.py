"""The layer that the run logged itself: held-out metrics, put beside the checkpoints.

A row of ``metrics.jsonl`` holds the evaluation of the weights *before* its step's update, in
this project's trainers (``training/loop.py``) as in tinker-cookbook's loops (supervised
submit_batch, rl do_sync_training). So the row of step s belongs to the checkpoint of s updates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinkerlab.diagnosis.run_analysis import thresholds
from tinkerlab.diagnosis.run_analysis.run import Run
from tinkerlab.evaluation.selection.checkpoints import Checkpoint
from tinkerlab.evaluation.selection.layers import ERROR_RATE, Gap, Kind
from tinkerlab.watching import figures

if TYPE_CHECKING:
    from tinkerlab.diagnosis.run_analysis.series import Curve

# How many held-out items the trainers of this project used: sft, rl, dpo, distill.
_COUNTS = ("held_out_rows", "held_out_tasks", "held_out_pairs", "held_out_prompts")
UNKNOWN_SHARE = 0.1


@dataclass(frozen=True)
class Logged:
    """Held-out means that the run logged: no item's own score, so nothing can be paired.

    Of a share of right answers over a known number of items, a bound of the noise follows from
    the number alone: no score between 0 and 1 with mean p varies by more than p (1 - p). Of a
    loss there is none; then the lowest wins (``exact``), or, where the layer only breaks ties or
    is compared with the base model, differences count from 1 / sqrt(items) of the loss on (two
    standard errors if the items' own differences spread by half the loss, an assumption; on 18
    rows of a rehearsed run 15 % proved to be noise), and never those that the over-fitting check
    takes for nothing.

    Attributes:
        values: by checkpoint; ``at`` the step of the row that each one is from.
        base: the value at step 0, before the first update.
        items: behind each value; None where that is not known.
        is_share: whether the values are means of scores between 0 and 1.
        exact: any difference counts, where the noise is not known.
    """

    key: str
    curve: Curve
    values: dict[str, float]
    at: dict[str, int]
    base: float | None
    items: int | None
    is_share: bool = False
    exact: bool = False
    kind: Kind = "loss"

    @property
    def has_noise(self) -> bool:
        """Whether the noise of the values can be told."""
        return self.is_share and self.items is not None

    @property
    def higher(self) -> bool:
        return figures.higher_is_better(self.key)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.values)

    def score(self, name: str) -> float:
        return self.values[name]

    def gap(self, name: str, other: str, comparisons: int = 1) -> Gap:
        mine, theirs = self.values[name], self.values[other]
        return self._gap(mine, theirs, comparisons, self.exact)

    def gap_to_base(self, name: str, comparisons: int = 1) -> Gap | None:
        if self.base is None:
            return None
        return self._gap(self.values[name], self.base, comparisons, exact=False)

    def _gap(self, mine: float, theirs: float, comparisons: int, exact: bool) -> Gap:
        mean = mine - theirs if self.higher else theirs - mine
        noise = self._noise(mine, theirs, comparisons, exact)
        return Gap(mean, mean - noise, mean + noise, measured=self.has_noise)

    def _noise(self, mine: float, theirs: float, comparisons: int, exact: bool) -> float:
        if self.is_share and self.items is not None:
            from statistics import NormalDist

            variance = (mine * (1 - mine) + theirs * (1 - theirs)) / self.items
            tail = ERROR_RATE / max(comparisons, 1) / 2
            return NormalDist().inv_cdf(1 - tail) * math.sqrt(variance)
        if exact:
            return 0.0
        share = 1 / math.sqrt(self.items) if self.items else UNKNOWN_SHARE
        share = max(share, thresholds.OVERFIT_SHARE)
        return max(share * min(abs(mine), abs(theirs)), thresholds.OVERFIT_NATS)

    def told_by(self) -> str:
        if self.has_noise:
            return f"a share of {self.items} items"
        return "logged means, without an interval"


def read_logged(run: Run, checkpoints: Sequence[Checkpoint]) -> Logged | None:
    """The run's held-out metric at its checkpoints; None where it logged none near any."""
    key = figures.held_out_key(run, figures.kind_of(run))
    curve = run.metrics.curve(key) if key else None
    curve = curve.finite() if curve is not None else None
    if key is None or curve is None or not len(curve):
        return None
    at = nearest_rows([c.step for c in checkpoints], [int(step) for step in curve.steps])
    values, steps = {}, {}
    for checkpoint in checkpoints:
        row = at.get(checkpoint.step)
        value = None if row is None else curve.at(row)
        if row is not None and value is not None:
            values[checkpoint.name], steps[checkpoint.name] = value, row
    if not values:
        return None
    return Logged(
        key=key,
        curve=curve,
        values=values,
        at=steps,
        base=curve.at(0),
        items=_items(run),
        is_share=figures.higher_is_better(key) and _within_0_and_1(curve),
    )


def nearest_rows(checkpoints: Sequence[int], rows: Sequence[int]) -> dict[int, int]:
    """For each checkpoint's step, the evaluation that speaks for it.

    That of the same step where there is one. Else the nearest, if it is no further than half
    the way to the next checkpoint; an evaluation speaks for the nearest checkpoint only.

    Args:
        checkpoints, rows: steps, rising.
    """
    found: dict[int, int] = {}
    for place, step in enumerate(checkpoints):
        row = min(rows, key=lambda row: (abs(row - step), row))
        beside = [*checkpoints[max(place - 1, 0) : place], *checkpoints[place + 1 : place + 2]]
        reach = min((abs(other - step) for other in beside), default=2 * step) / 2
        if abs(row - step) <= reach and (row > 0 or step == 0):
            found[step] = row
    for row in set(found.values()):
        claims = sorted((abs(row - step), step) for step, own in found.items() if own == row)
        for _, step in claims[1:]:
            del found[step]
    return found


def _items(run: Run) -> int | None:
    """Held-out items, as the run's config tells them."""
    resolved = run.config.get("resolved")
    for name in _COUNTS:
        count = resolved.get(name) if isinstance(resolved, dict) else None
        if isinstance(count, int) and not isinstance(count, bool) and count > 0:
            return count
    return None


def _within_0_and_1(curve: Curve) -> bool:
    return bool(curve.values.min() >= 0 and curve.values.max() <= 1)
