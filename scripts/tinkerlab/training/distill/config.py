"""Every setting of a distillation run. ``templates/distill-config.yaml`` explains each.

Names are those of ``tinker_cookbook.distillation.train_on_policy.Config`` where it has the
setting.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import chz

from tinkerlab.training import config_checks as checks
from tinkerlab.training.rl.config import check_loss_settings
from tinkerlab.training.starting import require_trainable

# Settings of the cookbook's Config classes that have another name here, or no counterpart.
ELSEWHERE = {
    "model_name": "here it is base_model",
    "dataset_configs": "here it is dataset and teacher, or teachers",
    "dataset_builder": "here it is dataset",
    "teacher_config": "here it is teacher",
    "renderer_name": "here it is renderer",
    "max_steps": "here it is num_steps",
    "batch_size": "here it is groups_per_batch times group_size",
    "wandb_name": "here it is run_name",
    "recipe_name": "here it is run_name",
    "base_url": "set TINKER_BASE_URL",
    "evaluator_builders": "the KL of held-out prompts is measured every eval_every steps; other"
    " evaluations run on the saved checkpoints",
    "n_teacher_targets": "this trainer has no soft targets; method=off_policy trains on the"
    " teacher's samples",
    "teacher_concurrency": "this trainer has no soft targets; see method",
    "num_substeps": "this trainer makes one update a batch",
    "compute_post_kl": "this trainer does not measure it; test/teacher_kl is of new samples",
}


@chz.chz
class DistillConfig:
    """Settings of one distillation run.

    On-policy, the student samples and each of its tokens has the advantage
    ``-kl_penalty_coef * (log p_student - log p_teacher)``: the reverse KL, as in tinker-cookbook.
    Off-policy, the student imitates the teacher's samples: cross-entropy, each sample's mean over
    its tokens, summed over the batch.
    """

    base_model: str
    dataset: str | None = None
    teacher: str | None = None
    teachers: dict[str, str] | None = None
    method: Literal["on_policy", "off_policy"] = "on_policy"
    run_name: str = "distill"
    log_path: str | None = None
    load_checkpoint_path: str | None = None

    # prompts
    max_train_tasks: int | None = None
    max_eval_tasks: int = 50
    renderer: str = "auto"
    system_prompt: str | None = None

    # sampling
    groups_per_batch: int = 8
    group_size: int = 4
    max_tokens: int = 256
    temperature: float = 1.0

    # loss of on-policy distillation
    kl_penalty_coef: float = 1.0
    kl_discount_factor: float = 0.0
    loss_fn: Literal["importance_sampling", "ppo", "cispo"] = "importance_sampling"
    loss_fn_config: dict[str, float] | None = None

    # adapter
    lora_rank: int = 32
    train_mlp: bool = True
    train_attn: bool = True
    train_unembed: bool = True

    # length and rhythm
    num_steps: int = 50
    eval_every: int = 10
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

    # the run
    seed: int = 0
    ttl_seconds: int | None = 604_800
    wandb_project: str | None = None

    @property
    def folder(self) -> Path:
        """The run's folder: ``log_path``, or ``runs/<run_name>``."""
        return Path(self.log_path or f"runs/{self.run_name}").expanduser()

    @property
    def pairs(self) -> Mapping[str, str]:
        """Each dataset's teacher."""
        if self.teachers:
            return self.teachers
        assert self.dataset and self.teacher  # the config's own check
        return {self.dataset: self.teacher}

    @chz.validate
    def _check(self) -> None:
        checks.run_name(self.run_name)
        if self.teachers and (self.dataset or self.teacher):
            raise ValueError("teachers names datasets and their teachers; leave the others out")
        if not self.teachers and not (self.dataset and self.teacher):
            raise ValueError("missing: dataset and teacher, or teachers as {dataset: teacher}")
        checks.at_least_one(
            self,
            (
                "groups_per_batch",
                "group_size",
                "max_tokens",
                "max_train_tasks",
                "num_steps",
                "lora_rank",
            ),
        )
        checks.not_negative(
            self,
            (
                "max_eval_tasks",
                "kl_penalty_coef",
                "kl_discount_factor",
                "eval_every",
                "save_every",
                "warmup_steps",
                "seed",
            ),
        )
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ValueError(
                f"temperature must be above 0, got {self.temperature}: the KL is estimated on"
                " samples of the distribution"
            )
        if self.kl_penalty_coef == 0:
            raise ValueError("kl_penalty_coef must be above 0: it is the only thing to learn from")
        check_loss_settings(self.loss_fn, self.loss_fn_config)
        require_trainable(self.load_checkpoint_path)
        checks.optimizer(self)
        checks.adapter(self)
        checks.ttl(self.ttl_seconds)
