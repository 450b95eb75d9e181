"""Each check of reinforcement learning and of stored rollouts: what makes it speak, what does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from run_findings import Rows, findings, of_folder, rl, sft

from tinkerlab.diagnosis.run_analysis.answers import states_answer


def test_kl_that_grows_is_told_and_kl_that_stays_low_is_not() -> None:
    assert findings(rl(30, lambda _: {"optim/kl_sample_train_v1": 0.002})) == {}
    grown = findings(rl(30, lambda share: {"optim/kl_sample_train_v1": 0.001 + 0.03 * share}))
    assert set(grown) == {"kl-drift"}


def test_kl_at_the_first_step_is_judged_only_if_nothing_was_trained_before() -> None:
    rows = rl(30, lambda _: {"optim/kl_sample_train_v1": 0.021})
    assert "kl-high-at-start" in findings(rows)
    assert "kl-high-at-start" not in findings(rows[10:])


def test_entropy_may_fall_by_half_but_not_explode() -> None:
    assert findings(rl(30, lambda share: {"optim/entropy": 0.8 - 0.4 * share})) == {}
    assert set(findings(rl(30, lambda share: {"optim/entropy": 0.6 + 3 * share}))) == {
        "entropy-explosion"
    }


def test_certainty_that_holds_on_held_out_prompts_is_learning() -> None:
    """Measured on a task with one right answer: entropy 1.6 -> 0.1 while the evaluation rose."""

    def row(share: float) -> dict[str, float]:
        return {"optim/entropy": 1.6 * 0.06**share}

    assert findings(rl(30, row))["entropy-collapse"].severity == "warning"
    flat = [r | {"env/all/reward/total": 0.4} for r in rl(30, row)]
    assert findings(flat)["entropy-collapse"].severity == "problem"
    better = rl(30, lambda share: row(share) | {"test/env/all/correct": 0.2 + 0.7 * share})
    assert findings(better) == {}


def test_longer_replies_are_fine_if_an_evaluation_rises_with_them() -> None:
    def longer(share: float) -> dict[str, float]:
        return {"env/all/ac_tokens_per_turn": 150 + 600 * share}

    assert set(findings(rl(30, longer))) == {"length-explosion"}
    better = rl(30, lambda share: longer(share) | {"eval/gsm8k/score": 0.3 + 0.2 * share})
    assert findings(better) == {}


def test_the_share_of_cut_replies_that_a_trainer_logs_is_believed() -> None:
    assert findings(rl(20, lambda _: {"env/all/truncated": 0.1})) == {}
    found = findings(rl(20, lambda share: {"env/all/truncated": 0.7 * share}))
    assert found["replies-truncated"].severity == "problem"
    # Nine of ten are right though seven of ten are cut: the answer comes before the cut.
    right = {"env/all/correct": 0.9}
    found = findings(rl(20, lambda share: {"env/all/truncated": 0.7 * share, **right}))
    assert found["replies-truncated"].severity == "warning"
    assert "stop sequence" in found["replies-truncated"].fix
    # Three of ten right fit the three of ten that end: nothing is known of the cut ones.
    right = {"env/all/correct": 0.3}
    found = findings(rl(20, lambda share: {"env/all/truncated": 0.7 * share, **right}))
    assert found["replies-truncated"].severity == "problem"


def test_a_task_solved_in_the_end_is_success() -> None:
    def row(share: float) -> dict[str, float]:
        return {"env/all/by_group/frac_mixed": max(0.0, 0.9 - 1.8 * share)}

    assert findings(rl(30, row)) == {}
    assert set(findings(rl(30, lambda _: {"env/all/by_group/frac_mixed": 0.0}))) == {
        "reward-groups-all-equal"
    }


def test_distillation_rewards_nothing_and_that_is_no_fault() -> None:
    rows = [
        row
        | {"env/all/reward/total": 0.0, "test/env/all/reward/total": 0.0, "teacher_kl": 0.3}
        | {"env/all/by_group/frac_mixed": 0.0, "env/all/by_group/frac_all_bad": 1.0}
        for row in rl(20, lambda _: {})
    ]
    assert findings(rows) == {}
    for row in rows:
        del row["teacher_kl"]
    assert "reward-groups-all-equal" in findings(rows)


def test_format_learned_together_with_the_answers_is_fine() -> None:
    def row(share: float) -> dict[str, float]:
        return {"env/all/format": 0.2 + 0.8 * share, "env/all/correct": 0.1 + 0.4 * share}

    assert findings(rl(30, row)) == {}


def test_an_evaluation_that_falls_without_a_rising_reward() -> None:
    rows = [row | {"eval/math/accuracy": 0.5 - 0.01 * i} for i, row in enumerate(sft(20))]
    assert set(findings(rows)) == {"eval-falls"}


def test_scores_that_are_zero_at_every_evaluation() -> None:
    rows = [row | {"eval/aime/score": 0.0} for row in sft(12)]
    assert set(findings(rows)) == {"scores-all-zero"}
    rows[5]["eval/aime/score"] = 0.1
    assert findings(rows) == {}


# --- stored rollouts and trajectories ---------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "expected", "states"),
    [
        (r"so \boxed{113}.", "113", True),
        (r"\boxed{12} or rather \boxed{113}", "113", True),
        ("113 apples at first, so 7 remain", "113", False),
        ("#### 1,200", "1200", True),
        ("The answer is: **B**", "b", True),
        ("<answer> Paris </answer>", "paris", True),
        ("I do not know", "113", False),
        ("anything", "", False),
    ],
)
def test_what_counts_as_stating_the_answer(reply: str, expected: str, states: bool) -> None:
    assert states_answer(reply, expected) is states


def trajectories(tmp_path: Path, rows: Rows) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "trajectories.jsonl").write_text(text)
    return tmp_path


def test_zeros_of_wrong_answers_are_told_and_partly_right_ones_are_not(tmp_path: Path) -> None:
    rows = [
        {"idx": i, "reward": 0.0, "logs": {"expected": "5", "output": "it is 6"}} for i in range(8)
    ]
    assert set(of_folder(trajectories(tmp_path, rows))) == {"scores-all-zero"}
    rows[2]["reward"] = 1.0
    assert of_folder(trajectories(tmp_path, rows)) == {}


def test_right_answers_in_stored_turns_graded_zero(tmp_path: Path) -> None:
    rows = [
        {
            "idx": i,
            "benchmark": "gsm8k",
            "turns": [
                {"role": "user", "content": "What is 2 + 3?"},
                {"role": "assistant", "content": "That makes #### 5"},
            ],
            "reward": 0.0,
            "logs": {"expected": "5"},
        }
        for i in range(8)
    ]
    assert set(of_folder(trajectories(tmp_path, rows))) == {"right-answers-graded-zero"}


def test_tool_calls_with_a_result_are_parsed(tmp_path: Path) -> None:
    def row(index: int, **logs: str) -> dict[str, Any]:
        text = '<tool_call>{"name": "search"}</tool_call>'
        step = {"ac_len": 30 + index, "metrics": {}, "logs": {"assistant_content": text, **logs}}
        return {"group_idx": index // 4, "total_reward": float(index % 2), "steps": [step]}

    file = tmp_path / "train_rollout_summaries.jsonl"
    file.write_text("".join(json.dumps(row(i)) + "\n" for i in range(8)))
    assert set(of_folder(tmp_path)) == {"tool-calls-not-parsed"}
    file.write_text("".join(json.dumps(row(i, tool_result_0="sunny")) + "\n" for i in range(8)))
    assert of_folder(tmp_path) == {}


def test_rollouts_alone_tell_of_equal_groups_and_of_the_limit(tmp_path: Path) -> None:
    rows = [
        {"group_idx": i // 4, "total_reward": 0.0, "steps": [{"ac_len": 64 if i % 3 else 50}]}
        for i in range(24)
    ]
    file = tmp_path / "train_rollout_summaries.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert set(of_folder(tmp_path)) == {"replies-truncated", "reward-groups-all-equal"}
