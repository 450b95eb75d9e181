"""A merge makes the same mistake everywhere: try it on a few rows before searching again.

A wrong matrix costs some ten passes to explain. Once a mistake has explained several matrices
of a projection in full, a sample of rows is enough to see that the next has the same; only one
that has not goes the long way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from tinkerlab.diagnosis.merges.guesses import Guess, leaf
from tinkerlab.diagnosis.merges.layouts import Part
from tinkerlab.diagnosis.merges.matrices import Comparer, Fit, Matrix

ENOUGH = 4  # matrices that were explained in full
ROWS = 128
_SURE = 0.9  # share of the change in the sample that the mistake must explain
Rebuild = Callable[[Matrix, list[Part]], "Mistake | None"]


@dataclass(frozen=True)
class Mistake:
    """What was done to one matrix: a guess, or factors on the right layout.

    Attributes:
        guess: None where only the factors are wrong.
        weights: factors of the right parts; one for all of the guess's parts.
    """

    guess: Guess | None
    weights: tuple[float, ...]

    def parts(self, right: list[Part]) -> list[tuple[Part, float]]:
        if self.guess is None:
            return list(zip(right, self.weights, strict=True))
        return [(part, self.weights[0]) for part in self.guess.parts]


class Habits:
    """Remembers, for each kind of matrix, how it was explained."""

    def __init__(self, comparer: Comparer) -> None:
        self.comparer = comparer
        self._rebuild: dict[str, tuple[str, Rebuild]] = {}
        self._count: Counter[tuple[str, str]] = Counter()

    def remember(self, right: list[Part], mistake: Mistake, again: Rebuild | None = None) -> None:
        """Note that ``mistake`` explained a whole matrix whose right parts are ``right``.

        Args:
            again: makes the same mistake for another matrix; default: the same factors, or
                what ``moved`` makes of a guess of the search.
        """
        kind = _kind(right)
        if again is None:
            again = (
                _same_factors(mistake)
                if mistake.guess is None
                else _moved(self.comparer, right, mistake)
            )
        if again is None:
            return
        name = mistake.guess.cause if mistake.guess is not None else str(mistake.weights)
        known = self._rebuild.get(kind)
        if known is None or known[0] != name:
            self._count[(kind, name)] = 0
        self._rebuild[kind] = (name, again)
        self._count[(kind, name)] += 1

    def recognise(self, matrix: Matrix, right: list[Part]) -> Mistake | None:
        """The usual mistake, where a sample of rows of ``matrix`` shows it."""
        kind = _kind(right)
        known = self._rebuild.get(kind)
        if known is None or self._count[(kind, known[0])] < ENOUGH:
            return None
        mistake = known[1](matrix, right)
        if mistake is None or len(mistake.weights) not in (1, len(right)):
            return None
        fit = self.comparer.sample(matrix, mistake.parts(right), ROWS)
        return mistake if _shows(fit, mistake) else None


def _shows(fit: Fit, mistake: Mistake) -> bool:
    if not fit.within_low_precision:
        return False
    return fit.explained > _SURE or (fit.energy == 0 and not any(mistake.weights))


def _kind(parts: Iterable[Part]) -> str:
    return "+".join(leaf(part) for part in parts)


def _same_factors(mistake: Mistake) -> Rebuild:
    return lambda matrix, right: mistake if len(right) == len(mistake.weights) else None


def _moved(comparer: Comparer, right: list[Part], mistake: Mistake) -> Rebuild | None:
    """The same move for another matrix: as many experts further, or the other projection."""
    assert mistake.guess is not None
    found = mistake.guess.parts
    if len(right) != len(found):
        return None
    first, other = right[0], found[0]
    if any(
        (b.outputs, b.transposed, b.of_rows) != (a.outputs, a.transposed, a.of_rows)
        for a, b in zip(right, found, strict=True)
    ):
        return None
    shift, leaves = other.expert - first.expert, (leaf(first), leaf(other))
    if other.module.rsplit(".", 1)[0] != first.module.rsplit(".", 1)[0]:
        return None  # another layer: which, is not a matter of counting
    guess, weights, sites = mistake.guess, mistake.weights, comparer.adapter.sites

    def again(matrix: Matrix, parts: list[Part]) -> Mistake | None:
        moved = tuple(
            replace(
                part,
                expert=part.expert + shift,
                module=part.module.removesuffix(leaves[0]) + leaves[1]
                if leaf(part) == leaves[0] and leaves[0] != leaves[1]
                else part.module,
            )
            for part in parts
        )
        for part, was in zip(moved, parts, strict=True):
            site, right_site = sites.get(part.module), sites[was.module]
            if site is None or not 0 <= part.expert < max(1, site.experts):
                return None
            if (site.rows, site.columns) != (right_site.rows, right_site.columns):
                return None
        return Mistake(Guess(guess.cause, guess.says, moved), weights)

    return again
