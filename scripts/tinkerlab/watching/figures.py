"""Which figures tell how a run of each kind is going, and which way they should move."""

from __future__ import annotations

from typing import Literal

from tinkerlab.diagnosis.run_analysis import names
from tinkerlab.diagnosis.run_analysis.run import Run

Kind = Literal["sft", "rl", "dpo", "distill"]

TRAINED_ON: dict[Kind, tuple[str, ...]] = {
    "sft": names.TRAIN_LOSS,
    "rl": names.REWARD,
    "dpo": ("dpo_loss",),
    # C/distillation train_on_policy, sdft, train_off_policy; training/distill/objective.py
    "distill": ("teacher_kl", "sdft/reverse_kl_mean", *names.TRAIN_LOSS),
}
"""What a step is about; the first that a run logs."""

HELD_OUT: dict[Kind, tuple[str, ...]] = {
    "sft": names.HELD_OUT_LOSS,
    "rl": ("test/env/all/correct", "test/env/all/reward/total"),
    # The loss grows with dpo_beta; the share of pairs ranked right does not.
    "dpo": ("test/accuracy", "test/dpo_loss", *names.HELD_OUT_LOSS),
    "distill": ("test/teacher_kl", "test/env/all/correct", *names.HELD_OUT_LOSS),
}
"""What a run is judged by; the first that it logs, otherwise any score."""

_LABELS = {
    "train_mean_nll": "loss",
    "train/mean_nll": "loss",
    "dpo_loss": "loss",
    "sdft/reverse_kl_mean": "reverse KL",
    "teacher_kl": "KL to teacher",
    "score": "score",
    "nll": "NLL",
}


def kind_of(run: Run) -> Kind:
    """What is trained, by the metrics that are logged; ``sft`` while there are none."""
    if "dpo_loss" in run.metrics:
        return "dpo"
    if run.is_distillation or "test/teacher_kl" in run.metrics:
        return "distill"
    return "rl" if run.is_rl else "sft"


def held_out_key(run: Run, kind: Kind) -> str | None:
    """The metric of held-out items that the run is judged by; None before the first one."""
    found = run.metrics.first(HELD_OUT[kind])
    return found or next((key for key in run.metrics.keys if names.is_score(key)), None)


def higher_is_better(key: str) -> bool:
    """Whether an evaluation metric should rise; losses and KLs should fall."""
    return names.is_score(key) or key.endswith(("margin", *names.REWARD, *names.CORRECT))


def label(key: str) -> str:
    """A metric's name for people: ``test/env/all/reward/total`` is ``reward``."""
    if key in _LABELS:
        return _LABELS[key]
    parts = [part for part in key.split("/") if part not in ("env", "all", "total")]
    if len(parts) > 1 and key.startswith(names.EVALUATION):
        parts = parts[1:]
    if len(parts) > 1 and parts[-1] == "score":
        parts = parts[:-1]  # eval/gsm8k/score is gsm8k
    text = "/".join(parts)
    return _LABELS.get(text, text.replace("_", " "))
