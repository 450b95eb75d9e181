"""What the user sees of a run, and what W&B gets."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from tinkerlab.errors import InputError
from tinkerlab.runs.checkpoints import CheckpointRecord
from tinkerlab.runs.folder import RunFolder
from tinkerlab.training.progress import BarProgress, PlainProgress, clock
from tinkerlab.training.tracking import WandbTracker

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
ROWS = [
    {"train_mean_nll": 2.5, "num_tokens": 100, "test/nll": 3.0},
    *[{"train_mean_nll": 2.0, "num_tokens": 100}] * 3,
]
RECORD = CheckpointRecord("000002", 2, 0, 2, state_path="tinker://r/weights/000002")


def test_plain_lines_are_few_and_tell_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    with PlainProgress(4, start=0) as progress:
        for step, row in enumerate(ROWS):
            progress.row(step, row)
        progress.checkpoint(RECORD)
        progress.row(4, {"test/nll": 1.5})
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert lines[0].startswith("step 1/4  loss 2.5000  val NLL 3.0000  ")
    assert "tokens/s" in lines[0] and "ETA" in lines[0]
    assert lines[1].startswith("step 4/4  loss 2.0000")  # steps 2 and 3 came too soon after it
    assert lines[2] == "checkpoint 000002 (2 steps): tinker://r/weights/000002"
    assert lines[3] == "trained: held-out NLL 1.5000"


def test_the_bar_shows_the_same_figures_on_stderr_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    with BarProgress(4, start=0) as progress:
        for step, row in enumerate(ROWS):
            progress.row(step, row)
        progress.checkpoint(RECORD)
        progress.row(4, {"test/nll": 1.5})
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "4/4" in captured.err
    assert "loss 2.0000" in captured.err and "val NLL 3.0000" in captured.err
    assert "tinker://r/weights/000002" in captured.err


def test_clock() -> None:
    assert [clock(s) for s in (0, 61.4, 3723)] == ["00:00", "01:01", "1:02:03"]


class FakeWandb(types.ModuleType):
    """Runs by id, like the service: a known id is resumed, a new one begun."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.runs: dict[str, dict[str, Any]] = {}

    def init(self, *, id: str, resume: str, project: str, **_: Any) -> Any:
        assert resume == "allow"
        logged = self.runs.setdefault(id, {"project": project, "rows": []})["rows"]
        return types.SimpleNamespace(
            url=f"https://wandb.example/{id}",
            log=lambda row, step: logged.append((step, row)),
            summary={},
            finish=lambda exit_code: None,
        )


def test_a_resumed_run_goes_on_in_the_same_wandb_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    for step in (0, 1):
        tracker = WandbTracker("p", "run", RunFolder(tmp_path), {"lora_rank": 8})
        tracker.row(step, {"train_mean_nll": 1.0})
        tracker.checkpoint(RECORD)
        tracker.finish(0)
    assert len(wandb.runs) == 1
    (only,) = wandb.runs.values()
    assert [step for step, _ in only["rows"]] == [0, 1]
    assert tracker.url and tracker.url.startswith("https://")


def test_wandb_is_asked_for_only_when_it_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match="pip install wandb"):
        WandbTracker("p", "run", RunFolder(tmp_path), {})


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_the_second_signal_ends_the_process_at_once(name: str, code: int) -> None:
    program = (
        "import signal, time\n"
        "from tinkerlab.training.interrupts import Interrupts\n"
        "with Interrupts() as interrupts:\n"
        "    print('ready', flush=True)\n"
        "    while not interrupts.requested: time.sleep(0.01)\n"
        "    print(interrupts.exit_code, flush=True)\n"
        "    time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(SCRIPTS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    import signal

    assert process.stdout and process.stderr
    assert process.stdout.readline() == "ready\n"
    process.send_signal(getattr(signal, name))
    assert process.stdout.readline() == f"{code}\n"
    process.send_signal(getattr(signal, name))
    assert process.wait(10) == code
    assert "once more to leave at once" in process.stderr.read()
