"""pass@k: the chance that at least one of k samples is correct."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Unbiased estimate for one item from ``samples`` draws of which ``correct`` are right.

    1 - C(n-c, k) / C(n, k), as a product that does not overflow (Chen et al. 2021,
    arXiv:2107.03374, section 2.1). Taking 1 - (1 - c/n)^k instead would be too low.

    Raises:
        ValueError: k samples were not drawn.
    """
    if not 1 <= k <= samples or not 0 <= correct <= samples:
        raise ValueError(f"pass@{k} of {correct} right among {samples} samples")
    wrong = samples - correct
    if wrong < k:
        return 1.0
    return 1.0 - prod(1.0 - k / i for i in range(wrong + 1, samples + 1))


def mean_pass_at_k(counts: Sequence[tuple[int, int]], ks: Sequence[int]) -> dict[str, float]:
    """``{"pass@1": ...}`` averaged over items.

    Args:
        counts: (samples, correct) of each item.
    """
    return {
        f"pass@{k}": sum(pass_at_k(samples, correct, k) for samples, correct in counts)
        / len(counts)
        for k in ks
    }


def default_ks(samples: int) -> list[int]:
    """1, 2, 4, ... up to the number of samples, and that number itself."""
    ks = [1]
    while ks[-1] * 2 <= samples:
        ks.append(ks[-1] * 2)
    return ks if ks[-1] == samples else [*ks, samples]
