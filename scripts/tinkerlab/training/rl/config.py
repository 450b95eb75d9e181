"""Every setting of an RL run. ``templates/rl-config.yaml`` explains each.

Names are those of ``tinker_cookbook.rl.train.Config`` where it has the setting.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import chz

from tinkerlab.training import config_checks as checks
from tinkerlab.training.starting import require_trainable

# What each policy loss takes in loss_fn_config, after the service's pages on losses
# (tinker-docs.thinkingmachines.ai/tinker/losses). A test compares the names with the SDK's.
_CLIP = ("clip_low_threshold", "clip_high_threshold")
POLICY_LOSSES: dict[str, tuple[str, ...]] = {
    "importance_sampling": (),
    "ppo": _CLIP,
    "cispo": _CLIP,
    "dro": ("beta",),
    "gspo": _CLIP,
}
NO_POLICY_LOSSES = {
    "cross_entropy": "it imitates, and takes no advantages: use scripts/sl_trainer.py",
    "custom": "it runs on the client and is not configured by name",
    "stable_reinforce": "it needs stability records of the sampler, which this trainer does not"
    " keep",
}

# Settings of the cookbook's Config classes that have another name here, or no counterpart.
ELSEWHERE = {
    "model_name": "here it is base_model",
    "dataset_builder": "here it is dataset and reward",
    "renderer_name": "here it is renderer",
    "max_steps": "here it is num_steps",
    "batch_size": "here it is groups_per_batch",
    "wandb_name": "here it is run_name",
    "async_config": "here it is max_steps_off_policy (groups_per_batch is the same)",
    "kl_reference_config": "here it is kl_reference_path",
    "rollout_json_export": "here it is rollouts_per_step",
    "num_groups_to_log": "here it is rollouts_per_step",
    "stream_minibatch_config": "this trainer has no streaming minibatches; max_steps_off_policy"
    " overlaps sampling and training",
    "rolling_save_every": "this trainer has no rolling checkpoints; set save_every",
    "termination": "of TerminationRewardPolicy there is zero_reward_on_limit",
    "rollout_error_tolerance": "a grader's failure counts as failure_reward; a service's ends the"
    " run, and the same command goes on",
}


def check_loss_settings(loss_fn: str, settings: Mapping[str, float] | None) -> None:
    """Refuse what ``loss_fn``, one of ``POLICY_LOSSES``, does not take.

    Raises:
        ValueError: a setting that it does not have, or one that is no finite number.
    """
    known = POLICY_LOSSES[loss_fn]
    for key, value in (settings or {}).items():
        if key not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise ValueError(f"loss_fn_config: {loss_fn} has no setting {key!r}; {has}")
        if not math.isfinite(value):
            raise ValueError(f"loss_fn_config: {key} must be a finite number, got {value}")


@chz.chz
class RLConfig:
    """Settings of one RL run.

    The loss is a sum over the tokens of all completions of a batch; nothing is divided by
    tokens, completions or groups (tinker-cookbook's convention, from which its learning rates
    come). Advantages are rewards minus the mean of their group, not divided by its deviation.
    """

    base_model: str
    dataset: str
    reward: str
    run_name: str = "rl"
    log_path: str | None = None
    load_checkpoint_path: str | None = None

    # tasks
    eval_dataset: str | None = None
    max_train_tasks: int | None = None
    max_eval_tasks: int = 100
    failure_reward: float = 0.0
    grader_timeout: float = 10.0
    zero_reward_on_limit: bool = False
    renderer: str = "auto"
    system_prompt: str | None = None

    # sampling
    groups_per_batch: int = 8
    group_size: int = 8
    max_tokens: int = 256
    temperature: float = 1.0
    stop: list[str] | None = None
    eval_temperature: float = 0.0
    seed_samples: bool = True

    # loss
    loss_fn: str = "importance_sampling"
    loss_fn_config: dict[str, float] | None = None
    num_substeps: int = 1
    remove_constant_reward_groups: bool = False
    kl_penalty_coef: float = 0.0
    kl_discount_factor: float = 0.0
    kl_reference_path: str | None = None
    compute_post_kl: bool = False
    max_steps_off_policy: int = 0

    # adapter
    lora_rank: int = 32
    train_mlp: bool = True
    train_attn: bool = True
    train_unembed: bool = True

    # length and rhythm
    num_steps: int = 100
    eval_every: int = 20
    save_every: int = 20

    # optimizer
    learning_rate: float | Literal["auto"] = "auto"
    lr_schedule: Literal["linear", "cosine", "constant"] = "constant"
    warmup_steps: int = 0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.95
    adam_eps: float = 1e-8
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0

    # when not to begin, and when to stop
    preflight_groups: int = 8
    stop_on_collapse: bool = True
    collapse_patience: int = 10

    # the run
    seed: int = 0
    rollouts_per_step: int = 8
    ttl_seconds: int | None = 604_800
    wandb_project: str | None = None

    @property
    def folder(self) -> Path:
        """The run's folder: ``log_path``, or ``runs/<run_name>``."""
        return Path(self.log_path or f"runs/{self.run_name}").expanduser()

    @chz.validate
    def _check(self) -> None:
        checks.run_name(self.run_name)
        checks.at_least_one(
            self,
            (
                "groups_per_batch",
                "max_tokens",
                "num_substeps",
                "num_steps",
                "lora_rank",
                "max_train_tasks",
                "preflight_groups",
                "collapse_patience",
            ),
        )
        checks.not_negative(
            self,
            (
                "max_eval_tasks",
                "eval_temperature",
                "kl_penalty_coef",
                "kl_discount_factor",
                "max_steps_off_policy",
                "eval_every",
                "save_every",
                "warmup_steps",
                "rollouts_per_step",
                "seed",
            ),
        )
        if self.group_size < 2:
            raise ValueError(
                f"group_size must be at least 2, got {self.group_size}: a reward counts by its"
                " difference from the group's mean"
            )
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ValueError(
                f"temperature must be above 0, got {self.temperature}: at 0 all completions of a"
                " group are the same"
            )
        if not (math.isfinite(self.grader_timeout) and self.grader_timeout > 0):
            raise ValueError(f"grader_timeout must be above 0 seconds, got {self.grader_timeout}")
        if not math.isfinite(self.failure_reward):
            raise ValueError(f"failure_reward must be a finite number, got {self.failure_reward}")
        if self.num_substeps > self.groups_per_batch:
            raise ValueError(
                f"num_substeps={self.num_substeps} splits the groups of a batch, but"
                f" groups_per_batch is {self.groups_per_batch}"
            )
        if self.stop is not None and not all(self.stop):
            raise ValueError("stop: a stop sequence is empty")
        self._check_loss()
        self._check_paths()
        checks.optimizer(self)
        checks.adapter(self)
        checks.ttl(self.ttl_seconds)

    def _check_loss(self) -> None:
        name = self.loss_fn
        if name in NO_POLICY_LOSSES:
            raise ValueError(f"loss_fn {name}: not for this trainer: {NO_POLICY_LOSSES[name]}")
        if name not in POLICY_LOSSES:
            nearest = difflib.get_close_matches(name, POLICY_LOSSES, n=1, cutoff=0.5)
            hint = f"did you mean {nearest[0]}?" if nearest else "not in the installed SDK;"
            raise ValueError(f"loss_fn {name!r}: {hint} there are {', '.join(POLICY_LOSSES)}")
        check_loss_settings(name, self.loss_fn_config)

    def _check_paths(self) -> None:
        path = self.kl_reference_path
        if path is not None and path != "base" and "/sampler_weights/" not in path:
            raise ValueError(
                f"kl_reference_path {path}: must be 'base' or a tinker://<run>/sampler_weights/"
                "<name> path (sampler_path in the run's checkpoints.jsonl)"
            )
        require_trainable(self.load_checkpoint_path)
        if self.kl_penalty_coef > 0 and self.load_checkpoint_path and path is None:
            raise ValueError(
                "kl_penalty_coef with load_checkpoint_path: say what to stay close to, with"
                " kl_reference_path: the checkpoint's sampler_weights path, or 'base'"
            )
