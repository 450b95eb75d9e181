"""Every setting of a DPO run. ``templates/dpo-config.yaml`` explains each.

Names are those of ``tinker_cookbook.preference.train_dpo.Config`` where it has the setting.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import chz

from tinkerlab.training import config_checks as checks
from tinkerlab.training.starting import require_trainable

# Settings of the cookbook's Config that have another name here, or no counterpart.
ELSEWHERE = {
    "model_name": "here it is base_model",
    "dataset_builder": "here it is train_file or comparison_builder",
    "renderer_name": "here it is renderer",
    "max_steps": "here it is num_steps",
    "batch_size": "here it is train_batch_size (pairs)",
    "max_length": "here it is max_seq_len",
    "wandb_name": "here it is run_name",
    "recipe_name": "here it is run_name",
    "base_url": "set TINKER_BASE_URL",
    "reference_model_name": "the reference is where training starts: base_model, or"
    " load_checkpoint_path",
    "evaluator_builders": "held-out pairs are scored every eval_every steps; other evaluations run"
    " on the saved checkpoints",
    "infrequent_evaluator_builders": "other evaluations run on the saved checkpoints",
    "infrequent_eval_every": "here there is eval_every alone",
    "rolling_save_every": "this trainer has no rolling checkpoints; set save_every",
    "rolling_ttl_seconds": "this trainer has no rolling checkpoints; set save_every",
    "num_replicas": "the service decides",
    "loss_fn": "this trainer has the DPO loss alone; dpo_beta is its setting",
}


@chz.chz
class DPOConfig:
    """Settings of one DPO run.

    The loss is the mean over the batch of ``-log sigmoid(dpo_beta * (log-ratio of chosen minus
    log-ratio of rejected))``, where a log-ratio is the policy's summed log-probability of the
    reply minus the reference's (Rafailov et al. 2023, as in tinker-cookbook).
    """

    base_model: str
    train_file: str | None = None
    comparison_builder: str | None = None
    run_name: str = "dpo"
    log_path: str | None = None
    load_checkpoint_path: str | None = None

    # data
    comparison_builder_args: dict[str, str] | None = None
    val_file: str | None = None
    val_fraction: float = 0.1
    max_train_rows: int = 20_000
    max_val_rows: int = 2_000
    skip_bad_rows: bool = False
    allow_contamination: bool = False
    renderer: str = "auto"
    max_seq_len: int = 2048

    # loss
    dpo_beta: float = 0.1

    # adapter
    lora_rank: int = 32
    train_mlp: bool = True
    train_attn: bool = True
    train_unembed: bool = True

    # length and rhythm
    train_batch_size: int = 32
    num_epochs: int | None = None
    num_steps: int | None = None
    eval_every: int = 10
    save_every: int = 20

    # optimizer
    learning_rate: float = 1e-5
    lr_schedule: Literal["linear", "cosine", "constant"] = "linear"
    warmup_steps: int = 0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.95
    adam_eps: float = 1e-8
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0

    # the run
    seed: int = 0
    submit_ahead: int = 1
    ttl_seconds: int | None = 604_800
    wandb_project: str | None = None

    @property
    def folder(self) -> Path:
        """The run's folder: ``log_path``, or ``runs/<run_name>``."""
        return Path(self.log_path or f"runs/{self.run_name}").expanduser()

    @chz.validate
    def _check(self) -> None:
        checks.run_name(self.run_name)
        if (self.train_file is None) == (self.comparison_builder is None):
            raise ValueError(
                "train_file and comparison_builder: set one of them; the pairs come from it"
            )
        if self.comparison_builder and ":" not in self.comparison_builder:
            raise ValueError(
                f"comparison_builder {self.comparison_builder!r}: write module:Class, for example"
                " tinker_cookbook.recipes.preference.datasets:HHHComparisonBuilder"
            )
        if self.comparison_builder_args and not self.comparison_builder:
            raise ValueError("comparison_builder_args without comparison_builder: set both")
        checks.at_least_one(
            self,
            (
                "lora_rank",
                "train_batch_size",
                "max_train_rows",
                "max_val_rows",
                "num_epochs",
                "num_steps",
            ),
        )
        if self.max_seq_len < 2:
            raise ValueError("max_seq_len must be at least 2: one token predicts the next")
        checks.not_negative(
            self, ("eval_every", "save_every", "warmup_steps", "submit_ahead", "seed", "dpo_beta")
        )
        if self.dpo_beta == 0:
            raise ValueError("dpo_beta must be above 0: at 0 the loss has no gradient")
        if not 0 <= self.val_fraction < 1:
            raise ValueError(f"val_fraction must be in [0, 1), got {self.val_fraction}")
        if self.num_epochs is not None and self.num_steps is not None:
            raise ValueError("num_epochs and num_steps: set one of them, not both")
        require_trainable(self.load_checkpoint_path)
        checks.optimizer(self)
        checks.adapter(self)
        checks.ttl(self.ttl_seconds)
