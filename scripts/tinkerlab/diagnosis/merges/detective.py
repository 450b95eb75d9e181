"""Decides one matrix: right, or wrong in which of the known ways."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from tinkerlab.diagnosis.merges import outcomes as o
from tinkerlab.diagnosis.merges.factors import Factor, fit_factors, known, snap
from tinkerlab.diagnosis.merges.guesses import (
    LAYERS,
    PERMUTED,
    PROJECTIONS,
    Guess,
    guesses,
    leaf,
)
from tinkerlab.diagnosis.merges.habits import Habits, Mistake, Rebuild
from tinkerlab.diagnosis.merges.layouts import Part, Plan
from tinkerlab.diagnosis.merges.matrices import Comparer, Fit, Matrix
from tinkerlab.diagnosis.merges.outcomes import Outcome
from tinkerlab.diagnosis.merges.rearranged import Rearranged
from tinkerlab.diagnosis.merges.search import best, wrong_target
from tinkerlab.export.adapter import UNEMBEDDING
from tinkerlab.export.checkpoint import layer_of

SEARCHES = 12  # searches that may fail before matrices of that projection are left unexplained
# Share of the change that a wrong layout must explain. Rounding leaves more than this of a change
# that shows at all, while an unrelated one explains next to nothing.
CONVINCING = 0.7
SEARCHED = {PERMUTED, LAYERS, PROJECTIONS}
FAR = 0.25  # the change's energy against the base's, beyond which the base itself was moved
_SAMPLE = 32  # rows
_EXPERT = re.compile(r"\.experts\.(\d+)\.")


class Detective:
    """Compares matrices; remembers what explained the ones before, to try that first."""

    def __init__(self, comparer: Comparer, plan: Plan, interleaved: bool) -> None:
        self.comparer, self.plan = comparer, plan
        self.rearranged = Rearranged(comparer, plan, interleaved)
        self.rslora = bool(comparer.adapter.config.get("use_rslora"))
        self.habits = Habits(comparer)
        self._last: dict[str, str] = {}
        self._failed: Counter[str] = Counter()

    def targeted(self, matrix: Matrix, parts: list[Part]) -> Iterator[Outcome]:
        """Decide a matrix to which the adapter adds ``parts``: an outcome for each of them."""
        if self.comparer.exactly(matrix, parts):
            yield from (self._outcome(matrix, part, o.RIGHT) for part in parts)
            return
        usual = self.habits.recognise(matrix, parts)
        if usual is not None:
            yield from self._usual(matrix, parts, usual)
            return
        right = self.comparer.fit(matrix, [(part, 1.0) for part in parts])
        if not right.finite:
            yield from (self._outcome(matrix, part, o.NOT_FINITE) for part in parts)
        elif right.within_rounding:
            yield from (self._outcome(matrix, part, o.RIGHT, worst=right.worst) for part in parts)
        elif right.within_low_precision:
            for part in parts:
                yield self._outcome(matrix, part, o.LOW_PRECISION, right, left=right.worst)
        elif self._far(matrix):
            yield from self._moved(matrix, parts, right)
        else:
            yield from self._wrong(matrix, parts, right)

    def untargeted(self, matrix: Matrix) -> Outcome:
        """Decide a matrix that isn't what it is in the base, though nothing targets it."""
        fit = self.comparer.fit(matrix, [])
        base = self._base_energy(matrix)
        relative = (fit.energy / base) ** 0.5 if base else float("inf")
        place = self._outcome(matrix, None, o.CHANGED, fit)
        if not fit.finite:
            return self._outcome(matrix, None, o.NOT_FINITE, fit)
        if matrix.dtype == "F32" and self._rounded(matrix):
            return self._outcome(matrix, None, o.ROUNDED, fit, left=0.0)
        if (found := self._elsewhere(matrix, fit)) is not None:
            return found
        if relative > FAR**0.5:
            moved = self.rearranged.explain(matrix, [])
            if moved is not None:
                return self._outcome(matrix, None, moved[0], fit, says=moved[1])
        return Outcome(**{**place.__dict__, "relative": relative})

    def _elsewhere(self, matrix: Matrix, fit: Fit) -> Outcome | None:
        """The change of a module that belongs into another tensor, or whose name says nothing."""
        if self._failed["untargeted"] >= SEARCHES:
            return None
        sites = self.comparer.adapter.sites
        first = [name for name, site in sites.items() if site.leaf in UNEMBEDDING]
        plain = [name for name, site in sites.items() if site.experts == 0 and name not in first]
        found = wrong_target(self.comparer, matrix, first + plain)
        if found is None:
            self._failed["untargeted"] += 1
            return None
        name, part = found
        left = self.comparer.fit(matrix, [(part, 1.0)])
        if part.module in self.plan.homeless and left.within_low_precision:
            self.plan.by_value[part.module] = matrix.label
            return self._outcome(matrix, part, o.RIGHT, worst=left.worst)
        into = name in UNEMBEDDING and "embed" in matrix.key[0]
        says = f"what the adapter has for {part.module} was added here"
        cause = o.INTO_EMBEDDING if into else o.WRONG_TENSOR
        return self._outcome(matrix, part, cause, fit, says=says, left=left.worst)

    def _wrong(self, matrix: Matrix, parts: list[Part], right: Fit) -> Iterator[Outcome]:
        factors = fit_factors(self.comparer, matrix, parts)
        sites = [self.comparer.adapter.sites[part.module] for part in parts]
        weights = [
            snap(factor, site, self.rslora) if factor.likely else 1.0
            for factor, site in zip(factors, sites, strict=True)
        ]
        weighted = list(zip(parts, weights, strict=True))
        fit = self._with(matrix, weighted)
        if fit is not None:
            self.habits.remember(parts, Mistake(None, tuple(weights)))
            for part, weight in weighted:
                yield self._scaled(matrix, part, weight, right, fit)
            return
        unsure = [part for part, factor in zip(parts, factors, strict=True) if not factor.sure]
        found = self._guess(matrix, parts, unsure or parts, weighted)
        if found is not None:
            guess, fit, factor = found
            if len(unsure) in (0, len(parts)):
                self.habits.remember(parts, Mistake(guess, (factor,)), self._again(guess, factor))
            for part in parts:
                if part in unsure or not unsure:
                    yield self._outcome(
                        matrix, part, guess.cause, right, guess.says, left=fit.worst, factor=factor
                    )
                else:
                    yield self._scaled(matrix, part, dict(weighted)[part], right, fit)
            return
        for part, factor in zip(parts, factors, strict=True):
            says = f"{factor.explains:.0%} of the change is the adapter's, times {factor.value:.3g}"
            if len(parts) > 1 and factor.sure and abs(factor.value - 1) < 0.01:
                yield self._outcome(matrix, part, o.RIGHT, right)
            else:
                yield self._outcome(
                    matrix, part, o.UNEXPLAINED, right, says, explained=factor.explains
                )

    def _again(self, guess: Guess, factor: float) -> Rebuild | None:
        """How to make the same guess for another matrix; None for those of the search."""
        says = guess.says
        if guess.cause in SEARCHED or " in the place of " in says:
            return None

        def again(matrix: Matrix, parts: list[Part]) -> Mistake | None:
            for other in guesses(self.comparer.adapter, matrix, parts):
                if (other.cause, other.says) == (guess.cause, says):
                    return Mistake(other, (factor,))
            return None

        return again

    def _usual(self, matrix: Matrix, parts: list[Part], mistake: Mistake) -> Iterator[Outcome]:
        nothing = Fit(worst=float("nan"))
        for number, part in enumerate(parts):
            if mistake.guess is None:
                yield self._scaled(matrix, part, mistake.weights[number], nothing, nothing)
            else:
                guess, factor = mistake.guess, mistake.weights[0]
                yield self._outcome(matrix, part, guess.cause, nothing, guess.says, factor=factor)

    def _scaled(self, matrix: Matrix, part: Part, weight: float, right: Fit, fit: Fit) -> Outcome:
        if weight == 1:
            return self._outcome(matrix, part, o.RIGHT, worst=fit.worst)
        if weight == 0:
            return self._outcome(matrix, part, o.NOT_APPLIED, right, left=fit.worst, factor=0.0)
        site = self.comparer.adapter.sites[part.module]
        says = known(site, self.rslora).get(weight, "no formula gives this factor")
        cause = {2.0: o.TWICE, -1.0: o.SUBTRACTED}.get(weight, o.SCALING)
        return self._outcome(matrix, part, cause, right, says, left=fit.worst, factor=weight)

    def _with(self, matrix: Matrix, weighted: list[tuple[Part, float]]) -> Fit | None:
        """The fit of these parts, if it explains the matrix to rounding."""
        fit = self.comparer.fit(matrix, weighted)
        return fit if fit.within_low_precision else None

    def _guess(
        self,
        matrix: Matrix,
        parts: list[Part],
        unsure: list[Part],
        weighted: list[tuple[Part, float]],
    ) -> tuple[Guess, Fit, float] | None:
        """The wrong layout, expert or module that explains the matrix, with its factor."""
        kind = leaf(unsure[0])
        if self._failed[kind] >= SEARCHES:
            return None
        tried = sorted(
            guesses(self.comparer.adapter, matrix, parts),
            key=lambda guess: guess.cause != self._last.get(kind),
        )
        for guess in tried:
            found = self._try(matrix, guess, list(guess.parts), [])
            if found is not None:
                self._last[kind] = guess.cause
                return found
        rest = [pair for pair in weighted if pair[0] not in unsure]
        others = [best(self.comparer, matrix, part) for part in unsure]
        if all(others):
            named = [guess for guess in others if guess is not None]
            joined = Guess(
                named[0].cause,
                "; ".join(dict.fromkeys(guess.says for guess in named)),
                tuple(part for guess in named for part in guess.parts),
            )
            found = self._try(matrix, joined, list(joined.parts), rest)
            if found is not None:
                return found
        self._failed[kind] += 1
        return None

    def _try(
        self, matrix: Matrix, guess: Guess, parts: list[Part], rest: list[tuple[Part, float]]
    ) -> tuple[Guess, Fit, float] | None:
        plain = self.comparer.fit(matrix, [*((part, 1.0) for part in parts), *rest])
        if plain.within_low_precision and plain.explained > CONVINCING:
            return guess, plain, 1.0
        if plain.expected_energy == 0 or plain.seen**2 < 0.9 * plain.energy * plain.expected_energy:
            return None
        site = self.comparer.adapter.sites[parts[0].module]
        share = plain.seen**2 / (plain.energy * plain.expected_energy)
        factor = snap(Factor(plain.agreement, share), site, self.rslora)
        fit = self._with(matrix, [*((part, factor) for part in parts), *rest])
        if fit is None or fit.explained < CONVINCING:
            return None
        return guess, fit, factor

    def _far(self, matrix: Matrix) -> bool:
        """Whether the merged matrix has little to do with its base."""
        energy = base_energy = 0.0
        for _, _, base, merged in self.comparer.reader.blocks(matrix):
            before = base.float()
            base_energy += float((before * before).sum())
            energy += float(((merged.float() - before) ** 2).sum())
        return energy > FAR * base_energy

    def _moved(self, matrix: Matrix, parts: list[Part], right: Fit) -> Iterator[Outcome]:
        moved = self.rearranged.explain(matrix, parts)
        if moved is None:  # a large change is still the adapter's, if a formula explains it
            yield from self._wrong(matrix, parts, right)
            return
        for part in parts:
            yield self._outcome(matrix, part, moved[0], right, says=moved[1])

    def _base_energy(self, matrix: Matrix) -> float:
        return sum(
            float((base.float() ** 2).sum())
            for _, _, base, _ in self.comparer.reader.blocks(matrix)
        )

    def _rounded(self, matrix: Matrix) -> bool:
        """Whether the base went through a 16-bit type on its way."""
        import torch

        for dtype in (torch.bfloat16, torch.float16):
            if all(
                torch.equal(base.to(dtype).float(), merged)
                for _, _, base, merged in self.comparer.reader.blocks(matrix)
            ):
                return True
        return False

    def _outcome(
        self,
        matrix: Matrix,
        part: Part | None,
        cause: str,
        fit: Fit | None = None,
        says: str = "",
        *,
        worst: float = 0.0,
        left: float | None = None,
        factor: float = 1.0,
        explained: float = 1.0,
    ) -> Outcome:
        name, expert = matrix.key
        if expert is None and (found := _EXPERT.search(name)):
            expert = int(found.group(1))
        module = part.module if part is not None else ""
        last = (module or name.removesuffix(".weight")).rsplit(".", 1)[-1]
        return Outcome(
            cause,
            matrix.label,
            module,
            layer_of(name),
            last,
            expert,
            says,
            factor,
            fit.worst if fit is not None else worst,
            left,
            explained,
        )


def rank_share(comparer: Comparer, matrix: Matrix, rank: int) -> float:
    """How much of the change seen in some rows has rank ``rank`` (share of the sum of squares)."""
    import torch

    rows = min(8 * rank + 64, matrix.shape[0])
    base, merged = comparer.reader.pair(matrix, 0, rows)
    change = (merged.float() - base.to(merged.dtype).float())[:, :2048]
    if rank >= min(change.shape) // 2:
        return 0.0  # too small to tell
    energies = torch.linalg.svdvals(change).square()
    return float(energies[:rank].sum() / energies.sum()) if float(energies.sum()) else 0.0


def lost(comparer: Comparer, matrix: Matrix, parts: list[Part]) -> tuple[float, float]:
    """How much of the change rounding to storage keeps, on the first rows.

    Returns:
        Sum of the products of the change before and after rounding, and the sum of squares
        before: their ratio over all matrices is the share that a right merge keeps.
    """
    rows = min(_SAMPLE, matrix.shape[0])
    base, merged = comparer.reader.pair(matrix, 0, rows)
    before = base.float()
    change, _ = comparer.expected([(part, 1.0) for part in parts], before, 0, rows)
    after = (before + change).to(merged.dtype).float() - before.to(merged.dtype).float()
    return float((after * change).sum()), float((change * change).sum())
