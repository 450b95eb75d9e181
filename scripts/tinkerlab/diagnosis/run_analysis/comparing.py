"""Whether the losses and learning rates of two runs may be compared at all."""

from __future__ import annotations

from collections.abc import Iterator

from tinkerlab.diagnosis.findings import Finding
from tinkerlab.diagnosis.run_analysis import losses, names
from tinkerlab.diagnosis.run_analysis.run import Run

PER_EXAMPLE, PER_TOKEN = "sum to 1 per example", "count tokens"


def against(run: Run, other: Run) -> Iterator[Finding]:
    """What keeps the curves of ``run`` and ``other`` from being compared."""
    scales = (weight_scale(run), weight_scale(other))
    if all(scales) and scales[0] != scales[1]:
        yield Finding(
            cause="loss-scales-differ",
            what=f"the loss weights {scales[0]} in one run and {scales[1]} in the other",
            where=f"{run.path} against {other.path}",
            evidence=tuple(f"{r.path}: {_seen(r)}" for r in (run, other)),
            fix="summed losses, gradient norms, grad_clip_norm and fitting learning rates differ"
            " by about the number of trained tokens per example: compare mean NLL per token"
            " alone, and train both with the same reduction (conversation_to_datum: mean)",
        )
    keys = tuple(r.metrics.first(names.TRAIN_LOSS) for r in (run, other))
    if all(keys) and keys[0] != keys[1]:
        yield Finding(
            cause="losses-differ-in-kind",
            what=f"one run logs {keys[0]}, the other {keys[1]}",
            where=f"{run.path} against {other.path}",
            fix="score both runs' checkpoints on the same held-out items instead"
            " (scripts/evaluate.py)",
        )
    models = (run.model, other.model)
    if all(models) and models[0] != models[1] and "train_mean_bpb" in run.metrics:
        yield Finding(
            cause="losses-of-other-tokenizers",
            what=f"{models[0]} against {models[1]}: NLL per token depends on the tokenizer",
            where=f"{run.path} against {other.path}",
            fix="compare train_mean_bpb and test/bpb, bits per byte, if the tokenizers differ",
            severity="warning",
        )


def weight_scale(run: Run) -> str | None:
    """How the loss weights of the run add up; None when nothing tells."""
    if run.loss is not None and ("base_model" in run.config or run.attempts):
        return PER_EXAMPLE  # this project's trainer knows no other
    sides = losses.weights_per_example(run)
    if sides is None or not len(sides[0]):
        return None
    return PER_EXAMPLE if sides[0].mean() > 0.5 else PER_TOKEN


def _seen(run: Run) -> str:
    import numpy as np

    tokens, sequences = run.metrics.curve(names.LOSS_TOKENS), run.metrics.curve(names.SEQUENCES)
    if tokens is None or sequences is None:
        return "one of this project's runs, weights always sum to 1 per example"
    return (
        f"{names.LOSS_TOKENS} {np.median(tokens.values):.4g} for {names.SEQUENCES}"
        f" {np.median(sequences.values):.4g}"
    )
