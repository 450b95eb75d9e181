"""From graded groups to the datums of a step and the metrics of a batch.

The work is done by tinker-cookbook's functions; here is what stands around them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinkerlab.training.loop import Metrics
from tinkerlab.training.rl.config import RLConfig
from tinkerlab.training.rl.rollouts import Group

if TYPE_CHECKING:
    import tinker

COUNTS_EVERY_TOKEN = frozenset({"dro"})  # losses that tokens without an advantage count in


def substep_data(groups: Sequence[Group], config: RLConfig) -> list[list[tinker.Datum]]:
    """The datums of each substep; a group is never split between two."""
    from tinker_cookbook.rl.data_processing import (
        assemble_training_data,
        compute_advantages,
        remove_constant_reward_groups,
    )
    from tinker_cookbook.utils.misc_utils import split_list

    trained = [group.trajectories() for group in groups]
    source = {id(made): group for made, group in zip(trained, groups, strict=True)}
    if config.remove_constant_reward_groups:
        trained = remove_constant_reward_groups(trained)
    substeps = []
    for part in split_list(trained, min(config.num_substeps, len(trained))):
        data, places = assemble_training_data(part, compute_advantages(part))
        if config.loss_fn in COUNTS_EVERY_TOKEN:
            for datum, place in zip(data, places, strict=True):
                fill_prompt_logprobs(datum, source[id(part[place["group_idx"]])])
        substeps.append(data)
    return substeps


def trajectory_metrics(groups: Sequence[Group]) -> Metrics:
    """tinker-cookbook's metrics of a batch, and the extremes of the rewards.

    Of all groups: its loop leaves out the constant ones where it does not train on them, so
    that its mean reward is then one of mixed groups only.
    """
    from tinker_cookbook.rl.metric_util import compute_trajectory_metrics

    trajectories = [group.trajectories() for group in groups]
    metrics: Metrics = compute_trajectory_metrics(trajectories, [[] for _ in trajectories])
    rewards = [reward for group in groups for reward in group.rewards]
    metrics["env/all/reward/min"] = min(rewards)
    metrics["env/all/reward/max"] = max(rewards)
    return metrics


def fill_prompt_logprobs(datum: tinker.Datum, group: Group) -> None:
    """Put the sampler's logprobs of the prompt where assemble_training_data leaves zeros.

    dro's penalty ``beta / 2 (p - q)^2`` counts at every token (the service's page on it has no
    mask): with ``q = 0`` it would train the policy to recite the prompts.
    """
    import tinker
    import torch

    known = [float(value or 0.0) for value in group.prompt_logprobs[1:]]
    logprobs = datum.loss_fn_inputs["logprobs"].to_torch().clone()
    logprobs[: len(known)] = torch.tensor(known)
    datum.loss_fn_inputs["logprobs"] = tinker.TensorData.from_torch(logprobs)


def without_mask(datum: tinker.Datum) -> tinker.Datum:
    """The datum without ``mask``, which is for metrics and which no loss of the service takes."""
    import tinker

    inputs = {key: value for key, value in datum.loss_fn_inputs.items() if key != "mask"}
    return tinker.Datum(model_input=datum.model_input, loss_fn_inputs=inputs)
