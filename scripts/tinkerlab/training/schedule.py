"""Learning rates: the recommended one for a model, and its course over a run."""

from __future__ import annotations

from typing import Literal

from tinkerlab.errors import InputError

ScheduleName = Literal["linear", "cosine", "constant"]


def recommended_learning_rate(base_model: str) -> float:
    """``tinker_cookbook.hyperparam_utils.get_lr``: 5e-4 scaled by the model's hidden size.

    Raises:
        InputError: the cookbook has no formula for this model, or can't read its size.
    """
    from tinker_cookbook.exceptions import ConfigurationError
    from tinker_cookbook.hyperparam_utils import get_lr

    try:
        return float(get_lr(base_model))
    except NotImplementedError:
        reason = "tinker-cookbook's formula is not calibrated for it"
    except ConfigurationError:
        reason = "tinker-cookbook has a formula for Llama and Qwen only"
    except (OSError, ValueError) as error:
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error)
        reason = f"its hidden size could not be read ({first_line})"
    raise InputError(
        f"learning_rate=auto: no value for {base_model}: {reason}. Set a number: about 1e-4 to"
        " 5e-4 suits LoRA on models of 1B and more, 1e-3 the 135M rehearsal model"
    )


def learning_rate_at(
    step: int, total_steps: int, *, peak: float, schedule: ScheduleName, warmup_steps: int = 0
) -> float:
    """The learning rate of ``step`` (from 0), a pure function so that a resume can't shift it.

    Linear warm-up reaches ``peak`` at step ``warmup_steps``; then tinker-cookbook's schedule
    (``compute_schedule_lr_multiplier``) runs over the steps that are left.
    """
    from tinker_cookbook.utils.lr_scheduling import compute_schedule_lr_multiplier

    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    return peak * compute_schedule_lr_multiplier(
        schedule, step - warmup_steps, total_steps - warmup_steps
    )
