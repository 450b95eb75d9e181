"""Every setting of a supervised run. ``templates/training-config.yaml`` explains each."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import chz

from tinkerlab.data.messages import TrainOnWhat
from tinkerlab.training import config_checks as checks

AT_LEAST_ONE = (
    "max_seq_len",
    "lora_rank",
    "train_batch_size",
    "max_train_rows",
    "max_val_rows",
    "num_epochs",
    "num_steps",
)
NOT_NEGATIVE = ("eval_every", "save_every", "warmup_steps", "submit_ahead", "seed")


@chz.chz
class SupervisedConfig:
    """Settings of one supervised fine-tune.

    The loss is a sum over the batch of each example's mean NLL per trained token: weights sum
    to 1 in each example and nothing is divided by the batch size (tinker-cookbook's default,
    for which ``get_lr`` gives its learning rates). So ``grad_clip_norm`` compares with a sum
    over ``train_batch_size`` examples.
    """

    base_model: str
    train_file: str
    run_name: str = "sft"
    log_path: str | None = None

    # data
    val_file: str | None = None
    val_fraction: float = 0.1
    max_train_rows: int = 20_000
    max_val_rows: int = 2_000
    skip_bad_rows: bool = False
    allow_contamination: bool = False
    renderer: str = "auto"
    train_on_what: TrainOnWhat = "all_assistant_messages"
    max_seq_len: int = 2048

    # adapter
    lora_rank: int = 32
    train_mlp: bool = True
    train_attn: bool = True
    train_unembed: bool = True

    # length and rhythm
    train_batch_size: int = 8
    num_epochs: int | None = None
    num_steps: int | None = None
    eval_every: int = 10
    save_every: int = 20

    # optimizer
    learning_rate: float | Literal["auto"] = "auto"
    lr_schedule: Literal["linear", "cosine", "constant"] = "linear"
    warmup_steps: int = 0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.95
    adam_eps: float = 1e-8
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0

    # the run
    seed: int = 0
    submit_ahead: int = 2
    ttl_seconds: int | None = 604_800
    wandb_project: str | None = None

    @property
    def folder(self) -> Path:
        """The run's folder: ``log_path``, or ``runs/<run_name>``."""
        return Path(self.log_path or f"runs/{self.run_name}").expanduser()

    @chz.validate
    def _check(self) -> None:
        checks.run_name(self.run_name)
        checks.at_least_one(self, AT_LEAST_ONE)
        if self.max_seq_len < 2:
            raise ValueError("max_seq_len must be at least 2: one token predicts the next")
        checks.not_negative(self, NOT_NEGATIVE)
        checks.optimizer(self)
        if not 0 <= self.val_fraction < 1:
            raise ValueError(f"val_fraction must be in [0, 1), got {self.val_fraction}")
        if self.num_epochs is not None and self.num_steps is not None:
            raise ValueError("num_epochs and num_steps: set one of them, not both")
        checks.adapter(self)
        checks.ttl(self.ttl_seconds)
