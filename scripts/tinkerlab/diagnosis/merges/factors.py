"""With which factor was each part added? By least squares, and the formula that gives it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tinkerlab.diagnosis.merges.adapters import Site
from tinkerlab.diagnosis.merges.layouts import Part
from tinkerlab.diagnosis.merges.matrices import Comparer, Matrix

NEAR = 0.01  # a fitted factor this close (relatively) to a known one is taken for it


@dataclass(frozen=True)
class Factor:
    """A part's factor on its right scale.

    Attributes:
        value: 1 is right, 0 not added at all.
        explains: the share of the change seen that the part explains with this factor.
    """

    value: float
    explains: float

    @property
    def likely(self) -> bool:
        """Whether it is worth testing: rounding may hide much of a small change."""
        return self.explains > 0.5

    @property
    def sure(self) -> bool:
        return self.explains > 0.95


def fit_factors(comparer: Comparer, matrix: Matrix, parts: list[Part]) -> list[Factor]:
    """Fit the factor of each of ``parts``, which must not overlap."""
    sums = [[0.0, 0.0, 0.0] for _ in parts]
    for lo, hi, base, merged in comparer.reader.blocks(matrix):
        change = merged.float() - base.to(merged.dtype).float()
        for part, total in zip(parts, sums, strict=True):
            added = comparer.delta(part, lo, hi)
            if added is None:
                continue
            seen, value = change[added.rows, added.columns].double(), added.value.double()
            total[0] += float((seen * value).sum())
            total[1] += float((value * value).sum())
            total[2] += float((seen * seen).sum())
    return [_factor(*total) for total in sums]


def _factor(product: float, expected: float, seen: float) -> Factor:
    if seen == 0:
        return Factor(0.0, 1.0)
    if expected == 0 or not math.isfinite(product):
        return Factor(1.0, 0.0)
    return Factor(product / expected, product * product / (expected * seen))


def known(site: Site, rslora: bool) -> dict[float, str]:
    """Factors that known mistakes give, with what each mistake is."""
    rank, alpha, scale = site.told_rank, site.alpha, site.scale
    found: dict[float, str] = {2.0: "applied twice", -1.0: "subtracted instead of added"}
    other = (
        ("alpha / r, though use_rslora is set", alpha / rank)
        if rslora
        else ("alpha / sqrt(r), as rsLoRA has it", alpha / math.sqrt(rank))
    )
    for says, wrong in (
        ("1: no scaling at all", 1.0),
        ("alpha, not divided by r", alpha),
        ("1 / r: alpha left out", 1 / rank),
        other,
        ("r / alpha: the ratio upside down", rank / alpha),
        ("(alpha / r) squared: scaled twice", scale * scale),
    ):
        found.setdefault(round(wrong / scale, 9), f"the scale used is {says}")
    found.pop(1.0, None)
    found.pop(0.0, None)
    return found


def snap(fitted: Factor, site: Site, rslora: bool) -> float:
    """The known factor beside ``fitted``, or ``fitted``.

    What rounding hides of a small change also biases the fit, so that the tolerance grows with
    the share that is not explained.
    """
    near = NEAR + 0.3 * (1 - fitted.explains)
    for factor in (1.0, *known(site, rslora)):
        if abs(fitted.value - factor) <= near * abs(factor):
            return factor
    return fitted.value
