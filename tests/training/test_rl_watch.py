"""When a run is stopped, and what is only said; each rule with a run that it leaves alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rl_tools import config

from tinkerlab.training.rl.watch import CollapseWatch
from tinkerlab.training.run import Stop


def row(reward: float, **changes: Any) -> dict[str, float]:
    return {
        "env/all/reward/total": reward,
        "env/all/reward/min": 0.0,
        "env/all/reward/max": 1.0,
        "env/all/by_group/frac_mixed": 0.5,
        "env/all/by_group/frac_all_good": 0.2,
        "env/all/truncated": 0.1,
        "env/all/ac_tokens_per_turn": 20.0,
        "env/all/grader_error": 0.0,
        "optim/kl_sample_train_v2": 0.001,
        "optim/entropy": 0.5,
        **{name.replace("__", "/"): value for name, value in changes.items()},
    }


def watch(rows: list[dict[str, float]], **changes: Any) -> str | None:
    """The reason for which the run was stopped."""
    watcher = CollapseWatch(config(Path("unused"), collapse_patience=3, **changes), [])
    for step, metrics in enumerate(rows):
        try:
            watcher.row(step, metrics)
        except Stop as error:
            assert step == len(rows) - 1, "stopped before the end"
            return str(error)
    return None


HEALTHY = [row(0.1 * n) for n in range(9)]
DULL = {
    "env/all/by_group/frac_mixed": 0.0,
    "env/all/by_group/frac_all_good": 0.0,
}


def test_a_healthy_run_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    noisy = [row(0.3 + 0.1 * (n % 3)) for n in range(30)]
    for rows in (HEALTHY, noisy):
        assert watch(rows) is None
    assert capsys.readouterr().err == ""


def test_a_solved_run_is_told_and_not_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    solved = row(1.0, **{**DULL, "env/all/by_group/frac_all_good": 1.0})
    assert watch([*HEALTHY, *[solved] * 9]) is None
    assert capsys.readouterr().err.count("every group was solved alike in 3 steps") == 1


def test_no_signal_for_long_is_a_collapse() -> None:
    reason = watch([*HEALTHY, *[row(0.4, **DULL)] * 3])
    assert reason and reason.startswith("no group had signal in 3 steps")
    assert watch([*HEALTHY, *[row(0.4, **DULL)] * 2, row(0.4)]) is None
    assert watch([*HEALTHY, *[row(0.4, **DULL)] * 6], stop_on_collapse=False) is None


def test_a_reward_that_falls_below_its_beginning_is_a_collapse() -> None:
    start = [row(0.3)] * 3
    reason = watch([*start, *[row(0.8)] * 3, row(0.1), row(0.1), row(0.1)])
    assert reason and reason.startswith("the reward has collapsed: 0.1 over the last 3 steps")
    assert watch([*start, *[row(0.8)] * 3, *[row(0.5)] * 6]) is None


def test_training_and_sampling_that_disagree_are_a_collapse() -> None:
    reason = watch([*HEALTHY, *[row(0.9, optim__kl_sample_train_v2=0.8)] * 3])
    assert reason and "training and sampling disagree" in reason
    assert watch([*HEALTHY, *[row(0.9, optim__kl_sample_train_v2=0.8)] * 2]) is None


def test_a_length_explosion_is_a_collapse() -> None:
    reason = watch([*HEALTHY, *[row(0.9, env__all__truncated=0.97)] * 3])
    assert reason and reason.startswith("length explosion: 97% of the completions")
    assert watch([row(0.5, env__all__truncated=0.97)] * 9) is None  # it was so from the start


def test_a_grader_that_fails_on_everything_is_the_end() -> None:
    reason = watch([row(0.0, env__all__grader_error=1.0)], stop_on_collapse=False)
    assert reason and "failed on every completion of step 1" in reason
    assert watch([row(0.2, env__all__grader_error=0.9)]) is None


def test_a_reward_that_rises_with_the_length_is_said_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert watch([*HEALTHY, *[row(0.9, env__all__ac_tokens_per_turn=60.0)] * 6]) is None
    text = capsys.readouterr().err
    assert text.count("completions grew from 20 to") == 1


def test_a_reward_that_rises_with_the_cut_completions_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert watch([*HEALTHY, *[row(0.9, env__all__truncated=0.7)] * 6]) is None
    text = capsys.readouterr().err
    assert text.count("cuts rose from 10% to ") == 1 and "zero_reward_on_limit=true" in text
    assert watch([*HEALTHY, *[row(0.9, env__all__truncated=0.3)] * 6]) is None
    assert capsys.readouterr().err == ""


def test_a_held_out_reward_that_falls_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    falling = [row(0.1 * n, **{"test/env/all/reward/total": 0.8 - 0.1 * n}) for n in range(9)]
    assert watch(falling) is None
    assert "while the held-out reward fell from 0.8" in capsys.readouterr().err


def test_a_resumed_run_remembers() -> None:
    settings = config(Path("unused"), collapse_patience=3)
    watcher = CollapseWatch(settings, [*HEALTHY, row(0.4, **DULL), row(0.4, **DULL)])
    with pytest.raises(Stop, match="no group had signal"):
        watcher.row(11, row(0.4, **DULL))
