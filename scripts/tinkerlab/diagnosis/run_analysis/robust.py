"""Levels, noise and trends that a few wild values do not move."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

MAD_TO_SIGMA = 1.4826  # of a normal distribution


def noise(values: np.ndarray) -> float:
    """Standard deviation of the step-to-step noise, from the MAD of the differences.

    Differences take the trend out; their deviation is sqrt(2) times the noise's.
    """
    import numpy as np

    if len(values) < 3:
        return 0.0
    steps = np.diff(values)
    return float(MAD_TO_SIGMA * np.median(np.abs(steps - np.median(steps))) / np.sqrt(2))


def span(count: int) -> int:
    """How many values make a level: a tenth of them, at least 3, at most 50."""
    return max(1, min(max(3, count // 10), 50, count))


def first_level(values: np.ndarray) -> float:
    import numpy as np

    return float(np.median(values[: span(len(values))]))


def last_level(values: np.ndarray) -> float:
    import numpy as np

    return float(np.median(values[-span(len(values)) :]))


def lowest_level(values: np.ndarray) -> tuple[int, float]:
    """(index of its middle, value) of the lowest median over windows of ``span`` values."""
    import numpy as np

    width = span(len(values))
    windows = np.lib.stride_tricks.sliding_window_view(values, width)
    stride = max(1, width // 3)
    medians = np.median(windows[::stride], axis=1)
    best = int(np.argmin(medians))
    return best * stride + width // 2, float(medians[best])


def fitted_fall(steps: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    """(how far a straight line through the values falls, its standard error)."""
    import numpy as np

    x = (steps - steps.mean()) / max(float(np.ptp(steps)), 1.0)
    weight = float((x * x).sum())
    slope = float((x * (values - values.mean())).sum()) / weight
    rest = values - values.mean() - slope * x
    error = float(np.sqrt((rest * rest).sum() / max(len(values) - 2, 1) / weight))
    return -slope, error


def kendall(values: np.ndarray) -> float:
    """Kendall's tau of the values against their order: 1 rises throughout, -1 falls."""
    import numpy as np

    values = values if len(values) <= 400 else values[:: len(values) // 400 + 1]
    signs = np.sign(values[None, :] - values[:, None])
    pairs = len(values) * (len(values) - 1) / 2
    return float(np.triu(signs, 1).sum() / pairs) if pairs else 0.0
