"""The losses of ``forward_backward``, as formulas over each token's logprob.

Every loss is a **sum** over tokens: nothing is divided by tokens, sequences or batch. In the
formulas, ``p`` is the trained model's logprob of the target token (with its gradient), ``q``
the input ``logprobs`` (the sampler's), ``A`` the input ``advantages``, ``r = exp(p - q)``.
They are those of the service's documentation (tinker-docs.thinkingmachines.ai/tinker/losses,
one page for each loss); the papers are cited at each.

Not to be found there, so ours: ``beta`` of dro is 0.05 if not given (the page's example); gspo
clips at 0.8 and 1.2 as ppo does, and without ``sequence_ratio_mask`` it takes the tokens whose
advantage isn't zero; policy losses accept ``weights`` (the page's first example sends them)
and multiply by them. What a threshold that a datum sends for each token does isn't documented
either; it replaces the one in ``loss_fn_config``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from tinkerlab.rehearsal.engine.types import TrainingDatum
from tinkerlab.rehearsal.errors import UserError

Inputs = Mapping[str, Tensor]
Config = Mapping[str, float]

# The input that the training loop adds for a loss with ``sequence_ratio``: for each token the
# mean log-ratio of its sequence, a constant.
SEQUENCE_LOG_RATIO = "sequence_log_ratio"


@dataclass(frozen=True)
class Loss:
    """One loss function.

    Attributes:
        required, optional: names of per-token inputs.
        defaults: what ``loss_fn_config`` may hold, with its values if not given.
        elementwise: (logprobs, inputs, config) -> loss of each token, same shape.
        has_gradient: (inputs, config) -> bool for each token: False only where the gradient
            is zero whatever the logprob is.
        soft_targets: targets may be ``[T, K]``.
        sequence_ratio: needs ``SEQUENCE_LOG_RATIO``.
    """

    required: frozenset[str]
    elementwise: Callable[[Tensor, Inputs, Config], Tensor]
    has_gradient: Callable[[Inputs, Config], Tensor]
    optional: frozenset[str] = frozenset()
    defaults: Mapping[str, float] = field(default_factory=dict)
    soft_targets: bool = False
    sequence_ratio: bool = False


def _cross_entropy(logprobs: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """``-w p``; weights of any sign (client-side custom losses send negative ones)."""
    return -logprobs * inputs["weights"]


def _importance_sampling(logprobs: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """``-r A``."""
    ratio = torch.exp(logprobs - inputs["logprobs"])
    return _weighted(-ratio * inputs["advantages"], inputs)


def _ppo(logprobs: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """``-min(r A, clip(r, low, high) A)`` (Schulman et al., 2017, equation 7)."""
    ratio = torch.exp(logprobs - inputs["logprobs"])
    return _weighted(-_clipped_objective(ratio, inputs, config), inputs)


def _cispo(logprobs: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """``-sg[clip(r, low, high)] A p`` (MiniMax-M1, 2025, equations 4 and 5)."""
    ratio = torch.exp(logprobs.detach() - inputs["logprobs"])
    return _weighted(-_clip(ratio, inputs, config) * inputs["advantages"] * logprobs, inputs)


def _dro(logprobs: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """``-(A p - beta / 2 (p - q)^2)`` (Richemond et al., 2024).

    The penalty counts at every token, those without an advantage too: that is the formula.
    """
    penalty = 0.5 * config["beta"] * (logprobs - inputs["logprobs"]).square()
    return _weighted(penalty - logprobs * inputs["advantages"], inputs)


def _gspo(logprobs: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """GSPO-token (Zheng et al., 2025, section 4.3): ppo's objective on the sequence's ratio.

    The ratio has the value of the sequence's geometric mean, and each token's own gradient.
    """
    ratio = torch.exp(inputs[SEQUENCE_LOG_RATIO] + (logprobs - logprobs.detach()))
    return _weighted(-_clipped_objective(ratio, inputs, config), inputs)


def _clip(ratio: Tensor, inputs: Inputs, config: Config) -> Tensor:
    bounds = [
        inputs.get(name, torch.tensor(config[name]))
        for name in ("clip_low_threshold", "clip_high_threshold")
    ]
    return torch.clamp(ratio, bounds[0], bounds[1])


def _clipped_objective(ratio: Tensor, inputs: Inputs, config: Config) -> Tensor:
    advantages = inputs["advantages"]
    return torch.minimum(ratio * advantages, _clip(ratio, inputs, config) * advantages)


def _weighted(loss: Tensor, inputs: Inputs) -> Tensor:
    weights = inputs.get("weights")
    return loss if weights is None else loss * weights


def _weights_count(inputs: Inputs, config: Config) -> Tensor:
    return inputs["weights"] != 0


def _advantage_counts(inputs: Inputs, config: Config) -> Tensor:
    return _weighted(inputs["advantages"], inputs) != 0


def _penalty_counts(inputs: Inputs, config: Config) -> Tensor:
    if config["beta"] == 0:
        return _advantage_counts(inputs, config)
    return _weighted(torch.ones_like(inputs["advantages"]), inputs) != 0


_POLICY = frozenset({"target_tokens", "logprobs", "advantages"})
_THRESHOLDS = frozenset({"clip_low_threshold", "clip_high_threshold"})
_PPO_CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
_CISPO_CLIP = {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0}  # one-sided, as documented

LOSSES: dict[str, Loss] = {
    "cross_entropy": Loss(
        frozenset({"target_tokens", "weights"}), _cross_entropy, _weights_count, soft_targets=True
    ),
    "importance_sampling": Loss(
        _POLICY, _importance_sampling, _advantage_counts, frozenset({"weights"})
    ),
    "ppo": Loss(_POLICY, _ppo, _advantage_counts, _THRESHOLDS | {"weights"}, _PPO_CLIP),
    "cispo": Loss(_POLICY, _cispo, _advantage_counts, _THRESHOLDS | {"weights"}, _CISPO_CLIP),
    "dro": Loss(_POLICY, _dro, _penalty_counts, frozenset({"weights"}), {"beta": 0.05}),
    "gspo": Loss(
        _POLICY,
        _gspo,
        _advantage_counts,
        _THRESHOLDS | {"weights", "sequence_ratio_mask"},
        _PPO_CLIP,
        sequence_ratio=True,
    ),
}


def resolve(name: str, config: Mapping[str, float | str] | None) -> tuple[Loss, dict[str, float]]:
    """The loss ``name`` and its whole configuration.

    Raises:
        UserError: an unknown loss; a setting that it doesn't have or that is no finite number.
    """
    if name not in LOSSES:
        raise UserError(
            f"loss_fn {name!r} is not supported by the rehearsal; it has {', '.join(LOSSES)}"
        )
    loss = LOSSES[name]
    settings = dict(loss.defaults)
    for key, value in (config or {}).items():
        if key not in loss.defaults:
            known = ", ".join(loss.defaults) or "no settings"
            raise UserError(f"loss_fn_config: {name} has no {key!r}; it has {known}")
        if isinstance(value, str) or not math.isfinite(value):
            raise UserError(f"loss_fn_config: {key} must be a finite number, got {value!r}")
        settings[key] = float(value)
    if settings.get("clip_low_threshold", 0.0) > settings.get("clip_high_threshold", math.inf):
        raise UserError(
            f"loss_fn_config: clip_low_threshold {settings['clip_low_threshold']} is over"
            f" clip_high_threshold {settings['clip_high_threshold']}"
        )
    if settings.get("beta", 0.0) < 0:
        raise UserError(f"loss_fn_config: beta must not be negative, got {settings['beta']}")
    return loss, settings


def check_inputs(
    name: str, config: Mapping[str, float | str] | None, data: Sequence[TrainingDatum]
) -> None:
    """Refuse a request that the loss can't be computed for; nothing is computed yet.

    Raises:
        UserError: names the datum's index, the input and what is wrong with it.
    """
    loss, _ = resolve(name, config)
    if not data:
        raise UserError("forward_backward needs at least one datum")
    for index, datum in enumerate(data):
        problem = _datum_problem(name, loss, datum)
        if problem:
            raise UserError(f"datum {index}: {problem}")


def _datum_problem(name: str, loss: Loss, datum: TrainingDatum) -> str | None:
    length = len(datum.tokens)
    if length == 0:
        return "model_input is empty"
    given = datum.loss_inputs
    missing = sorted(loss.required - given.keys())
    if missing:
        return f"loss_fn {name} needs {', '.join(missing)} in loss_fn_inputs"
    unknown = sorted(given.keys() - loss.required - loss.optional)
    if unknown:
        return f"loss_fn {name} has no input {unknown[0]!r}; it takes " + ", ".join(
            sorted(loss.required | loss.optional)
        )
    targets = given["target_tokens"]
    if targets.dtype.kind not in "iu":
        return f"target_tokens must be integers, got {targets.dtype}"
    if targets.ndim != 1 and not (loss.soft_targets and targets.ndim == 2 and targets.shape[1]):
        return f"target_tokens has shape {list(targets.shape)}; {name} takes [{length}]" + (
            f" or [{length}, K]" if loss.soft_targets else ""
        )
    if len(targets) != length:
        return f"target_tokens has {len(targets)} positions, model_input has {length} tokens"
    for key, value in given.items():
        if key == "target_tokens":
            continue
        if value.shape != targets.shape:
            return f"{key} has shape {list(value.shape)}, target_tokens {list(targets.shape)}"
        if not np.isfinite(value).all():
            return f"{key} holds a value that is not finite"
    mask = given.get("sequence_ratio_mask")
    if mask is not None and not mask.any() and given["advantages"].any():
        return "sequence_ratio_mask marks no token, but advantages do"
    return None


def sequence_log_ratio(logprobs: Tensor, inputs: Inputs) -> Tensor:
    """Mean of ``p - q`` over one sequence's marked tokens (a scalar), 0 where none is marked."""
    mask = inputs.get("sequence_ratio_mask", inputs["advantages"]) != 0
    if not mask.any():
        return torch.zeros(())
    return (logprobs - inputs["logprobs"])[mask].mean()
