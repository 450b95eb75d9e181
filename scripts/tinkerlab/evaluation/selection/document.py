"""A selection as one JSON document: what the page shows, and what a script may read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tinkerlab.data.words import counted
from tinkerlab.diagnosis.run_analysis.run import Run
from tinkerlab.evaluation import hashing
from tinkerlab.evaluation.selection.checkpoints import Checkpoint
from tinkerlab.evaluation.selection.decide import Decision, Layers, Standing
from tinkerlab.evaluation.selection.layers import TITLES, Evaluation, Gap, Measured
from tinkerlab.evaluation.selection.logged import Logged


@dataclass(frozen=True)
class Selection:
    """Everything about one choice, before any of it is formatted.

    Attributes:
        commands: what to run next and to repeat this, by purpose.
        inputs: hashes of what it was made from; equal ones make the very same selection.
    """

    run: Run
    checkpoints: Sequence[Checkpoint]
    layers: Layers
    decision: Decision
    warnings: Sequence[str] = ()
    left_out: Sequence[str] = ()
    commands: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)
    max_drop: float = 0.0

    @property
    def evaluations(self) -> list[Evaluation]:
        layers = (self.layers.nll, self.layers.benchmarks, self.layers.application)
        return [evaluation for layer in layers if layer for evaluation in layer.evaluations]

    @property
    def verdict(self) -> str:
        """One line."""
        chosen = self.decision.chosen
        if chosen is None:
            return f"take none of the {counted(len(self.checkpoints), 'checkpoint')}"
        last = self.checkpoints[-1].step
        return f"take {chosen.name} (step {chosen.step} of {last})"


def because(selection: Selection) -> list[str]:
    """The reasons, in the order of the rule."""
    decision = selection.decision
    if decision.chosen is None:
        return _why_none(decision)
    chosen, layer = decision.of(decision.chosen.name), decision.layer
    told = [f"decided by the {TITLES[layer.kind]}: {_score(selection, chosen)}"]
    told.append(_against_the_best(decision))
    names = decision.tied
    dropped = [s for s in decision.standings if s.status == "behind" and s.checkpoint.name in names]
    told += [f"{s.checkpoint.name}: {s.why}" for s in dropped]
    told += [
        f"{s.checkpoint.name} ({layer.score(s.checkpoint.name):.4g}) is out: {s.why}"
        for s in decision.standings
        if s.status == "out"
    ]
    if selection.layers.benchmarks is not None:
        told += _benchmarks(selection.layers.benchmarks, chosen)
    return told


def _why_none(decision: Decision) -> list[str]:
    reasons = [f"{s.checkpoint.name}: {s.why}" for s in decision.standings if s.status == "out"]
    return [
        f"every one of the {counted(len(reasons), 'checkpoint')} that could be compared is worse"
        " than the base model by more than noise: stay with the base model and train again"
        " (lower learning rate, fewer steps, other data)",
        *reasons,
    ]


def _score(selection: Selection, standing: Standing) -> str:
    name, layer = standing.checkpoint.name, selection.decision.layer
    if isinstance(layer, Logged):
        text = f"{layer.key} {layer.score(name):.4g}"
        at = layer.at[name]
        text += f" at step {at}" if at != standing.checkpoint.step else ""
    else:
        text = f"{layer.score(name):.3f}"
        if isinstance(layer, Measured) and len(layer.evaluations) == 1:
            low, high = layer.evaluations[0].interval(name)
            text = f"{layer.evaluations[0].name} {text} (95 % interval {low:.3f} to {high:.3f}, {layer.told_by()})"
        else:
            text += f" ({layer.told_by()})"
    if standing.to_base is not None:
        text += f"; against the base model {standing.to_base}"
    return text


def _against_the_best(decision: Decision) -> str:
    """Whether the choice is the best, and which others may be as good."""
    assert decision.chosen is not None and decision.best is not None
    chosen, best, layer = decision.chosen, decision.best, decision.layer
    if decision.compared == 1:
        return "it is the only checkpoint with a result"
    unknown = isinstance(layer, Logged) and not layer.has_noise
    if len(decision.tied) == 1:
        if unknown:
            better = "highest" if layer.higher else "lowest"
            return f"it has the {better} of the logged means; no interval is available for those"
        if not decision.comparisons:
            return "it is the only one that is not out"
        return f"it is the best of those not out; {layer.told_by()} tell it apart from each of them"
    which = f"{', '.join(decision.tied[:-1])} and {decision.tied[-1]}"
    text = f"these {len(decision.tied)} are not told apart by {layer.told_by()}: {which}"
    if chosen == best:
        return f"{text}; of them it has the best score"
    gap = decision.of(chosen.name).to_best
    return (
        f"{text}; {best.name} has the best score ({chosen.name} against it: {gap}), which noise"
        " explains, so the earlier one: less training, less over-fitting"
    )


def _benchmarks(benchmarks: Measured, chosen: Standing) -> list[str]:
    kept = []
    name = chosen.checkpoint.name
    for evaluation in benchmarks.evaluations:
        if name not in evaluation.scores or evaluation.base is None:
            continue
        gap = Measured("benchmarks", [evaluation]).gap_to_base(name, len(evaluation.scores))
        kept.append(f"{evaluation.name} {gap}")
    return [f"no benchmark falls by more than noise: {', '.join(kept)}"] if kept else []


def as_dict(selection: Selection) -> dict[str, Any]:
    """For ``--json`` and ``selection.json``."""
    decision, chosen = selection.decision, selection.decision.chosen
    return {
        "verdict": selection.verdict,
        "chosen": None if chosen is None else _checkpoint(chosen),
        "because": because(selection),
        "warnings": list(selection.warnings),
        "decided_by": decision.kind,
        "told_apart_by": decision.layer.told_by(),
        "not_told_apart": decision.tied,
        "best_score": decision.best.name if decision.best else None,
        "max_drop": selection.max_drop,
        "checkpoints": [_row(selection, standing) for standing in decision.standings],
        "evaluations": [
            {
                "layer": e.kind,
                "name": e.name,
                "items": e.items,
                "base_score": e.base_mean,
                "folders": {name or "base": str(folder) for name, folder in e.folders.items()},
            }
            for e in selection.evaluations
        ],
        "left_out": list(selection.left_out),
        "commands": selection.commands,
        "inputs": selection.inputs,
        "inputs_sha256": hashing.value_sha256(selection.inputs),
    }


def _checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "name": checkpoint.name,
        "step": checkpoint.step,
        "sampler_path": checkpoint.sampler_path,
        "state_path": checkpoint.state_path,
    }


def _row(selection: Selection, standing: Standing) -> dict[str, Any]:
    name = standing.checkpoint.name
    scores: dict[str, Any] = {}
    logged = selection.layers.logged
    if logged is not None and name in logged.names:
        scores[logged.key] = {"score": logged.score(name), "at_step": logged.at[name]}
    for evaluation in selection.evaluations:
        if name in evaluation.scores:
            low, high = evaluation.interval(name)
            scores[evaluation.name] = {"score": evaluation.mean(name), "low": low, "high": high}
    return {
        **_checkpoint(standing.checkpoint),
        "status": standing.status,
        "why": standing.why,
        "scores": scores,
        "to_best": _gap(standing.to_best),
        "to_base": _gap(standing.to_base),
        "below_base_on": sorted(standing.falls),
    }


def _gap(gap: Gap | None) -> dict[str, float | None] | None:
    if gap is None:
        return None
    low, high = (gap.low, gap.high) if gap.measured else (None, None)
    return {"mean": gap.mean, "low": low, "high": high}
