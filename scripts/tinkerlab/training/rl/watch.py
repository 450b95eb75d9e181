"""Stops a run that has nothing more to learn from or is falling apart, and says why.

The rules look at the metrics rows alone, those of an earlier start too, so a resumed run comes
to the same end. A window is ``collapse_patience`` steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tinkerlab.cli import say
from tinkerlab.runs.checkpoints import CheckpointRecord
from tinkerlab.training.rl.config import RLConfig
from tinkerlab.training.run import Stop

REWARD = "env/all/reward/total"
MIXED = "env/all/by_group/frac_mixed"
ALL_GOOD = "env/all/by_group/frac_all_good"
TRUNCATED = "env/all/truncated"
LENGTH = "env/all/ac_tokens_per_turn"
ERRORS = "env/all/grader_error"
KL = "optim/kl_sample_train_v2"
HELD_OUT = "test/env/all/reward/total"

MOST = 0.9  # truncated completions from which a run that began below half of it is lost
SHARE_LOST = 0.5  # of the way from the lowest reward to the best window
KL_LIMIT = 0.5  # half the mean squared difference of logprobs; healthy on-policy runs: 0.01
LENGTH_FACTOR = 2.0
MORE_CUT = 0.25
HELD_OUT_DROP = 0.1  # of the range of rewards


class CollapseWatch:
    """A listener of the training loop.

    Args:
        rows: what earlier starts of the run have logged.
    """

    def __init__(self, config: RLConfig, rows: Sequence[Mapping[str, Any]]) -> None:
        self._config = config
        self._rows: list[Mapping[str, Any]] = list(rows)
        self._warned: set[str] = set()

    def checkpoint(self, record: CheckpointRecord) -> None:
        return None

    def row(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Take a row in.

        Raises:
            Stop: the run has collapsed.
        """
        self._rows.append(metrics)
        for name, text in self._suspicions():
            if name not in self._warned:
                self._warned.add(name)
                say(f"warning: step {step + 1}: {text}")
        if REWARD not in metrics:
            return
        if metrics.get(ERRORS, 0.0) >= 1.0:
            raise Stop(
                f"reward {self._config.reward} failed on every completion of step {step + 1}"
                " (rollouts.jsonl shows them); mend it, and use a new run_name"
            )
        if self._config.stop_on_collapse:
            reason = self._collapse()
            if reason:
                raise Stop(f"{reason} (stop_on_collapse=false would go on)")

    def _trained(self) -> list[Mapping[str, Any]]:
        return [row for row in self._rows if REWARD in row]

    def _collapse(self) -> str | None:
        rows = self._trained()
        window = self._config.collapse_patience
        if len(rows) < window:
            return None
        last = rows[-window:]
        reward = _mean(last, REWARD)
        if all(row[MIXED] == 0 and row[ALL_GOOD] < 1 for row in last):
            entropy = _mean(last, "optim/entropy")
            return (
                f"no group had signal in {window} steps: rewards within each group are the same"
                f" (mean {reward:.3g}, entropy {entropy:.3g} nats per token). The policy answers"
                " alike, or the tasks are too hard for it: a lower learning_rate, a"
                " kl_penalty_coef, or easier tasks"
            )
        if all(row.get(KL, 0.0) > KL_LIMIT for row in last[-3:]) and len(last) >= 3:
            return (
                f"{KL} is over {KL_LIMIT:g} in three steps ({last[-1][KL]:.3g}): training and"
                " sampling disagree on the policy. A lower learning_rate, fewer num_substeps or"
                " max_steps_off_policy, or temperature=1"
            )
        early = rows[:window]
        if (
            len(rows) >= 2 * window
            and all(row[TRUNCATED] >= MOST for row in last)
            and _mean(early, TRUNCATED) < MOST / 2
        ):
            return (
                f"length explosion: {_mean(last, TRUNCATED):.0%} of the completions reach"
                f" max_tokens, {_mean(early, TRUNCATED):.0%} did at first. Raise max_tokens, let"
                " the reward count length, or lower learning_rate"
            )
        return self._fallen(rows, reward)

    def _fallen(self, rows: Sequence[Mapping[str, Any]], reward: float) -> str | None:
        """The reward has lost most of what it had, and is below where it began."""
        window = self._config.collapse_patience
        if len(rows) < 2 * window:
            return None
        values = [row[REWARD] for row in rows]
        total, means = sum(values[:window]), []
        for index in range(window, len(values) + 1):
            means.append(total / window)
            if index < len(values):
                total += values[index] - values[index - window]
        lowest = min(row.get("env/all/reward/min", row[REWARD]) for row in rows)
        best = max(means)
        if reward < means[0] and reward < best - SHARE_LOST * (best - lowest):
            return (
                f"the reward has collapsed: {reward:.3g} over the last {window} steps,"
                f" {means[0]:.3g} at first and {best:.3g} at best. A lower learning_rate, a"
                " kl_penalty_coef or grad_clip_norm; an earlier checkpoint may be worth keeping"
            )
        return None

    def _suspicions(self) -> list[tuple[str, str]]:
        """Signs of reward hacking: the reward rises and something else that matters does not.

        And that there is nothing more to learn, which is no reason to stop.
        """
        rows = self._trained()
        window = self._config.collapse_patience
        if len(rows) >= window and all(row[ALL_GOOD] >= 1 for row in rows[-window:]):
            return [
                ("solved", f"every group was solved alike in {window} steps: take harder tasks")
            ]
        if len(rows) < 2 * window:
            return []
        early, last = rows[:window], rows[-window:]
        spread = max(row.get("env/all/reward/max", row[REWARD]) for row in rows) - min(
            row.get("env/all/reward/min", row[REWARD]) for row in rows
        )
        gain = _mean(last, REWARD) - _mean(early, REWARD)
        if spread <= 0 or gain <= 0.1 * spread:
            return []
        found = []
        if _mean(last, LENGTH) > LENGTH_FACTOR * _mean(early, LENGTH):
            found.append(
                (
                    "length",
                    f"the reward rose by {gain:.3g} while completions grew from"
                    f" {_mean(early, LENGTH):.0f} to {_mean(last, LENGTH):.0f} tokens: read"
                    " rollouts.jsonl, the reward may pay for length",
                )
            )
        cut = _mean(last, TRUNCATED) - _mean(early, TRUNCATED)
        if cut > MORE_CUT:
            found.append(
                (
                    "truncated",
                    f"the reward rose by {gain:.3g} while the share of completions that max_tokens"
                    f" cuts rose from {_mean(early, TRUNCATED):.0%} to {_mean(last, TRUNCATED):.0%}:"
                    " the policy answers and talks on; zero_reward_on_limit=true takes the reward"
                    " from such completions",
                )
            )
        evaluations = [row[HELD_OUT] for row in self._rows if HELD_OUT in row]
        if len(evaluations) >= 2 and evaluations[-1] < max(evaluations) - HELD_OUT_DROP * spread:
            found.append(
                (
                    "held_out",
                    f"the reward in training rose by {gain:.3g} while the held-out reward fell"
                    f" from {max(evaluations):.3g} to {evaluations[-1]:.3g}: the policy may be"
                    " exploiting the training tasks",
                )
            )
        return found


def _mean(rows: Sequence[Mapping[str, Any]], key: str) -> float:
    values = [row[key] for row in rows if key in row]
    return sum(values) / len(values) if values else 0.0
