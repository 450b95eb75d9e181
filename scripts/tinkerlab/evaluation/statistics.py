"""Means over scored items and the paired difference between two models, with its interval.

Two models scored on the same items give one pair per item. Items, not tokens, are the
independent draws (the tokens of one answer hang together), so the bootstrap resamples items.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

RESAMPLES = 10_000
CONFIDENCE = 0.95
# Resamples drawn at a time: bounds memory at 500 x items indices. Part of the definition of
# the interval, since it decides in which order the generator is used.
_CHUNK = 500
FEW_ITEMS = 20


@dataclass(frozen=True)
class PairedDifference:
    """Trained minus base, averaged over items.

    Attributes:
        mean: weighted mean of the per-item differences.
        low, high: percentile bootstrap interval of that mean.
        weighting: "token" (each item counts as many times as it has tokens) or "item".
    """

    mean: float
    low: float
    high: float
    items: int
    weighting: str
    confidence: float = CONFIDENCE
    resamples: int = RESAMPLES
    seed: int = 0

    @property
    def includes_zero(self) -> bool:
        return self.low <= 0.0 <= self.high

    def as_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "includes_zero": self.includes_zero,
            "method": "paired percentile bootstrap over items",
        }


def weighted_mean(values: Sequence[float], weights: Sequence[float] | None = None) -> float:
    """Mean of ``values``, each counted ``weights`` times (once when None).

    Raises:
        ValueError: nothing to average.
    """
    values_N = np.asarray(values, dtype=np.float64)
    weights_N = np.ones_like(values_N) if weights is None else np.asarray(weights, np.float64)
    if values_N.size == 0 or weights_N.sum() <= 0:
        raise ValueError("a mean over no items")
    return float((values_N * weights_N).sum() / weights_N.sum())


def paired_difference(
    base: Sequence[float],
    trained: Sequence[float],
    weights: Sequence[float] | None = None,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
) -> PairedDifference:
    """Mean of ``trained - base`` over items and its percentile bootstrap interval.

    Each resample draws as many items as there are, with replacement, and takes their
    (token-weighted) mean difference; the interval spans the middle ``confidence`` of these
    (Efron & Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13). The same seed
    gives the same interval on every machine. With fewer than ``FEW_ITEMS`` items it is known
    to be too narrow; callers should say so.

    Args:
        base, trained: one score per item, same items in the same order.
        weights: tokens per item for the token-weighted mean; None weighs items alike.

    Raises:
        ValueError: no items, or lists of different length.
    """
    base_N, trained_N = np.asarray(base, np.float64), np.asarray(trained, np.float64)
    if base_N.shape != trained_N.shape:
        raise ValueError(f"{base_N.size} base scores against {trained_N.size} trained ones")
    difference_N = trained_N - base_N
    mean = weighted_mean(difference_N.tolist(), weights)
    weights_N = np.ones_like(difference_N) if weights is None else np.asarray(weights, np.float64)

    generator = np.random.default_rng(seed)
    count = difference_N.size
    means = []
    for start in range(0, resamples, _CHUNK):
        rows = min(_CHUNK, resamples - start)
        picks_RN = generator.integers(0, count, size=(rows, count))
        picked_weights_RN = weights_N[picks_RN]
        totals_R = (difference_N[picks_RN] * picked_weights_RN).sum(axis=1)
        means.append(totals_R / picked_weights_RN.sum(axis=1))
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(np.concatenate(means), [tail, 100 - tail])
    return PairedDifference(
        mean=mean,
        low=float(low),
        high=float(high),
        items=int(count),
        weighting="item" if weights is None else "token",
        confidence=confidence,
        resamples=resamples,
        seed=seed,
    )


def describe(difference: PairedDifference, *, lower_is_better: bool) -> str:
    """One plain sentence: by how much, how sure, and whether it may be nothing."""
    interval = (
        f"{difference.mean:+.4f} ({difference.confidence:.0%} interval "
        f"{difference.low:+.4f} to {difference.high:+.4f}, {difference.items} items)"
    )
    if difference.includes_zero:
        verdict = "The interval includes zero: no difference is shown."
    else:
        improved = (difference.mean < 0) == lower_is_better
        verdict = (
            "The trained model is better; the interval excludes zero."
            if improved
            else "The trained model is WORSE; the interval excludes zero."
        )
    few = (
        f" With fewer than {FEW_ITEMS} items the interval is too narrow."
        if difference.items < FEW_ITEMS
        else ""
    )
    return f"{interval}. {verdict}{few}"
