"""The script itself, with real tasks and graders: what it prints, and how it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rl_tools import rows

import rl_trainer
from tinkerlab.errors import CheckFailed, InputError

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "rl_trainer.py"

REWARDS = """
def letters(completion):
    return sum(letter in "eE" for letter in completion) / max(len(completion), 1)

def nothing(completion): return None
def text(completion): return "good"
def not_a_number(completion): return float("nan")
def broken(completion): return 1 / 0
def leaves(completion):
    import os
    os._exit(3)
def half(completion): return 0.5
def hangs(completion):
    while True: pass
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    tasks = [{"prompt": f"What is {n} plus one?", "answer": str(n + 1)} for n in range(30)]
    Path("tasks.jsonl").write_text("\n".join(json.dumps(task) for task in tasks))
    Path("rewards.py").write_text(REWARDS)
    return tmp_path


@pytest.fixture
def use(rehearsal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TINKER_BASE_URL", "TINKER_API_KEY"):
        monkeypatch.setenv(name, rehearsal.env[name])


def settings(**changes: Any) -> list[str]:
    values = {
        "base_model": "tiny:llama",
        "dataset": "tasks.jsonl",
        "reward": "rewards.py:letters",
        "renderer": "qwen3_instruct",
        "num_steps": 2,
        "groups_per_batch": 2,
        "group_size": 4,
        "max_tokens": 8,
        "max_eval_tasks": 2,
        "learning_rate": 0.02,
        "lora_rank": 2,
        "preflight_groups": 2,
        **changes,
    }
    return [f"{key}={value}" for key, value in values.items()]


def script(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        env=dict(os.environ),
        check=False,
        timeout=300,
    )


def test_help_shows_an_example_and_imports_nothing_heavy() -> None:
    code = (
        "import sys, rl_trainer\n"
        "try: rl_trainer.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'tinker', 'tinker_cookbook', 'rich'}\n"
        "sys.exit(1 if heavy & set(sys.modules) else 0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(SCRIPT.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0
    assert "python scripts/rl_trainer.py --config" in result.stdout


def test_a_mistake_is_one_line_and_exit_2(folder: Path) -> None:
    result = script("base_model=m", "dataset=tasks.jsonl", "reward=exact", "loss_fn=grpo")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: loss_fn 'grpo': ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward": "none.py:score"}, "no file none.py"),
        ({"reward": "rewards.py:missing"}, "missing"),
        ({"reward": "nunmeric"}, "did you mean numeric?"),
        ({"dataset": "none.jsonl"}, "none.jsonl"),
        ({"dataset": "reasoning_gym:chain_summ"}, "did you mean"),
        ({"groups_per_batch": 40}, "fewer than groups_per_batch=40; set it to 28 or less"),
        ({"learning_rate": "auto"}, "learning_rate=auto: no value for tiny:llama"),
        ({"max_tokens": 100_000}, "more do not fit into the context of"),
        ({"load_checkpoint_path": "nowhere"}, "neither a tinker://<run>/weights/<name> path"),
        ({"renderer": "qwen33"}, "qwen33"),
    ],
)
def test_bad_input_is_refused_before_anything_is_sampled(
    folder: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        rl_trainer.main(settings(**changes))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (folder / "runs").exists()


def test_prompts_without_answers_are_refused_by_line(folder: Path) -> None:
    with Path("tasks.jsonl").open("a") as file:
        file.write('\n{"prompt": "And now?"}\n')
    with pytest.raises(InputError, match=r"tasks\.jsonl.*31.*no answer") as caught:
        rl_trainer.main(settings(reward="numeric"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("nothing", "None"),
        ("text", "good"),
        ("not_a_number", "nan"),
        ("broken", "ZeroDivisionError"),
        ("leaves", ""),
    ],
)
def test_a_reward_that_gives_no_number_is_shown_with_its_completion(
    folder: Path, use: None, function: str, said: str
) -> None:
    with pytest.raises(InputError) as caught:
        rl_trainer.main(settings(reward=f"rewards.py:{function}"))
    text = str(caught.value)
    assert text.startswith(f"not worth training: reward rewards.py:{function} failed on 8 of 8")
    assert said.lower() in text.lower()
    assert "the first, at tasks.jsonl" in text and "\n" not in text
    assert not Path("runs/rl/config.json").exists()
    assert json.loads(Path("runs/rl/preflight.json").read_text())["reason"] == "grader_errors"
    assert rl_trainer.main([*settings(reward=f"rewards.py:{function}"), "--dry-run"]) == 2


def test_a_reward_that_hangs_is_cut_off(folder: Path, use: None) -> None:
    changes = {"grader_timeout": 0.2, "preflight_groups": 1, "group_size": 2}
    with pytest.raises(InputError, match=r"hangs failed on 2 of 2 completions: .*0\.2 s"):
        rl_trainer.main(settings(reward="rewards.py:hangs", **changes))


def test_a_dry_run_looks_and_leaves_nothing(
    folder: Path, use: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rl_trainer.main([*settings(), "--dry-run", "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["status"] == "checked" and document["preflight"]["ok"] is True
    assert document["train_tasks"] == 28 and document["held_out_tasks"] == 2
    assert "groups have signal" in captured.err
    assert captured.err.count("example with reward") == 2
    assert not Path("runs").exists()
    assert rl_trainer.main([*settings(reward="rewards.py:half"), "--dry-run"]) == 1
    assert "failed: not worth training: truncated: " in capsys.readouterr().err


def test_a_temperature_that_does_not_go_with_a_penalty_is_said(
    folder: Path, use: None, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "warning: kl_penalty_coef with temperature=0.8"
    assert rl_trainer.main([*settings(kl_penalty_coef=0.1, temperature=0.8), "--dry-run"]) == 0
    assert said in capsys.readouterr().err
    assert rl_trainer.main([*settings(kl_penalty_coef=0.1), "--dry-run"]) == 0
    assert said not in capsys.readouterr().err


def test_it_trains_and_leaves_a_run(
    folder: Path, use: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rl_trainer.main([*settings(), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["status"] == "complete" and summary["steps"] == 2
    run = Path("runs/rl")
    assert {path.name for path in run.iterdir() if not path.name.startswith(".")} == {
        "attempts.jsonl",
        "checkpoints.jsonl",
        "config.json",
        "held_out.jsonl",
        "metrics.jsonl",
        "preflight.json",
        "rollouts.jsonl",
    }
    assert len(rows(run)) == 3
    held_out = [json.loads(line) for line in (run / "held_out.jsonl").read_text().splitlines()]
    assert [row["answer"] for row in held_out] == [
        str(int(row["messages"][0]["content"].split()[2]) + 1) for row in held_out
    ]
    assert rl_trainer.main([*settings()]) == 0
    assert "already complete after 2 steps; held-out reward" in capsys.readouterr().out
    # The next stage begins from the folder of the last; another reward is another run.
    again = settings(load_checkpoint_path="runs/rl", run_name="second", num_steps=1)
    assert rl_trainer.main(again) == 0
    Path("rewards.py").write_text(REWARDS + "# changed\n")
    with pytest.raises(InputError, match="reward_sha256 was"):
        rl_trainer.main(settings())


def test_reasoning_gym_tasks_bring_their_own_scorer(
    folder: Path, use: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """A random model solves nothing, and that is what it is told."""
    arguments = settings(
        dataset="reasoning_gym:chain_sum:min_digits=4,max_digits=4",
        reward="reasoning_gym",
        stop="[e, t, a, o]",
        max_tokens=600,
    )
    with pytest.raises(CheckFailed, match=r"^not worth training: ") as caught:
        rl_trainer.main(arguments)
    assert "too hard" in str(caught.value) or "parse failures" in str(caught.value)
    assert "chain_sum item" in capsys.readouterr().err
