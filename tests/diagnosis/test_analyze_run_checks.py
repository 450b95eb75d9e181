"""Each check by itself: what makes it speak, and the healthy neighbour that does not."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_findings import findings, folder, of_folder, rl, sft

from tinkerlab.diagnosis.run_analysis import names, rates, robust, thresholds
from tinkerlab.diagnosis.run_analysis.analysis import analyze
from tinkerlab.diagnosis.run_analysis.run import Run

# --- false alarms -----------------------------------------------------------------------------


def test_noisy_healthy_runs_are_hardly_ever_accused() -> None:
    """Runs of 4 to 400 steps with noise of up to 30 %: at most one in a hundred."""
    noise, accused = np.random.default_rng(7), []
    for _ in range(300):
        count, sigma = int(noise.choice([4, 8, 20, 60, 400])), noise.choice([0.05, 0.15, 0.3])
        rows = sft(count)
        for step, row in enumerate(rows):
            level = 1 + 1.5 * np.exp(-4 * step / count)
            row["train_mean_nll"] = float(level * np.exp(noise.normal(0, sigma)))
            row["time/total"] = float(1 + noise.lognormal(0, 0.8))
            if step % max(1, count // 8) == 0:
                row["test/nll"] = float(level + 0.05 + noise.normal(0, 0.003))
        accused += list(findings(rows))
    assert len(accused) <= 3, accused


# --- losses -----------------------------------------------------------------------------------


def test_a_spike_that_recovers_is_a_warning() -> None:
    rows = sft(60)
    assert findings(rows) == {}
    rows[40]["train_mean_nll"] = 6.0
    found = findings(rows)
    assert found["loss-spike"].where == "step 40"
    assert found["loss-spike"].severity == "warning"


def test_a_null_loss_counts_as_nan_and_a_null_elsewhere_does_not() -> None:
    rows = sft(20)
    rows[3]["memory"] = None
    assert findings(rows) == {}
    rows[7]["train_mean_nll"] = None
    assert findings(rows)["loss-not-finite"].where == "step 7"
    for row in rows[7:]:
        row["train_mean_nll"] = None
    assert findings(rows)["loss-not-finite"].where == "step 7"


def test_nulls_of_a_table_that_was_written_out_are_no_nan() -> None:
    rows = sft(60)
    for step, row in enumerate(rows):
        row["test/nll"] = 2.0 - step / 100 if step % 10 == 0 else None
    names_of_all = set(rows[0])
    evaluations = [dict.fromkeys(names_of_all, None) | {"step": 60 + n} for n in range(6)]
    assert findings([*rows, *evaluations]) == {}


def test_a_converged_loss_is_no_plateau_and_a_constant_one_is() -> None:
    assert findings(sft(300)) == {}
    rows = [row | {"train_mean_nll": 2.0} for row in sft(40)]
    assert "nothing was updated" in str(findings(rows)["loss-plateau"].evidence)


def test_overfitting_needs_two_evaluations_and_a_falling_train_loss() -> None:
    rows = sft(100)
    for step, row in enumerate(rows):
        row["train_mean_nll"] = 2.0 - 0.018 * step
        if step % 10 == 0:
            row["test/nll"] = 1.5 + 0.00008 * (step - 40) ** 2
    finding = findings(rows)["overfitting"]
    assert "step 40" in finding.where
    for row in rows:
        row.pop("test/nll", None) if row["step"] > 50 else None
    assert findings(rows) == {}


def test_weights_that_count_tokens_throughout_are_only_noted() -> None:
    run = Run(Path("x"), None)
    for row in sft(20, num_sequences=8, num_loss_tokens=900.0):
        run.metrics.add(row)
    diagnosis = analyze(run)
    assert diagnosis.findings == []
    assert any("count tokens" in note for note in diagnosis.notes)


# --- learning rate ----------------------------------------------------------------------------


def test_a_rate_ten_times_get_lr_is_told_for_a_known_model() -> None:
    rows = [row | {"learning_rate": 4.7e-3} for row in sft(20)]
    found = findings(rows, model_name="Qwen/Qwen3.5-9B")
    assert found["lr-too-high"].severity == "warning"
    assert "9.9 times" in found["lr-too-high"].what
    twice = [row | {"learning_rate": 1e-3} for row in sft(20)]
    assert findings(twice, model_name="Qwen/Qwen3.5-9B") == {}
    assert findings(rows, model_name="tiny:llama") == {}, "no formula, and the run is fine"


def test_the_bounds_of_the_formula_are_the_installed_ones() -> None:
    from tinker_cookbook.hyperparam_utils import get_lr

    largest, smallest = get_lr("Qwen/Qwen3.6-35B-A3B"), get_lr("meta-llama/Llama-3.1-70B")
    assert pytest.approx(largest, rel=1e-3) == thresholds.LARGEST_FORMULA_LR
    assert pytest.approx(smallest, rel=1e-3) == thresholds.SMALLEST_FORMULA_LR


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
@pytest.mark.parametrize("warm_up", [0, 5])
def test_the_expected_course_is_that_of_the_trainers(schedule: Any, warm_up: int) -> None:
    from tinkerlab.training.schedule import learning_rate_at

    course = rates.expected_course(np.arange(40), 40, schedule, warm_up)
    for step in range(40):
        expected = learning_rate_at(step, 40, peak=1.0, schedule=schedule, warmup_steps=warm_up)
        assert course[step] == pytest.approx(expected)


def test_the_schedule_of_a_run_in_progress_follows_its_progress() -> None:
    rows = sft(15, total=40)
    for step, row in enumerate(rows):
        row["learning_rate"] = 3e-4 * (1 - step / 40)
    settings = {"learning_rate": 3e-4, "lr_schedule": "linear"}
    assert findings(rows, **settings) == {}
    for step, row in enumerate(rows):
        row["learning_rate"] = 3e-4 * (1 - step / 15)
    assert set(findings(rows, **settings)) == {"lr-not-as-configured"}
    assert set(findings(sft(15), **settings)) == {"lr-not-as-configured"}


# --- steps and resumes ------------------------------------------------------------------------


def test_a_changed_rate_at_a_repeated_step_is_told() -> None:
    rows = sft(20, total=40)
    again = [row | {"learning_rate": 5e-5} for row in sft(40)[15:]]
    assert set(findings([*rows, *sft(40)[15:]])) == set(), "the same losses: redone exactly"
    assert set(findings([*rows, *again])) == {"lr-changed-on-resume"}


def test_steps_logged_again_with_a_higher_loss_are_told_as_duplicates() -> None:
    again = [row | {"train_mean_nll": row["train_mean_nll"] + 0.05} for row in sft(40)[15:]]
    found = findings([*sft(20, total=40), *again])
    assert set(found) == {"steps-duplicated"}
    assert found["steps-duplicated"].where == "steps 15-19"


def test_a_run_begun_again_in_its_folder_is_no_resume() -> None:
    slower = [
        row | {"train_mean_nll": row["train_mean_nll"] + 0.02 * row["step"]} for row in sft(40)
    ]
    found = findings([*sft(12, total=40), *slower])
    assert set(found) == {"steps-duplicated"}
    assert "began again" in found["steps-duplicated"].what


def test_checkpoints_of_a_later_epoch_count_from_the_start(tmp_path: Path) -> None:
    rows = [row | {"epoch": row["step"] // 10} for row in sft(25, total=40)]
    records = [{"name": f"{s:06d}", "batch": s % 10, "epoch": s // 10} for s in (5, 10, 15, 20)]
    path = folder(tmp_path, rows, config={"save_every": 5}, checkpoints=records)
    assert of_folder(path) == {}
    assert set(of_folder(folder(tmp_path, rows, checkpoints=records[:1]))) == {
        "checkpoints-missing"
    }


def test_rl_resumed_from_its_checkpoint_repeats_rows_without_fault(tmp_path: Path) -> None:
    rows = rl(12, lambda _: {})
    again = [row | {"env/all/reward/total": 0.5} for row in rl(20, lambda _: {})[8:]]
    records = [{"name": "000008", "batch": 8}, {"name": "final", "batch": 20}]
    assert of_folder(folder(tmp_path, [*rows, *again], checkpoints=records)) == {}


def test_rows_logged_every_ten_steps_miss_nothing() -> None:
    rows = [row | {"step": 10 * row["step"]} for row in sft(20)]
    assert findings(rows) == {}
    assert set(findings([*rows[:8], *rows[10:]])) == {"steps-missing"}


def test_evaluation_rows_between_the_training_rows_are_no_steps() -> None:
    """The asynchronous RL loop logs evaluations under steps that have a row already."""
    rows = rl(12, lambda _: {})
    rows.insert(8, {"step": 5, "test/env/all/reward/total": 0.4, "time/total": 9.0})
    rows.insert(11, {"step": 9, "test/env/all/reward/total": 0.5, "time/total": 9.0})
    assert findings(rows) == {}


def test_a_line_that_two_writers_share_is_told(tmp_path: Path) -> None:
    path = folder(tmp_path, sft(20, total=40))
    file = path / "metrics.jsonl"
    lines = file.read_text().splitlines()
    lines[9] = lines[9][:30] + lines[9]
    file.write_text("\n".join(lines) + "\n")
    found = of_folder(path)
    assert found["metrics-lines-broken"].where == "metrics.jsonl:10"
    assert found["metrics-lines-broken"].severity == "warning"


# --- checkpoints and the end ------------------------------------------------------------------


def final(**label: Any) -> list[dict[str, Any]]:
    return [{"name": "final", "state_path": "tinker://r/weights/final", **label}]


@pytest.mark.parametrize(
    ("label", "right"),
    [
        ({"batch": 20, "epoch": 0}, True),
        ({"batch": 0, "epoch": 1}, True),  # tinker-cookbook 0.5.8
        ({"step": 20}, True),
        ({"batch": 19, "epoch": 0}, False),
        ({"batch": 0, "epoch": 0}, False),
        ({"batch": 20, "epoch": 1}, False),
        ({"step": 10}, False),
    ],
)
def test_the_final_label_must_count_the_steps(tmp_path: Path, label: Any, right: bool) -> None:
    found = of_folder(folder(tmp_path, sft(20), checkpoints=final(**label)))
    assert set(found) == (set() if right else {"final-checkpoint-label"})


def test_a_complete_run_must_record_its_final_checkpoint(tmp_path: Path) -> None:
    assert of_folder(folder(tmp_path, sft(20))) == {}, "metrics alone may be an excerpt"
    found = of_folder(folder(tmp_path, sft(20), config={"save_every": 20}))
    assert set(found) == {"final-checkpoint-missing"}


def test_a_ttl_below_an_hour(tmp_path: Path) -> None:
    config = {"save_every": 10, "ttl_seconds": 600}
    found = of_folder(folder(tmp_path, sft(20), config=config, checkpoints=final(batch=20)))
    assert set(found) == {"ttl-too-short"}


def test_an_old_unfinished_run_is_stopped_or_stalled(tmp_path: Path) -> None:
    from tinkerlab.runs.folder import RunFolder

    path = folder(tmp_path, sft(10, total=40))
    assert of_folder(path) == {}
    then = time.time() - 7200
    os.utime(path / "metrics.jsonl", (then, then))
    assert of_folder(path)["run-stopped-early"].severity == "warning"
    with RunFolder(path).locked():
        assert set(of_folder(path)) == {"run-stalled"}


# --- time -------------------------------------------------------------------------------------


def test_steps_with_an_evaluation_or_a_save_may_take_longer() -> None:
    rows = sft(40)
    for step in (10, 20, 30):
        rows[step] |= {"time/total": 30.0, "time/run_evals": 28.0}
    assert findings(rows) == {}
    for step in (10, 20, 30):
        del rows[step]["time/run_evals"]
        rows[step]["time/sampling:max"] = 27.0
    found = findings(rows)
    assert set(found) == {"slow-steps"}
    assert "time/sampling" in str(found["slow-steps"].evidence)


def test_data_that_takes_most_of_each_step() -> None:
    assert findings([row | {"time/get_batch": 0.1} for row in sft(20)]) == {}
    slow = [row | {"time/get_batch": 1.5} for row in sft(20)]
    assert set(findings(slow)) == {"data-loading-slow"}


# --- foundations ------------------------------------------------------------------------------


def test_the_metric_names_are_those_that_the_installed_cookbook_writes() -> None:
    import tinker_cookbook

    root = Path(tinker_cookbook.__file__).parent
    written = {
        "supervised/train.py": ["train_mean_nll", "num_loss_tokens", "learning_rate", "progress"],
        "rl/train.py": ["progress/batch", "progress/done_frac", "optim/lr"],
        "rl/metrics.py": ["optim/kl_sample_train_v1", "optim/entropy", "sampling_client/step_min"],
        "rl/metric_util.py": ["ac_tokens_per_turn", "by_group/frac_mixed", "reward/total"],
        "rl/problem_env.py": ["format", "correct"],
        "preference/train_dpo.py": ["dpo_loss", "learning_rate"],
        "utils/trace.py": ["time/total"],
    }
    for file, keys in written.items():
        text = (root / file).read_text()
        for key in keys:
            assert f'"{key}"' in text or f"{key}=" in text, (file, key)
    assert names.is_score("eval/gsm8k/score")
    assert names.is_score("test/env/all/reward/total")
    assert not names.is_score("test/nll")


def test_noise_leaves_the_trend_out() -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 2000)
    assert robust.noise(np.linspace(9, 1, 2000) + noise) == pytest.approx(0.1, rel=0.1)
    assert robust.kendall(np.arange(10.0)) == 1
    assert robust.kendall(-np.arange(10.0)) == -1
