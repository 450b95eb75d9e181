"""RL on a rehearsal: it learns, it repeats itself, and an interruption changes nothing."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rl_tools import rollouts, rows, run, saved_steps, share_of_e

from tinkerlab.errors import CheckFailed, InputError
from tinkerlab.grading.types import Grade
from tinkerlab.runs import checkpoints, jsonl, metrics

ROUNDING = 1e-3  # of the sampler's logits, carried through a few steps of training


@pytest.fixture(autouse=True)
def use(rehearsal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TINKER_BASE_URL", "TINKER_API_KEY"):
        monkeypatch.setenv(name, rehearsal.env[name])


@pytest.fixture(scope="module")
def reference(
    rehearsal: Any, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What an uninterrupted run of four steps leaves."""
    folder = tmp_path_factory.mktemp("rl") / "reference"
    with pytest.MonkeyPatch.context() as patch:
        for name in ("TINKER_BASE_URL", "TINKER_API_KEY"):
            patch.setenv(name, rehearsal.env[name])
        code, summary = run(folder).train()
    assert code == 0 and summary["status"] == "complete"
    assert saved_steps(folder) == [2, 4]
    return rows(folder), rollouts(folder)


def same(folder: Path, reference: Any) -> None:
    """The completions are the same ones; the numbers agree to rounding."""
    expected_rows, expected_rollouts = reference
    assert rollouts(folder) == expected_rollouts
    found = rows(folder)
    assert [row["step"] for row in found] == [row["step"] for row in expected_rows]
    for row, expected in zip(found, expected_rows, strict=True):
        assert row.keys() == expected.keys()
        for key, value in expected.items():
            assert math.isclose(row[key], value, rel_tol=ROUNDING, abs_tol=ROUNDING), key


def ends_the_same(tmp_path: Path, reference: Any, scenario: Callable[[Path], None]) -> None:
    """What ``scenario`` does in a folder ends as the reference did.

    Rounding in the sampler may move a draw from one token to the next (see ``rl.run``): expected
    less than once in a hundred such runs, so a second difference is a defect.
    """
    folder = tmp_path / "first"
    scenario(folder)
    if rollouts(folder) != reference[1]:
        folder = tmp_path / "second"
        scenario(folder)
    same(folder, reference)


def test_training_raises_the_reward(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained = run(tmp_path / "run", num_steps=8, groups_per_batch=4, group_size=8)
    code, summary = trained.train()
    assert code == 0
    assert summary["held_out_reward_last"] > summary["held_out_reward_first"] + 0.3
    assert summary["reward_last"] > summary["reward_first"] + 0.5
    text = capsys.readouterr().err
    assert "pre-flight: 2 groups of 8 completions" in text
    assert "step 8/8  reward" in text and "entropy" in text


def test_rows_have_the_cookbooks_names(reference: Any) -> None:
    found, _ = reference
    keys = {
        "env/all/reward/total",
        "env/all/by_group/frac_mixed",
        "env/all/ac_tokens_per_turn",
        "env/all/truncated",
        "optim/kl_sample_train_v1",
        "optim/kl_sample_train_v2",
        "optim/entropy",
        "optim/lr",
        "progress/batch",
        "progress/done_frac",
    }
    for row in found[:-1]:
        assert keys <= set(row)
        assert abs(row["optim/kl_sample_train_v1"]) < 1e-4  # on-policy: only rounding
        assert ("test/env/all/reward/total" in row) == (row["step"] % 2 == 0)
    assert "test/env/all/reward/total" in found[-1]


def test_the_same_run_twice_is_the_same(tmp_path: Path, reference: Any) -> None:
    def train(folder: Path) -> None:
        run(folder).train()

    ends_the_same(tmp_path, reference, train)


@pytest.mark.parametrize("stop_after", [0, 1, 2, 3])
def test_interrupted_after_any_step_it_ends_the_same(
    tmp_path: Path, reference: Any, monkeypatch: pytest.MonkeyPatch, stop_after: int
) -> None:
    append = metrics.append

    def append_and_press(path: Path, step: int, row: Any) -> None:
        append(path, step, row)
        if step == stop_after:
            os.kill(os.getpid(), signal.SIGINT)

    def interrupted(folder: Path) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(metrics, "append", append_and_press)
            code, summary = run(folder).train()
        if stop_after < 3:
            assert (code, summary["status"]) == (130, "interrupted")
            assert saved_steps(folder)[-1] == stop_after + 1
        assert run(folder).train()[0] == 0

    ends_the_same(tmp_path, reference, interrupted)


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the trainer may catch it and save something."""


@pytest.mark.slow
def test_killed_at_any_write_it_ends_the_same(
    tmp_path: Path, reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = jsonl.append
    finished = False

    def killed(folder: Path, kill_at: int) -> None:
        nonlocal finished
        count = 0

        def append_or_die(path: Path, row: Any) -> None:
            nonlocal count
            count += 1
            if count == kill_at:
                raise Killed
            append(path, row)

        with monkeypatch.context() as patch:
            patch.setattr(jsonl, "append", append_or_die)
            try:
                run(folder).train()
                finished = True
            except Killed:
                pass
        assert run(folder).train()[0] == 0

    for kill_at in range(1, 80, 6):
        here = tmp_path / str(kill_at)
        ends_the_same(here, reference, lambda folder, at=kill_at: killed(folder, at))
        if finished:
            return
    pytest.fail("the run has more writes than were tried")


def test_sampling_ahead_is_off_policy_and_resumes_at_its_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps ahead, but never across a checkpoint; so a kill after one changes nothing."""
    ahead: dict[str, Any] = {"max_steps_off_policy": 2, "num_steps": 6, "save_every": 3}
    run(tmp_path / "whole", **ahead).train()
    found = rows(tmp_path / "whole")
    assert [row.get("sampling_client/step_mean") for row in found] == [0, 0, 0, 3, 3, 3, None]
    assert found[2]["optim/kl_sample_train_v2"] > 1e-4
    append = metrics.append

    def append_or_die(path: Path, step: int, row: Any) -> None:
        if step == 4:
            raise Killed
        append(path, step, row)

    def killed(folder: Path) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(metrics, "append", append_or_die)
            with pytest.raises(Killed):
                run(folder, **ahead).train()
        assert saved_steps(folder) == [3]
        assert run(folder, **ahead).train()[0] == 0

    ends_the_same(tmp_path, (found, rollouts(tmp_path / "whole")), killed)


def test_other_settings_do_not_go_on_with_a_run(
    tmp_path: Path, reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    run(folder, num_steps=1).train()
    with pytest.raises(InputError, match=r"temperature was 1\.0 and is 0\.5"):
        run(folder, num_steps=1, temperature=0.5).train()
    with pytest.raises(InputError, match="loss_fn was 'importance_sampling' and is 'ppo'"):
        run(folder, num_steps=1, loss_fn="ppo").train()
    code, summary = run(folder, num_steps=1, save_every=7, rollouts_per_step=1).train()
    assert (code, summary["status"]) == (0, "already complete")


def refused(folder: Path, function: Callable[[str], float | Grade], reason: str, **changes: Any):
    """The pre-flight stops the run, and nothing is recorded that would hold its settings."""
    with pytest.raises((CheckFailed, InputError), match=f"^not worth training: {reason}") as caught:
        run(folder, function, **changes).train()
    assert not (folder / "config.json").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_without_signal_it_does_not_begin(tmp_path: Path) -> None:
    refused(tmp_path / "a", lambda text: 0.5, "truncated: .*max_tokens=8")
    wrong = Grade(0.0, correct=False, extracted="7")
    refused(tmp_path / "b", lambda text: wrong, "too hard: none of 8", max_tokens=400, **ENDS)
    right = Grade(1.0, correct=True, extracted="7")
    refused(tmp_path / "c", lambda text: right, "too easy: all 8", max_tokens=400, **ENDS)
    broken = Grade(0.0, error="ValueError: no number")
    text = refused(tmp_path / "d", lambda text: broken, "reward test failed on 8 of 8")
    assert "ValueError: no number" in text and "tasks.jsonl:" in text
    # With other settings the same folder can be used: nothing was begun in it.
    assert run(tmp_path / "a", num_steps=1).train()[0] == 0


# A random model rarely ends its turn, but often says one of these letters.
ENDS = {"stop": ["e", "t", "a", "o", " "]}


def test_a_grader_that_fails_on_everything_stops_the_run(tmp_path: Path) -> None:
    calls = 0

    def breaks_later(text: str) -> float | Grade:
        nonlocal calls
        calls += 1
        return share_of_e(text) if calls <= 8 + 2 + 8 else Grade(0.0, error="timed out")

    with pytest.raises(CheckFailed, match=r"^stopped: reward test failed on every completion"):
        run(tmp_path / "run", breaks_later).train()
    assert rollouts(tmp_path / "run")[-1]["error"] == "timed out"


def test_a_grader_that_fails_now_and_then_is_shown_and_counts_as_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = 0

    def fails_at_the_third(text: str) -> float | Grade:
        nonlocal calls
        calls += 1
        failed = calls > 8 and calls % 3 == 0
        return Grade(-1.0, error="exit code 9") if failed else share_of_e(text)

    code, _ = run(tmp_path / "run", fails_at_the_third, failure_reward=-1.0, num_steps=2).train()
    assert code == 0
    text = capsys.readouterr().err
    assert text.count("warning: step 1: reward test failed on") == 1
    assert "exit code 9; the first: '" in text and "step 2: reward test failed" not in text
    assert 0.2 < rows(tmp_path / "run")[0]["env/all/grader_error"] < 0.5


def test_a_completion_that_is_cut_gets_nothing_where_asked(tmp_path: Path) -> None:
    settings = {"num_steps": 1, "stop": ["e", "t"], "max_tokens": 40}
    run(
        tmp_path / "run", lambda text: 1.0 + len(text), zero_reward_on_limit=True, **settings
    ).train()
    found = rollouts(tmp_path / "run")
    assert {row["truncated"] for row in found} == {True, False}
    assert all((row["reward"] == 0.0) == row["truncated"] for row in found)


def test_samples_without_seeds_differ_from_run_to_run(tmp_path: Path) -> None:
    for name in ("one", "two"):
        # A reward that differs whatever is sampled, or the pre-flight might refuse.
        run(
            tmp_path / name, lambda t: sum(t.encode()) % 101, num_steps=1, seed_samples=False
        ).train()
    first, second = rollouts(tmp_path / "one"), rollouts(tmp_path / "two")
    assert [row["completion"] for row in first] != [row["completion"] for row in second]


def test_a_collapsed_run_stops_with_its_reason(tmp_path: Path) -> None:
    calls = 0

    def runs_dry(text: str) -> float:
        nonlocal calls
        calls += 1
        return share_of_e(text) if calls <= 8 + 2 + 8 else 0.0

    settings = {"num_steps": 8, "collapse_patience": 2, "eval_every": 0}
    with pytest.raises(CheckFailed, match=r"^stopped: no group had signal in 2 steps"):
        run(tmp_path / "run", runs_dry, **settings).train()
    calls = 0
    assert run(tmp_path / "on", runs_dry, **settings, stop_on_collapse=False).train()[0] == 0


def test_what_the_policy_may_drift_from(tmp_path: Path) -> None:
    """The KL penalty's metric is zero at first and grows; substeps and post-KL are measured."""
    folder = tmp_path / "run"
    settings = {"kl_penalty_coef": 0.1, "num_substeps": 2, "compute_post_kl": True}
    assert run(folder, **settings).train()[0] == 0
    found = rows(folder)
    assert abs(found[0]["kl_policy_base"]) < 1e-4 < found[-2]["kl_policy_base"]
    assert all(row["kl_pre_post_v2"] > 0 for row in found[:-1])
    # The second half of a batch is sampled by the weights before the first half's update.
    assert all(row["optim/kl_sample_train_v2"] > 1e-6 for row in found[:-1])


def test_a_reference_that_is_gone_is_one_line(tmp_path: Path) -> None:
    path = "tinker://none:train:0/sampler_weights/final"
    with pytest.raises(InputError, match=r"kl_reference_path tinker://none.*it expired") as caught:
        run(tmp_path / "run", kl_penalty_coef=0.1, kl_reference_path=path).train()
    assert "\n" not in str(caught.value)


def test_it_begins_from_a_checkpoint(tmp_path: Path, rehearsal: Any) -> None:
    first = tmp_path / "first"
    run(first, num_steps=3).train()
    record = checkpoints.read(first)[-1]
    second = run(tmp_path / "second", num_steps=1, load_checkpoint_path=record.state_path)
    assert second.train()[0] == 0
    before = rows(first)[-1]["test/env/all/reward/total"]
    assert rows(tmp_path / "second")[0]["test/env/all/reward/total"] == pytest.approx(before)
    with pytest.raises(InputError, match="its rank is 4, not 8; set lora_rank=4"):
        run(tmp_path / "x", load_checkpoint_path=record.state_path, lora_rank=8).train()
    with pytest.raises(InputError, match="it expired, was deleted, or"):
        run(tmp_path / "x", load_checkpoint_path=f"{record.state_path}x").train()
