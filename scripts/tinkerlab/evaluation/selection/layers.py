"""Scores of checkpoints on the same items, and whether two of them are told apart by those.

A layer knows scores and noise; which checkpoint is taken is the business of ``decide``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from tinkerlab.errors import InputError
from tinkerlab.evaluation import statistics

Kind = Literal["loss", "benchmarks", "application"]
TITLES: dict[Kind, str] = {
    "loss": "held-out metric of the run",
    "benchmarks": "public benchmarks",
    "application": "application evals",
}
ERROR_RATE = 0.05  # of all comparisons of a layer together
_TAIL = 10  # resamples that an interval must leave out on each side


@dataclass(frozen=True)
class Gap:
    """How far one checkpoint is ahead of another, or of the base model: positive is better.

    Attributes:
        low, high: the differences that the noise allows.
        measured: whether that is an interval; else what is too small to count, of a metric
            whose noise is not known.
    """

    mean: float
    low: float
    high: float
    measured: bool = True

    @property
    def better(self) -> bool:
        return self.low > 0

    @property
    def worse(self) -> bool:
        return self.high < 0

    @property
    def told_apart(self) -> bool:
        return self.better or self.worse

    def __str__(self) -> str:
        if not self.measured:
            return f"{self.mean:+.4g}"
        return f"{self.mean:+.3f} ({self.low:+.3f} to {self.high:+.3f})"


class Layer(Protocol):
    """One layer of evidence. Names are those of checkpoints."""

    @property
    def kind(self) -> Kind: ...

    @property
    def higher(self) -> bool:
        """Whether a higher score is better."""
        ...

    @property
    def names(self) -> frozenset[str]:
        """The checkpoints that can be ranked by it."""
        ...

    def score(self, name: str) -> float: ...

    def gap(self, name: str, other: str, comparisons: int = 1) -> Gap:
        """Of ``name`` over ``other``; an interval that holds for so many at once."""
        ...

    def gap_to_base(self, name: str, comparisons: int = 1) -> Gap | None:
        """None where the base model has no score."""
        ...

    def told_by(self) -> str:
        """What decides whether two are told apart, such as ``120 items``."""
        ...


@dataclass(frozen=True)
class Evaluation:
    """Checkpoints scored on the same items in the same way.

    Attributes:
        name: for people: the suite, or the items and the grader.
        identity: what makes scores comparable (``found.identity_of``).
        scores: by checkpoint, one value for each item, in item order.
        base: the same of the base model; None if it was not evaluated.
        folders: by checkpoint; of the base model under "".
        failed_items: items left out since a request failed, of all the folders.
    """

    kind: Kind
    name: str
    identity: Mapping[str, Any]
    higher: bool
    scores: Mapping[str, Sequence[float]]
    base: Sequence[float] | None = None
    folders: Mapping[str, Path] = field(default_factory=dict)
    failed_items: int = 0

    @property
    def items(self) -> int:
        return len(next(iter(self.scores.values())))

    def mean(self, name: str) -> float:
        return statistics.weighted_mean(self.scores[name])

    @property
    def base_mean(self) -> float | None:
        return None if self.base is None else statistics.weighted_mean(self.base)

    def interval(self, name: str) -> tuple[float, float]:
        """95 % bootstrap interval of one checkpoint's mean over items."""
        values = self.scores[name]
        found = statistics.paired_difference([0.0] * len(values), values)
        return found.low, found.high


@dataclass(frozen=True)
class Measured:
    """A layer of one evaluation, or of several whose means count alike.

    With several, an item weighs 1 / (items of its evaluation), so that a long evaluation does
    not outvote a short one; the bootstrap draws from all items together.
    """

    kind: Kind
    evaluations: Sequence[Evaluation]

    @property
    def higher(self) -> bool:
        return self.evaluations[0].higher

    @property
    def names(self) -> frozenset[str]:
        return frozenset.intersection(*(frozenset(e.scores) for e in self.evaluations))

    @property
    def items(self) -> int:
        return sum(evaluation.items for evaluation in self.evaluations)

    def score(self, name: str) -> float:
        return statistics.weighted_mean([e.mean(name) for e in self.evaluations])

    def gap(self, name: str, other: str, comparisons: int = 1) -> Gap:
        theirs = [value for e in self.evaluations for value in e.scores[other]]
        return self._gap(theirs, name, comparisons)

    def gap_to_base(self, name: str, comparisons: int = 1) -> Gap | None:
        theirs: list[float] = []
        for evaluation in self.evaluations:
            if evaluation.base is None:
                return None
            theirs += evaluation.base
        return self._gap(theirs, name, comparisons)

    def _gap(self, theirs: list[float], name: str, comparisons: int) -> Gap:
        """Paired bootstrap interval at 1 - ``ERROR_RATE`` / ``comparisons`` (Bonferroni).

        The best of K noisy scores is compared with the K - 1 others; at 95 % each, one of
        twenty equal checkpoints would be called worse than the best in every fifth selection
        (simulated: tests/evaluation/selection/test_decide.py).
        """
        mine = [value for e in self.evaluations for value in e.scores[name]]
        weights = [1 / e.items for e in self.evaluations for _ in range(e.items)]
        confidence = 1 - ERROR_RATE / max(comparisons, 1)
        resamples = max(statistics.RESAMPLES, int(2 * _TAIL / (1 - confidence)))
        found = statistics.paired_difference(
            theirs, mine, weights, confidence=confidence, resamples=resamples
        )
        if self.higher:
            return Gap(found.mean, found.low, found.high)
        return Gap(-found.mean, -found.high, -found.low)

    def told_by(self) -> str:
        count = f"{self.items:,} item{'' if self.items == 1 else 's'}"
        several = len(self.evaluations)
        return count if several == 1 else f"{count} of {several} evaluations"


def make_layer(
    kind: Kind, evaluations: Sequence[Evaluation], *, decides: bool = True
) -> Measured | None:
    """The layer of these evaluations; None without any.

    Args:
        decides: whether it ranks checkpoints. A benchmark that only looks for losses against
            the base model stands for itself, whichever checkpoints it covers.

    Raises:
        InputError: they cannot rank the checkpoints together: other items or other settings.
    """
    if not evaluations:
        return None
    suites: dict[Any, Evaluation] = {}
    for evaluation in evaluations:
        suite = evaluation.identity.get("suite")
        other = suites.setdefault(suite, evaluation) if suite else evaluation
        if other is not evaluation:
            raise _not_comparable([other, evaluation])
    layer = Measured(kind, evaluations)
    measured = frozenset().union(*(evaluation.scores for evaluation in evaluations))
    if decides and len(layer.names) < min(2, len(measured)):
        raise _not_comparable(evaluations)
    return layer


def _not_comparable(evaluations: Sequence[Evaluation]) -> InputError:
    first = evaluations[0].identity
    different = sorted(
        {
            key.replace("_", " ")
            for other in evaluations[1:]
            for key in {*first, *other.identity}
            if first.get(key) != other.identity.get(key)
        }
    )
    told = "; ".join(
        f"{', '.join(sorted(e.scores))} on {e.items} items"
        f" ({', '.join(str(folder) for folder in e.folders.values())})"
        for e in evaluations
    )
    failed = sum(evaluation.failed_items for evaluation in evaluations)
    again = f" {failed} items failed and are left out; the same command asks them again."
    return InputError(
        f"not comparable, so not ranked together (other {', '.join(different)}): {told}.{again if failed else ''}"
        " Evaluate every checkpoint on the same items in the same way (select_checkpoint.py"
        " --evaluate does), or name only the folders that belong together with --results"
    )
