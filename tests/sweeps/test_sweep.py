"""Real sweeps on the rehearsal: side by side, interrupted, killed, with a member that fails."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from repository import ROOT

from tinkerlab.diagnosis.run_analysis.run import lock_holder

SCRIPT = ROOT / "scripts" / "sweep.py"
STEPS = 150
RUNS = ("learning_rate-0.003", "learning_rate-0.01")

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(rehearsal, tmp_path: Path) -> Start:
    """Starts a sweep of two learning rates (or of ``words``) in the folder ``output``."""
    rows = [{"prompt": f"Say {i}.", "completion": f"{i}, of course."} for i in range(24)]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "c.yaml").write_text(
        f"base_model: {rehearsal.model}\ntrain_file: {tmp_path / 'chats.jsonl'}\n"
        f"num_steps: {STEPS}\ntrain_batch_size: 2\nmax_seq_len: 64\nlora_rank: 2\n"
        "renderer: qwen3_instruct\neval_every: 50\nsave_every: 20\n"
        "learning_rate: 0.003\n"
    )

    def begin(
        output: str, *words: str, tried: str = "learning_rate=0.003,0.01"
    ) -> subprocess.Popen[str]:
        base = ["--trainer", "sl_trainer.py", "--base-config", "c.yaml", "--output", output]
        return subprocess.Popen(
            [sys.executable, str(SCRIPT), *base, *words, tried],
            cwd=tmp_path,
            env=rehearsal.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return begin


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def table(folder: Path) -> list[dict[str, str]]:
    """The rows, without what may differ between two starts: times and the folder."""
    rows = list(csv.DictReader((folder / "table.csv").open()))
    return [{k: v for k, v in row.items() if k not in ("seconds", "log_path")} for row in rows]


def wait_until(true: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 120
    while not true():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


def lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


def in_the_middle(folder: Path) -> Callable[[], bool]:
    """Whether both runs have done some steps, and neither is near its end."""
    files = [folder / name / "metrics.jsonl" for name in RUNS]
    return lambda: all(lines(file) > 25 for file in files)


@pytest.mark.slow
def test_interrupted_or_killed_it_ends_in_the_same_table(start: Start, tmp_path: Path) -> None:
    code, out, err = ended(start("whole"))
    assert code == 0, err
    assert "best: learning_rate=" in out and "caution: one seed a setting" in out
    whole = table(tmp_path / "whole")
    assert [row["name"] for row in whole] == list(RUNS)
    assert {(row["status"], row["steps"]) for row in whole} == {("complete", str(STEPS))}
    assert whole[0]["final"] != whole[1]["final"]
    assert (tmp_path / "whole" / "sweep.png").stat().st_size > 10_000

    # Ctrl-C: the trainers save and stop, nothing of theirs is left, the same command goes on.
    process = start("stopped")
    wait_until(in_the_middle(tmp_path / "stopped"), process)
    process.send_signal(signal.SIGINT)
    code, out, err = ended(process)
    assert code == 130, err
    assert "the same command goes on" in err and "interrupted" in out
    for name in RUNS:
        assert lock_holder(tmp_path / "stopped" / name / ".lock") is None
        assert lines(tmp_path / "stopped" / name / "metrics.jsonl") < STEPS
    code, out, err = ended(start("stopped"))
    assert code == 0, err
    assert table(tmp_path / "stopped") == whole
    attempts = (tmp_path / "stopped" / RUNS[0] / "attempts.jsonl").read_text().splitlines()
    assert len(attempts) == 2 and json.loads(attempts[1])["first_step"] > 0

    # Killed: the trainers live on. The next start waits for them instead of beginning again.
    process = start("killed")
    wait_until(in_the_middle(tmp_path / "killed"), process)
    process.kill()
    process.communicate()
    code, out, err = ended(start("killed"))
    assert code == 0, err
    assert "is training it already; waiting for that" in err
    assert table(tmp_path / "killed") == whole
    assert lines(tmp_path / "killed" / RUNS[0] / "attempts.jsonl") == 1

    # Complete runs are not started again.
    logs = [(tmp_path / "whole" / name / "output.log").read_bytes() for name in RUNS]
    code, out, err = ended(start("whole", "--json"))
    assert code == 0, err
    document = json.loads(out)
    assert [run["final"] for run in document["runs"]] == [float(row["final"]) for row in whole]
    assert logs == [(tmp_path / "whole" / name / "output.log").read_bytes() for name in RUNS]


@pytest.mark.slow
def test_one_that_fails_does_not_stop_the_others(start: Start, tmp_path: Path) -> None:
    process = start("mixed", "num_steps=4", "--at-once", "1", tried="train_batch_size=999,2,4")
    wait_until(lambda: (tmp_path / "mixed" / "sweep.json").exists(), process)
    second, _, refused = ended(start("mixed", "num_steps=4", tried="train_batch_size=999,2,4"))
    assert second == 2 and "runs a sweep in it" in refused
    code, out, err = ended(process)
    assert code == 1
    rows = {row["train_batch_size"]: row for row in table(tmp_path / "mixed")}
    assert [rows[size]["status"] for size in ("999", "2", "4")] == [
        "failed",
        "complete",
        "complete",
    ]
    assert rows["999"]["final"] == ""
    assert "failed: train_batch_size-999: exit code 2; error: " in err
    assert "train_batch_size-999/output.log" in err
    assert "failed" in out and "best: train_batch_size=" in out
    summary = json.loads((tmp_path / "mixed" / "summary.json").read_text())
    assert "error: " in summary["runs"][0]["reason"]

    # Other settings under the same name are for the trainer to judge, which refuses them.
    code, _, err = ended(start("mixed", "num_steps=5", tried="train_batch_size=2,4"))
    assert code == 1 and "holds a run with other settings" in err


def test_a_folder_of_something_else_is_left_alone(start: Start, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    code, _, err = ended(start("mine"))
    assert code == 2 and "mine holds something else; choose another --output" in err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]
    (tmp_path / "rl").mkdir()
    (tmp_path / "rl" / "sweep.json").write_text('{"trainer": "rl_trainer.py", "runs": {}}')
    code, _, err = ended(start("rl"))
    assert code == 2 and "holds a sweep of rl_trainer.py" in err
    (tmp_path / "rl" / "sweep.json").write_text('{"trainer"')
    code, _, err = ended(start("rl"))
    assert code == 2 and "sweep.json: damaged" in err
