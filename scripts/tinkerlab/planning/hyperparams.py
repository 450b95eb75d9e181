"""Settings to start from, each with its reason and its source.

Numbers come from the installed tinker-cookbook: its learning-rate formula, its table of LoRA
parameter counts, and the defaults of its recipes, which ``RECIPE_DEFAULTS`` names and a test
reads again.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from tinkerlab.errors import InputError

Method = Literal["sft", "rl", "dpo", "distill"]

RANKS = (8, 16, 32, 64, 128)
DEFAULT_RANK = 32
MIN_STEPS = 100  # fewer updates than this hardly move an adapter at these learning rates

SFT_FALLBACK = 2e-4
RECIPE_DEFAULTS: dict[Method, tuple[float, int, str]] = {
    # method: learning rate, batch, file below tinker_cookbook/recipes that has both
    "sft": (2e-4, 128, "sl_basic.py"),
    "rl": (4e-5, 128, "rl_basic.py"),
    "dpo": (1e-5, 256, "preference/dpo/train.py"),
    "distill": (1e-4, 1024, "distillation/on_policy_distillation.py"),
}
RL_GROUP_SIZE = 16  # rl_basic.py
DISTILL_RANK = 128  # distillation/on_policy_distillation.py


@dataclass(frozen=True)
class Suggestion:
    """One setting to start from.

    Attributes:
        setting: the key of the trainer's config.
        why: the reason in one sentence.
        source: the file, formula or paper that it comes from.
    """

    setting: str
    value: float | int
    why: str
    source: str


@dataclass(frozen=True)
class Plan:
    """Suggestions for one model, and what should be known about them."""

    model: str
    method: Method
    suggestions: list[Suggestion]
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def suggest(
    model: str,
    method: Method = "sft",
    *,
    examples: int | None = None,
    completion_tokens: int | None = None,
) -> Plan:
    """Starting settings for ``model``.

    Args:
        examples: training rows; without it no number of steps is suggested.
        completion_tokens: trained tokens of one epoch, which the rank is chosen by.

    Raises:
        InputError: fewer than one example or token.
    """
    for name, value in (("examples", examples), ("completion tokens", completion_tokens)):
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    notes: list[str] = []
    suggestions = [
        _learning_rate(model, method, notes),
        _rank(model, method, completion_tokens, notes),
        *_batch_and_steps(method, examples, notes),
    ]
    return Plan(model, method, suggestions, notes)


def _learning_rate(model: str, method: Method, notes: list[str]) -> Suggestion:
    rate, _, recipe = RECIPE_DEFAULTS[method]
    source = f"tinker_cookbook/recipes/{recipe}"
    if method == "sft":
        found = formula_rate(model)
        if isinstance(found, float):
            return Suggestion(
                "learning_rate",
                found,
                "the cookbook's formula for this family: 5e-4 (ten times its rate for full"
                " fine-tuning) scaled by hidden size; does not depend on the rank",
                "tinker_cookbook.hyperparam_utils.get_lr",
            )
        notes.append(
            f"no learning-rate formula for {model} ({found}): {rate:g} is where the cookbook's"
            f" own SFT recipe starts; try {rate / 2:g}, {rate:g} and {rate * 2.5:g} for a tenth"
            " of the steps each and keep the one with the lowest held-out NLL"
        )
        return Suggestion("learning_rate", rate, "no formula for this family", source)
    why = {
        "rl": "an RL gradient is noisier than a supervised one: 5 to 20 times below SFT's rate;"
        " use 1e-5 where episodes have several turns",
        "dpo": "the pairs say only which side is better: far below SFT's rate, or the margin"
        " runs away while the answers get worse",
        "distill": "dense signal on every token of the student's own samples",
    }[method]
    return Suggestion("learning_rate", rate, why, source)


def formula_rate(model: str) -> float | str:
    """The cookbook's learning rate for ``model``, or why it has none."""
    from tinker_cookbook.exceptions import ConfigurationError
    from tinker_cookbook.hyperparam_utils import get_lr

    try:
        return float(get_lr(model))
    except NotImplementedError:
        return "not calibrated"
    except ConfigurationError:
        return "neither Llama nor Qwen"
    except (OSError, ValueError):
        return "its hidden size is unknown here"


def lora_parameters(model: str, rank: int) -> int | None:
    """Parameters of an adapter on all modules; None for a model that the cookbook lacks."""
    from tinker_cookbook.exceptions import ConfigurationError
    from tinker_cookbook.hyperparam_utils import get_lora_param_count

    try:
        return get_lora_param_count(model, rank)
    except ConfigurationError:
        return None


def _rank(model: str, method: Method, tokens: int | None, notes: list[str]) -> Suggestion:
    source = "Schulman et al., LoRA Without Regret, 2025 (thinkingmachines.ai/blog/lora)"
    if method == "distill":
        return Suggestion(
            "lora_rank",
            DISTILL_RANK,
            "the cookbook's recipe: a teacher's whole distribution holds more than labels do",
            f"tinker_cookbook/recipes/{RECIPE_DEFAULTS['distill'][2]}",
        )
    if method in ("rl", "dpo"):
        why = (
            "one number of reward a rollout is little information: ranks of 8 and less learn it too"
        )
        return Suggestion("lora_rank", DEFAULT_RANK, why, source)
    if tokens is None:
        why = "enough for most supervised sets; give --data to choose it by their size"
        return Suggestion("lora_rank", DEFAULT_RANK, why, source)
    counts = {rank: lora_parameters(model, rank) for rank in RANKS}
    if counts[DEFAULT_RANK] is None:
        notes.append(
            f"the cookbook has no LoRA parameter count for {model}: the rank is its default"
        )
        return Suggestion("lora_rank", DEFAULT_RANK, "the trainer's default", source)
    enough = [rank for rank, count in counts.items() if count is not None and count >= tokens]
    rank = enough[0] if enough else RANKS[-1]
    rank = max(rank, DEFAULT_RANK) if rank != RANKS[-1] else rank
    if not enough:
        notes.append(
            f"{tokens:,} trained tokens are more than the {counts[RANKS[-1]]:,} parameters of rank"
            f" {RANKS[-1]}: LoRA may learn less than full fine-tuning would; watch whether the"
            " training loss stops falling early"
        )
    count = counts[rank] or 0
    why = (
        f"{count:,} adapter parameters against {tokens:,} trained tokens: LoRA keeps up with full"
        " fine-tuning while the parameters are not fewer than the tokens"
    )
    return Suggestion("lora_rank", rank, why, source)


def _batch_and_steps(method: Method, examples: int | None, notes: list[str]) -> list[Suggestion]:
    _, batch, recipe = RECIPE_DEFAULTS[method]
    source = f"tinker_cookbook/recipes/{recipe}"
    if method == "rl":
        return [
            Suggestion("groups_per_batch", batch, "different problems in one update", source),
            Suggestion(
                "group_size",
                RL_GROUP_SIZE,
                "rollouts of one problem: enough that right and wrong ones meet in a group",
                source,
            ),
        ]
    if method == "distill":
        return [Suggestion("groups_per_batch", batch, "prompts in one update", source)]
    if examples is None:
        return [Suggestion("train_batch_size", batch, "examples, not tokens", source)]
    fitting = batch
    while fitting > 4 and examples // fitting < MIN_STEPS:
        fitting //= 2
    why = "examples, not tokens"
    if fitting < batch:
        why += f"; {batch} in the recipe, fewer here so that an epoch has more updates"
    per_epoch = max(examples // fitting, 1)
    epochs = min(max(1, -(-MIN_STEPS // per_epoch)), 4)
    steps = per_epoch * epochs
    if steps < MIN_STEPS:
        notes.append(
            f"{examples} examples give {steps} updates in {epochs} epochs: expect a change of"
            " style and format, not of knowledge; more data helps more than more epochs"
        )
    return [
        Suggestion("train_batch_size", fitting, why, source),
        Suggestion(
            "num_steps",
            steps,
            f"{epochs} epoch{'s' if epochs > 1 else ''} of {per_epoch} updates; stop where the"
            " held-out NLL stops falling",
            "held-out NLL of the run itself",
        ),
    ]
