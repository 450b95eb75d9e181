"""Compare two logprobs of each token: mean, largest, KL estimates, worst tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Gap:
    """Sampler minus trainer over N sampled tokens, in nats.

    Attributes:
        k1: mean of the difference, an unbiased estimate of KL(sampler || trainer) on tokens
            that the sampler drew; the cookbook's ``optim/kl_sample_train_v1``.
        k3: mean of r - 1 - log r with r = trainer / sampler: never negative, of lower variance
            (Schulman, "Approximating KL divergence", 2020).
        v2: half the mean square; the cookbook's ``optim/kl_sample_train_v2``.
    """

    tokens: int
    mean: float
    largest: float
    k1: float
    k3: float
    v2: float

    def as_dict(self) -> dict[str, float]:
        return dict(self.__dict__)

    def line(self) -> str:
        return (
            f"mean |difference| {self.mean:.3g}, largest {self.largest:.3g}, KL k1 {self.k1:.3g}, "
            f"k3 {self.k3:.3g} over {self.tokens} tokens"
        )


def gap(sampler: Sequence[float], trainer: Sequence[float]) -> Gap:
    """Statistics of two logprob lists of equal length N > 0."""
    differences = [s - t for s, t in zip(sampler, trainer, strict=True)]
    count = len(differences)
    # A difference over 50 nats says all it has to; exp() of more would overflow.
    ratios = [math.expm1(min(-d, 50.0)) + d for d in differences]
    return Gap(
        tokens=count,
        mean=sum(map(abs, differences)) / count,
        largest=max(map(abs, differences)),
        k1=sum(differences) / count,
        k3=sum(ratios) / count,
        v2=0.5 * sum(d * d for d in differences) / count,
    )


def worst(
    tokens: Sequence[int],
    sampler: Sequence[float],
    trainer: Sequence[float],
    tokenizer: Any,
    count: int = 5,
) -> list[str]:
    """The tokens of the largest differences, decoded, with both logprobs."""
    order = sorted(range(len(tokens)), key=lambda i: -abs(sampler[i] - trainer[i]))[:count]
    return [
        f"{tokenizer.decode([tokens[i]])!r}: sampler {sampler[i]:.4f}, trainer {trainer[i]:.4f}"
        for i in order
    ]


def false_zeros(sampler: Sequence[float], trainer: Sequence[float]) -> int:
    """Tokens whose sampler logprob is exactly 0.0 (certain) where the trainer is not certain.

    An exact zero by itself is no fault: a token of probability 1 rounds to it.
    """
    pairs = zip(sampler, trainer, strict=True)
    return sum(s == 0.0 and t < -1e-3 for s, t in pairs)
