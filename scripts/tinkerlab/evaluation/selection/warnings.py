"""What speaks against the run, or against trusting the choice: one line each.

Over-fitting and gamed rewards are judged by ``diagnosis.run_analysis`` alone; here their
findings are joined with what the evaluations of the checkpoints say.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tinkerlab.data.words import counted
from tinkerlab.diagnosis.run_analysis import names, robust
from tinkerlab.diagnosis.run_analysis.analysis import analyze
from tinkerlab.diagnosis.run_analysis.reinforcement import rises
from tinkerlab.diagnosis.run_analysis.run import Run
from tinkerlab.evaluation.selection.checkpoints import Checkpoint
from tinkerlab.evaluation.selection.decide import Decision, Layers
from tinkerlab.evaluation.selection.layers import Layer
from tinkerlab.evaluation.selection.logged import Logged
from tinkerlab.evaluation.statistics import FEW_ITEMS

# Findings of analyze_run.py that bear on which checkpoint to take.
CAUSES = (
    "overfitting",
    "reward-up-eval-down",
    "eval-falls",
    "format-reward-only",
    "loss-not-finite",
    "loss-diverged",
    "runs-interleaved",
)
EVALUATIONS_NEEDED = 4  # by losses.overfitting, before it says anything


def warnings(
    run: Run, checkpoints: Sequence[Checkpoint], layers: Layers, decision: Decision
) -> list[str]:
    """Everything worth a warning, the most important first."""
    causes = [finding for finding in analyze(run).findings if finding.cause in CAUSES]
    told = [f"{finding.cause}: {finding.what}" for finding in causes]
    if not any(finding.cause in ("reward-up-eval-down", "eval-falls") for finding in causes):
        told += _reward_alone(run, checkpoints, layers)
    told += _forgetting(layers, decision)
    told += _price_of_benchmarks(decision)
    told += _later_is_worse(decision)
    told += _base(decision, layers)
    told += _few(decision, layers)
    told += _unseen(run)
    return told


def _reward_alone(run: Run, checkpoints: Sequence[Checkpoint], layers: Layers) -> Iterator[str]:
    """The training reward rises and no measure of held-out items is shown to rise with it."""
    reward = run.metrics.curve(names.REWARD, training_only=True)
    reward = reward.finite() if reward is not None else None
    if reward is None or not rises(reward):
        return
    for layer in (layers.application, layers.loss):
        measured = [c.name for c in checkpoints if layer and c.name in layer.names]
        if layer is None or not measured or not layer.higher:
            continue
        last = measured[-1]
        gap = layer.gap_to_base(last)
        since = "the base model"
        if gap is None and len(measured) > 1:
            gap, since = layer.gap(last, measured[0]), measured[0]
        if gap is not None and not gap.better:
            yield (
                f"reward-alone-rises: the training reward rises from"
                f" {robust.first_level(reward.values):.3g} to"
                f" {robust.last_level(reward.values):.3g}, but {_title(layer)} of {last} is not"
                f" shown to be above {since} ({gap}): is the reward gamed? Read replies of high"
                " reward"
            )
        return


def _title(layer: Layer) -> str:
    if isinstance(layer, Logged):
        return layer.key
    return "the score in the application evals" if layer.kind == "application" else "the loss"


def _forgetting(layers: Layers, decision: Decision) -> Iterator[str]:
    for evaluation in layers.benchmarks.evaluations if layers.benchmarks else ():
        fallen = [s for s in decision.standings if evaluation.name in s.falls]
        if fallen:
            told = ", ".join(f"{s.checkpoint.name} {s.falls[evaluation.name]}" for s in fallen)
            yield f"forgetting: below the base model on {evaluation.name} by more than noise: {told}"
        elif evaluation.base is None:
            yield (
                f"no base model on {evaluation.name}: whether something was forgotten is not known;"
                " evaluate it in the same way"
            )
    chosen = decision.chosen
    for evaluation in layers.benchmarks.evaluations if layers.benchmarks and chosen else ():
        if chosen and chosen.name not in evaluation.scores:
            yield f"{chosen.name} was not evaluated on {evaluation.name}"


def _price_of_benchmarks(decision: Decision) -> Iterator[str]:
    """What is given up on what decides, so that nothing is forgotten."""
    chosen, layer = decision.chosen, decision.layer
    forgetful = [s for s in decision.standings if s.status == "out" and s.falls]
    forgetful = [s for s in forgetful if s.to_base is None or not s.to_base.worse]
    if chosen is None or not forgetful:
        return
    sign = 1 if layer.higher else -1
    best = max(forgetful, key=lambda s: sign * layer.score(s.checkpoint.name))
    gap = layer.gap(best.checkpoint.name, chosen.name)
    if gap.better:
        drop = math.ceil(100 * max(-fall.high for fall in best.falls.values())) / 100
        yield (
            f"this has its price: {best.checkpoint.name}, which falls on"
            f" {', '.join(best.falls)}, is better than {chosen.name} on what decides: {gap}. If that"
            f" fall does not matter to you, --max-drop {drop:g} lets it stand"
        )


def _later_is_worse(decision: Decision) -> Iterator[str]:
    best = decision.best
    if best is None:
        return
    later = [
        s.checkpoint.name
        for s in decision.standings
        if s.checkpoint.step > best.step and s.to_best is not None and s.to_best.worse
    ]
    logged = isinstance(decision.layer, Logged) and not decision.layer.has_noise
    if later and not logged:
        yield (
            f"trained too long: {', '.join(later)} {'is' if len(later) == 1 else 'are'} worse than"
            f" {best.name} by more than noise"
        )


def _base(decision: Decision, layers: Layers) -> Iterator[str]:
    if decision.chosen is None:
        return
    gap = decision.of(decision.chosen.name).to_base
    if gap is None:
        yield (
            "the base model has no score on what decides: whether training helped at all is not"
            " known"
        )
    elif not gap.better:
        yield f"no gain over the base model is shown: {gap}"
    if decision.kind == "loss" and layers.application is None:
        yield (
            "decided by the run's own metric alone, a stand-in: a better value need not mean better"
            " answers. Evaluate the checkpoints on your own task (--evaluate --data --grader)"
        )


def _few(decision: Decision, layers: Layers) -> Iterator[str]:
    for layer in (layers.application, layers.benchmarks, layers.nll):
        for evaluation in layer.evaluations if layer else ():
            if evaluation.items < FEW_ITEMS:
                yield (
                    f"{evaluation.name} has {counted(evaluation.items, 'item')}: with fewer than"
                    f" {FEW_ITEMS} the intervals are too narrow"
                )
    if isinstance(decision.layer, Logged) and not decision.layer.has_noise:
        yield (
            "the run logged means only, so no interval can be told: the differences may be noise"
        )


def _unseen(run: Run) -> Iterator[str]:
    curve = run.metrics.curve(names.HELD_OUT_LOSS)
    if run.loss is not None and curve is not None and len(curve) < EVALUATIONS_NEEDED:
        yield (
            f"only {counted(len(curve), 'held-out evaluation')}: over-fitting is not seen with fewer"
            f" than {EVALUATIONS_NEEDED}; train with a smaller eval_every"
        )
