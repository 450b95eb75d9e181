"""Metrics, checkpoints, provenance and the lock of a run folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tinkerlab.errors import InputError
from tinkerlab.runs import checkpoints, jsonl, metrics, provenance
from tinkerlab.runs.checkpoints import CheckpointRecord
from tinkerlab.runs.folder import RunFolder

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def test_rewinding_metrics_keeps_the_rows_before_the_step(tmp_path: Path) -> None:
    for step in range(5):
        metrics.append(tmp_path, step, {"loss": step / 2})
    with (tmp_path / metrics.FILE_NAME).open("ab") as file:
        file.write(b'{"step": 5, "lo')
    assert metrics.keep_before(tmp_path, 3) == 2
    assert [row["step"] for row in metrics.read(tmp_path)] == [0, 1, 2]
    assert (tmp_path / metrics.FILE_NAME).read_bytes().endswith(b"}\n")


def test_tinker_cookbook_reads_our_checkpoints(tmp_path: Path) -> None:
    record = CheckpointRecord(
        name="000020",
        step=20,
        epoch=1,
        batch=6,
        state_path="tinker://r/weights/000020",
        sampler_path="tinker://r/sampler_weights/000020",
    )
    jsonl.append(tmp_path / checkpoints.FILE_NAME, record.to_row())
    assert checkpoints.read(tmp_path) == [record]

    from tinker_cookbook.checkpoint_utils import get_last_checkpoint

    theirs = get_last_checkpoint(str(tmp_path))
    assert theirs is not None
    assert (theirs.name, theirs.epoch, theirs.batch) == ("000020", 1, 6)
    assert theirs.state_path == record.state_path
    assert theirs.sampler_path == record.sampler_path
    assert theirs.get("step") == 20


def test_a_foreign_checkpoint_without_a_step_is_refused(tmp_path: Path) -> None:
    jsonl.append(tmp_path / checkpoints.FILE_NAME, {"name": "000006", "batch": 6})
    with pytest.raises(InputError, match="no step"):
        checkpoints.read(tmp_path)
    assert checkpoints.read_rows(tmp_path) == [{"name": "000006", "batch": 6}]


def test_a_second_trainer_is_kept_out(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from tinkerlab.runs.folder import RunFolder\n"
        "with RunFolder(Path('run')).locked(): print('in', flush=True); input()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(SCRIPTS)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdin and holder.stdout
    assert holder.stdout.readline() == "in\n"
    folder = RunFolder(tmp_path / "run")
    with (
        pytest.raises(InputError, match=f"process {holder.pid} is training in it"),
        folder.locked(),
    ):
        pass
    holder.kill()
    holder.wait()
    with folder.locked():
        pass


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="choose another"), RunFolder(tmp_path / "file").locked():
        pass


def test_a_damaged_config_is_a_clear_error(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.read_config() is None
    folder.config_file.write_text("{")
    with pytest.raises(InputError, match="not JSON"):
        folder.read_config()


def test_provenance_names_versions_and_commit(tmp_path: Path) -> None:
    versions = provenance.versions()
    assert versions["tinker"] and versions["python"].startswith("3.")
    assert provenance.git_commit(tmp_path) is None

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "one")
    assert provenance.git_commit(tmp_path) == git("rev-parse", "HEAD")
    (tmp_path / "a").write_text("2")
    assert provenance.git_commit(tmp_path) == git("rev-parse", "HEAD") + "-dirty"
