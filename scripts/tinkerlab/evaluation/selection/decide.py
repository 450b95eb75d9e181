"""The rule by which one checkpoint is taken.

1. The application evals decide; without any, the public benchmarks; without those, the held-out
   metric of the run, mostly a loss. What the user wants to do with the model is measured by the
   first alone; a loss is only a stand-in for it.
2. A checkpoint is out that is worse than the base model by more than the noise, on what decides
   or on any public benchmark: it has forgotten something that was there for nothing.
3. Of the others, those are tied whose difference to the best score, on the same items, may be
   noise. A difference that noise explains is no reason to train longer.
4. Of the tied, those are dropped whose held-out metric is clearly worse than the best among
   them: a loss sees small steps that a few graded replies do not.
5. The earliest of the rest is taken: less training, less to over-fit, less forgotten.

An interval holds for all comparisons of its kind together (Bonferroni, see ``layers``). With
logged losses alone no noise is known: the lowest wins, and the report says so. Where such a loss
breaks a tie, "clearly" is by more than 1 / sqrt(items) of it (see ``logged``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from tinkerlab.evaluation.selection.checkpoints import Checkpoint
from tinkerlab.evaluation.selection.layers import Gap, Kind, Layer, Measured
from tinkerlab.evaluation.selection.logged import Logged

Status = Literal["chosen", "tied", "behind", "out", "not measured"]


@dataclass(frozen=True)
class Layers:
    """What is known of the checkpoints; None where nothing is.

    Attributes:
        logged: the held-out metric that the run logged.
        nll: held-out losses with a score for each item.
    """

    logged: Logged | None = None
    nll: Measured | None = None
    benchmarks: Measured | None = None
    application: Measured | None = None

    @property
    def loss(self) -> Layer | None:
        """The one that covers more checkpoints; of equals the one with a score for each item."""
        if self.nll is None or self.logged is None:
            return self.nll or self.logged
        return self.nll if len(self.nll.names) >= len(self.logged.names) else self.logged

    @property
    def deciding(self) -> Layer | None:
        layer = self.application or self.benchmarks or self.loss
        return replace(layer, exact=True) if isinstance(layer, Logged) else layer


@dataclass
class Standing:
    """How one checkpoint came off.

    Attributes:
        to_best, to_base: on the deciding layer; None where there is nothing to compare.
        why: why it is out or behind.
        falls: benchmarks on which it is below the base model by more than noise.
    """

    checkpoint: Checkpoint
    status: Status = "not measured"
    why: str = ""
    to_best: Gap | None = None
    to_base: Gap | None = None
    falls: dict[str, Gap] = field(default_factory=dict)


@dataclass
class Decision:
    """Which checkpoint to take.

    Attributes:
        kind: the layer that decided.
        chosen, best: None when nothing can be recommended; ``best`` has the best score.
        tied: names that are not told apart from the best, by step; the best among them.
        comparisons: with the best; each one's interval holds for so many at once.
    """

    kind: Kind
    layer: Layer
    standings: list[Standing]
    chosen: Checkpoint | None = None
    best: Checkpoint | None = None
    tied: list[str] = field(default_factory=list)
    comparisons: int = 0

    def of(self, name: str) -> Standing:
        return next(s for s in self.standings if s.checkpoint.name == name)

    @property
    def compared(self) -> int:
        """How many checkpoints were compared by what decided."""
        return sum(standing.status != "not measured" for standing in self.standings)


def decide(checkpoints: Sequence[Checkpoint], layers: Layers, max_drop: float = 0.0) -> Decision:
    """Apply the rule of this module.

    Args:
        checkpoints: by step; at least one is measured by the deciding layer.
        max_drop: how far below the base model a benchmark's score may be, noise aside.

    Raises:
        ValueError: no layer.
    """
    layer = layers.deciding
    if layer is None:
        raise ValueError("no layer to decide by")
    standings = [Standing(checkpoint) for checkpoint in checkpoints]
    decision = Decision(layer.kind, layer, standings)
    for standing in standings:
        standing.falls = _falls(standing.checkpoint.name, layers.benchmarks, max_drop)
    ranked = [s for s in standings if s.checkpoint.name in layer.names]
    for standing in standings:
        if standing not in ranked:
            standing.why = "no result of what decides"
    left = _rule_out(ranked, layer)
    if not left:
        return decision
    sign = 1 if layer.higher else -1
    best = max(left, key=lambda s: sign * layer.score(s.checkpoint.name))  # of equals the first
    decision.best = best.checkpoint
    decision.comparisons = len(left) - 1
    tied = []
    for standing in left:
        gap = layer.gap(standing.checkpoint.name, best.checkpoint.name, decision.comparisons)
        standing.to_best = None if standing is best else gap
        if standing is best or not gap.told_apart:
            standing.status = "tied"
            tied.append(standing)
        else:
            standing.status = "behind"
    decision.tied = [standing.checkpoint.name for standing in tied]
    tied = _by_loss(tied, layers.loss) if layer.kind != "loss" else tied
    tied[0].status = "chosen"
    decision.chosen = tied[0].checkpoint
    return decision


def _falls(name: str, benchmarks: Measured | None, max_drop: float) -> dict[str, Gap]:
    found = {}
    for evaluation in benchmarks.evaluations if benchmarks else ():
        if name not in evaluation.scores:
            continue
        gap = Measured("benchmarks", [evaluation]).gap_to_base(name, len(evaluation.scores))
        if gap is not None and gap.high < -max_drop:
            found[evaluation.name] = gap
    return found


def _rule_out(ranked: list[Standing], layer: Layer) -> list[Standing]:
    """Those that are not worse than the base model beyond noise; the others get their reason."""
    for standing in ranked:
        standing.status = "tied"
        standing.to_base = gap = layer.gap_to_base(standing.checkpoint.name, len(ranked))
        if gap is not None and gap.worse:
            standing.status, standing.why = "out", f"worse than the base model: {gap}"
        elif standing.falls:
            told = ", ".join(f"{name} {gap}" for name, gap in standing.falls.items())
            standing.status, standing.why = "out", f"below the base model on {told}"
    return [standing for standing in ranked if standing.status != "out"]


def _by_loss(tied: list[Standing], loss: Layer | None) -> list[Standing]:
    """Without those whose held-out loss is clearly worse than the best among them."""
    known = [s for s in tied if loss is not None and s.checkpoint.name in loss.names]
    if loss is None or len(known) < 2:
        return tied
    word, sign = ("score", 1) if loss.higher else ("loss", -1)
    best = max(known, key=lambda s: sign * loss.score(s.checkpoint.name))
    kept = []
    for standing in tied:
        if standing in known and standing is not best:
            gap = loss.gap(standing.checkpoint.name, best.checkpoint.name, len(known) - 1)
            if gap.worse:
                standing.status = "behind"
                standing.why = (
                    f"tied, but its held-out {word} is {loss.score(standing.checkpoint.name):.4g}"
                    f" against {loss.score(best.checkpoint.name):.4g} of {best.checkpoint.name}"
                )
                continue
        kept.append(standing)
    return kept
