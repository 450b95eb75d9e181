"""The metric names that runs write, each with the code that writes it.

Checked against tinker-cookbook 0.5.8 (``C/``) and this project's trainer (``training/``). A
name that no table knows is kept and ignored.
"""

from __future__ import annotations

STEP = ("step", "progress/batch", "_step", "global_step", "iteration", "batch")
"""Optimizer step or batch. ``step``: C/stores/training_store.py write_metrics, runs/metrics.py;
``progress/batch``: C/rl/train.py, C/distillation; ``_step``: a W&B export."""

TRAIN_LOSS = (
    "train_mean_nll",  # C/supervised/train.py finish_batch; training/supervised_objective.py
    "train/mean_nll",
    "dpo_loss",  # C/preference/train_dpo.py dpo_loss_fn
    "train_loss",
    "train/loss",
    "loss",
    "loss:mean",
)
"""Losses that fall as a run learns, in nats. Sums such as ``loss:sum`` are left out: they grow
with the batch, and in RL they are no measure of progress."""

HELD_OUT_LOSS = (
    "test/nll",  # C/supervised/nll_evaluator.py; training/supervised_objective.py
    "val/nll",
    "eval/nll",
    "val_nll",
    "test/loss",
    "val/loss",
    "eval/loss",
    "eval_loss",
    "val_loss",
)

LEARNING_RATE = ("learning_rate", "optim/lr", "lr")
"""C/supervised/train.py, C/preference/train_dpo.py: ``learning_rate``; C/rl: ``optim/lr``."""

PROGRESS = ("progress", "progress/done_frac")
"""Share of the run. ``(step + 1) / total`` in C/supervised and C/rl of 0.5.8; ``step / total``
in C/preference and in older lines, so a finished run may end one step below 1."""

REWARD = ("env/all/reward/total", "reward/total", "reward/mean", "reward_mean", "reward")
"""Mean of the rollouts' total rewards: C/rl/metric_util.py _compute_trajectory_metrics."""

REPLY_TOKENS = ("env/all/ac_tokens_per_turn", "ac_tokens_per_turn", "completion_tokens_mean")
TURNS = ("env/all/turns_per_episode", "turns_per_episode")
FORMAT = ("env/all/format", "env/all/format_valid", "env/all/reward/format", "format")
CORRECT = ("env/all/correct", "env/all/accuracy", "env/all/reward/correct", "correct")
"""``format`` and ``correct``: C/rl/problem_env.py step, averaged under ``env/all/``."""

TRUNCATED = ("env/all/truncated",)
"""Share of replies cut at max_tokens: training/rl/objective.py. The cookbook's ``stop/<reason>``
metrics are averaged over the rollouts that have them (C/utils/misc_utils.py dict_mean), so they
tell no share."""

GROUPS_MIXED = ("env/all/by_group/frac_mixed", "by_group/frac_mixed")
GROUPS_BAD = ("env/all/by_group/frac_all_bad", "by_group/frac_all_bad")
GROUPS_GOOD = ("env/all/by_group/frac_all_good", "by_group/frac_all_good")
"""Shares of groups with unequal, equal and low, equal and high rewards: C/rl/metric_util.py."""

DISTILLATION = ("teacher_kl", "sdft/")
"""Beginnings of metrics of C/distillation. Its environments reward nothing: the signal is the
teacher's, so that zero rewards are no fault there."""

KL_SAMPLE_TRAIN = ("optim/kl_sample_train_v1", "kl_sample_train_v1")
KL_SAMPLE_TRAIN_SQUARED = ("optim/kl_sample_train_v2", "kl_sample_train_v2")
ENTROPY = ("optim/entropy", "entropy")
"""C/rl/metrics.py compute_kl_sample_train, in nats per sampled token."""

FINITE = (
    *TRAIN_LOSS,
    *HELD_OUT_LOSS,
    *LEARNING_RATE,
    *REWARD,
    *KL_SAMPLE_TRAIN,
    *KL_SAMPLE_TRAIN_SQUARED,
    *ENTROPY,
    "test/nll_per_token",
    "grad_norm",
    "optim/grad_norm",
    "loss:sum",
    "train/loss:sum",
    "teacher_kl",
    "kl_policy_base",
    "sdft/reverse_kl_mean",
)
"""Metrics that are a number in every healthy row in which they occur."""

TRAINING = (*TRAIN_LOSS, *LEARNING_RATE, *REWARD, *ENTROPY, "loss:sum", "num_tokens")
"""A row with one of these is a training step. Others are rows of an evaluation alone: the
asynchronous RL loop logs them under a step that has a row already (C/rl/train.py
evaluation_loop), this project's trainer after the last step."""

TIME = "time/"
STEP_TIME = ("time/total", "time/step", "batch_time")
"""``time/total``: C/utils/trace.py IterationWindow; the time since the last row in training/.
``time/step`` alone (older lines) is the wait for the two results."""

HOUSEKEEPING = ("eval", "save", "gantt")
"""Words in the names of parts that do not run at every step, so that they make steps unequal
without a fault: C/rl/train.py run_evals, save_checkpoint; C/supervised/train.py evals."""

LOSS_TOKENS = "num_loss_tokens"
SEQUENCES = "num_sequences"
"""C/supervised/train.py: the sum of the loss weights, and the examples of the batch."""

HIGHER_IS_BETTER = (
    "score",
    "accuracy",
    "correct",
    "reward/total",
    "pass@1",
    "pass_at_1",
    "win_rate",
)
"""Last parts of evaluation metrics: C/eval/benchmark_evaluator.py ``eval/<name>/score``,
C/rl/metric_util.py ``test/env/all/...``, C/eval/custom_evaluators.py ``accuracy``."""

EVALUATION = ("eval/", "test/", "val/", "valid/", "validation/")
"""First parts of evaluation metrics."""


def is_score(key: str) -> bool:
    """Whether ``key`` is an evaluation metric that should rise."""
    if not key.startswith(EVALUATION):
        return False
    return any(key.endswith(("/" + name, "_" + name)) for name in HIGHER_IS_BETTER)
