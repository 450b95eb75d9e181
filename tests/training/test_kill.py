"""Real trainers against a real rehearsal, really killed: the weights end up bit for bit equal."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tinkerlab.runs import checkpoints, metrics

ROOT = Path(__file__).resolve().parents[2]
STEPS = 4


@dataclass
class Trainers:
    """Starts trainers that may die at a point; see zygote.py."""

    process: subprocess.Popen[str]
    rehearsal: Any
    data: Path
    folder: Path

    def run(self, name: str, point: int | None = None, kill_with: int = signal.SIGKILL) -> int:
        """Train the run ``name``, new or begun: its exit code, negative for a signal."""
        order = {
            "argv": self.settings(name),
            "point": point,
            "signal": kill_with,
            "log": str(self.log(name)),
        }
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())["status"]

    def settings(self, name: str) -> list[str]:
        return [
            f"base_model={self.rehearsal.model}",
            f"train_file={self.data}",
            f"log_path={self.folder / name}",
            f"num_steps={STEPS}",
            "renderer=qwen3_instruct",
            "train_batch_size=2",
            "max_seq_len=64",
            "lora_rank=2",
            "learning_rate=0.01",
            "eval_every=2",
            "save_every=1",
            "submit_ahead=1",
        ]

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def points(self, name: str) -> int:
        """How many points the run's last trainer passed."""
        return int(re.findall(r"points: (\d+)", self.log(name).read_text())[-1])

    def outcome(self, name: str) -> tuple[bytes, list[dict[str, Any]], list[int]]:
        """(final adapter file, rows without times, steps of the recorded checkpoints)."""
        records = checkpoints.read(self.folder / name)
        assert records[-1].final, name
        rows = [
            {key: value for key, value in row.items() if not key.startswith("time/")}
            for row in metrics.read(self.folder / name)
        ]
        assert records[-1].state_path
        return (
            adapter_file(self.rehearsal, records[-1].state_path),
            rows,
            [record.step for record in records],
        )


def adapter_file(rehearsal: Any, state_path: str) -> bytes:
    """The bytes of a saved adapter, as the service hands them out."""
    client = rehearsal.client().create_training_client_from_state(state_path).result()
    path = client.save_weights_external("compare").result().path
    urls = rehearsal.rest().get_external_weights_urls(path).result().urls
    with urllib.request.urlopen(urls["adapter_model.safetensors"]) as reply:
        return reply.read()


@pytest.fixture(scope="module")
def trainers(rehearsal: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainers]:
    folder = tmp_path_factory.mktemp("kill")
    data = folder / "data.jsonl"
    with data.open("w") as file:
        for index in range(12):
            row = {"prompt": f"What is {index} plus one?", "completion": f"It is {index + 1}."}
            file.write(json.dumps(row) + "\n")
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("zygote.py"))],
        env={**os.environ, **rehearsal.env, "PYTHONPATH": str(ROOT / "scripts")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin and process.stdout
    assert process.stdout.readline() == "ready\n"
    yield Trainers(process, rehearsal, data, folder)
    process.stdin.close()
    process.wait(30)


@pytest.fixture(scope="module")
def reference(trainers: Trainers) -> tuple[bytes, list[dict[str, Any]], list[int]]:
    assert trainers.run("reference") == 0, trainers.log("reference").read_text()
    weights, rows, saved = trainers.outcome("reference")
    assert [row["step"] for row in rows] == list(range(STEPS + 1))
    assert saved == [1, 2, 3, 4]
    assert rows[-1]["test/nll"] < rows[0]["test/nll"]
    return weights, rows, saved


def test_a_killed_run_goes_on_to_the_same_bits(trainers: Trainers, reference: Any) -> None:
    late = trainers.points("reference") - 12  # some checkpoint is recorded by then
    assert trainers.run("killed", point=late) == -signal.SIGKILL
    assert 0 < len(metrics.read(trainers.folder / "killed")) <= STEPS
    assert trainers.run("killed") == 0, trainers.log("killed").read_text()
    assert "going on after step" in trainers.log("killed").read_text()
    assert trainers.outcome("killed") == reference


def test_ctrl_c_saves_and_the_run_goes_on_to_the_same_bits(
    trainers: Trainers, reference: Any
) -> None:
    point = trainers.points("reference") // 2
    assert trainers.run("stopped", point, kill_with=signal.SIGINT) == 130
    saved = checkpoints.read(trainers.folder / "stopped")[-1]
    assert saved.step == len(metrics.read(trainers.folder / "stopped"))
    text = trainers.log("stopped").read_text()
    assert "interrupted; this goes on with it: python " in text
    assert trainers.run("stopped") == 0, trainers.log("stopped").read_text()
    assert trainers.outcome("stopped")[:2] == reference[:2]


@pytest.mark.slow
def test_killed_at_every_step_it_ends_in_the_same_bits(trainers: Trainers, reference: Any) -> None:
    """Every second point, which is several in each step; test_resume.py takes all of them."""
    for point in range(1, trainers.points("reference") + 1, 2):
        name = f"point-{point}"
        assert trainers.run(name, point) == -signal.SIGKILL, trainers.log(name).read_text()
        assert trainers.run(name) == 0, trainers.log(name).read_text()
        assert trainers.outcome(name) == reference, f"killed at point {point}"


@pytest.mark.slow
def test_killed_at_every_start_it_still_ends_in_the_same_bits(
    trainers: Trainers, reference: Any
) -> None:
    for attempt in range(100):
        if trainers.run("again", point=8 + 3 * attempt) == 0:
            break
    assert trainers.outcome("again") == reference
    assert len((trainers.folder / "again" / "attempts.jsonl").read_text().splitlines()) > 3


@pytest.mark.slow
def test_a_bad_connection_changes_nothing(
    trainers: Trainers, reference: Any, start_rehearsal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests fail, replies break off, and the SDK repeats them; no update is made twice."""
    faults = ["500:3x", "500:2x,on=/optim_step", "drop:4x", "drop:2x,on=/optim_step", "504:2x"]
    with start_rehearsal(faults=faults) as shaky:
        monkeypatch.setattr(trainers, "rehearsal", shaky)
        for name in ("TINKER_BASE_URL", "TINKER_API_KEY"):
            monkeypatch.setenv(name, shaky.env[name])
        import sl_trainer

        assert sl_trainer.main(trainers.settings("shaky")) == 0
        weights, rows, _ = trainers.outcome("shaky")
    assert (weights, rows) == reference[:2]
