"""The state of a run, from its files alone, and its figures."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from run_findings import NAN, folder, rl, sft

from tinkerlab.runs import folder as folders
from tinkerlab.runs.folder import RunFolder
from tinkerlab.watching import board
from tinkerlab.watching.board import Watched
from tinkerlab.watching.discovery import Place
from tinkerlab.watching.status import Status, span

FINAL = {"name": "final", "batch": 40, "epoch": 0, "step": 40, "final": True}


def look(path: Path, stalled_after: float | None = None) -> Status:
    return Watched(Place(path, path.name), stalled_after).look()


def aged(path: Path, seconds: float) -> Path:
    """As if nothing had been written there for so long."""
    then = time.time() - seconds
    for file in path.iterdir():
        os.utime(file, (then, then))
    return path


def test_a_run_that_writes_is_running_with_its_eta(tmp_path: Path) -> None:
    status = look(folder(tmp_path, sft(30, 100)))
    assert (status.state, status.done, status.total) == ("running", 30, 100)
    assert status.seconds_per_step == 2.0 and status.eta == 140.0
    assert status.kind == "sft" and not status.needs_attention


def test_the_final_checkpoint_ends_a_run(tmp_path: Path) -> None:
    status = look(aged(folder(tmp_path, sft(40), checkpoints=[FINAL]), 9e6))
    assert (status.state, status.eta, status.reason) == ("finished", None, "")


def test_silence_is_a_stall_and_long_silence_an_end(tmp_path: Path) -> None:
    folder(tmp_path, sft(30, 100))
    assert look(aged(tmp_path, 100)).state == "running"
    stalled = look(aged(tmp_path, 100), stalled_after=60)
    assert stalled.state == "stalled" and stalled.needs_attention and stalled.eta is None
    assert 100 <= (stalled.idle or 0) < 160 and "nothing was written for" in stalled.reason
    assert look(aged(tmp_path, 2000)).state == "stalled"  # 600 s is the default
    assert look(aged(tmp_path, 9e6)).state == "stopped"


def test_a_stall_is_longer_than_long_steps(tmp_path: Path) -> None:
    folder(tmp_path, sft(30, 100, **{"time/total": 500.0}))
    assert look(aged(tmp_path, 2000)).state == "running"
    assert look(aged(tmp_path, 2600)).state == "stalled"


def test_a_held_lock_is_life_and_a_free_one_is_death(tmp_path: Path) -> None:
    folder(tmp_path, sft(30, 100))
    with RunFolder(tmp_path).locked():
        assert look(aged(tmp_path, 30)).state == "running"
        hanging = look(aged(tmp_path, 1000))
        assert hanging.state == "stalled" and str(os.getpid()) in hanging.reason
    stopped = look(tmp_path)
    assert stopped.state == "stopped" and "without a final checkpoint" in stopped.reason


def test_a_look_at_the_wrong_moment_keeps_no_trainer_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asking for a lock takes it, shared, for a moment; the trainer tries again."""
    with RunFolder(tmp_path).locked():
        pass
    with (tmp_path / ".lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        pauses = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 2:
                fcntl.flock(file, fcntl.LOCK_UN)

        monkeypatch.setattr(folders.time, "sleep", pause)
        with RunFolder(tmp_path).locked():
            assert len(pauses) == 2


def test_before_the_first_step(tmp_path: Path) -> None:
    with RunFolder(tmp_path).locked():
        assert look(tmp_path).state == "starting"
    assert look(tmp_path).reason == "its process ended before the first step"


def test_the_reason_is_what_the_trainer_said_last(tmp_path: Path) -> None:
    folder(tmp_path, sft(30, 100))
    with RunFolder(tmp_path).locked():
        pass
    log = tmp_path / "output.log"
    log.write_text("$ python sl_trainer.py\nerror: old\n$ python sl_trainer.py\nstep 3\n")
    assert "old" not in look(tmp_path).reason, "of an earlier attempt"
    with log.open("a") as file:
        file.write("failed: the service stopped the run: tml-abcdefgh12345 refused\nbye\n")
    assert look(tmp_path).reason.startswith("failed: the service stopped the run")
    log.write_text("Traceback (most recent call last):\n  ...\ntinker.ConflictError: 409 - no\n")
    assert look(tmp_path).reason == "tinker.ConflictError: 409 - no"


def test_the_last_step_is_not_the_end_while_a_final_save_is_due(tmp_path: Path) -> None:
    folder(tmp_path, sft(40), config={"save_every": 20, "model_name": "m"})
    saving = look(tmp_path)
    assert saving.state == "running" and not saving.findings
    late = look(aged(tmp_path, 700))
    assert late.state == "finished"
    assert [f.cause for f in late.findings] == ["final-checkpoint-missing"]
    assert late.needs_attention


def test_findings_do_not_outlive_their_reason(tmp_path: Path) -> None:
    """The state can change without a new row: at the final checkpoint."""
    folder(tmp_path, sft(40), config={"save_every": 20, "model_name": "m"})
    watched = Watched(Place(tmp_path, "run"))
    watched.look()
    (tmp_path / "checkpoints.jsonl").write_text(json.dumps(FINAL) + "\n")
    status = watched.look()
    assert (status.state, status.findings) == ("finished", ())


def test_rows_are_read_once_and_torn_ones_later(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    lines = [json.dumps(row) for row in sft(10, 20)]
    file.write_text("\n".join(lines[:5]) + "\n" + lines[5][:40])
    watched = Watched(Place(tmp_path, "run"))
    assert watched.look().done == 5
    file.write_text("\n".join(lines) + "\n")  # the same file, grown
    assert watched.look().done == 10
    reader = watched.run.metrics_reader
    assert reader is not None and (reader.count, reader.bad_count) == (10, 0)


def test_a_file_that_a_resume_replaced_is_read_anew(tmp_path: Path) -> None:
    """It may be longer than the old one by the next look, so its size tells nothing."""
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in sft(6, 20, note="x" * 9)))
    watched = Watched(Place(tmp_path, "run"))
    watched.look()
    new = tmp_path / "new"
    new.write_text("".join(json.dumps(row) + "\n" for row in sft(9, 20)))
    new.replace(file)
    status = watched.look()
    assert status.done == 9 and watched.run.metrics.rows == 9
    assert watched.run.metrics_reader is not None and watched.run.metrics_reader.bad_count == 0


def test_a_half_written_config_is_no_news_until_it_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder(tmp_path, sft(5, 20))
    watched = Watched(Place(tmp_path, "run"))
    before = watched.look()
    (tmp_path / "config.json").write_text('{"model')
    assert watched.look() is before
    now = time.monotonic() + board.UNREADABLE_AFTER
    monkeypatch.setattr(board.time, "monotonic", lambda: now)
    broken = watched.look()
    assert broken.state == "unreadable" and broken.reason.startswith("config.json: not JSON")
    (tmp_path / "config.json").write_text("{}")
    assert watched.look().state == "running"
    (tmp_path / "config.json").write_text('{"model')
    assert watched.look().state == "running", "a new patience after it was whole"


def test_nan_is_a_serious_warning_and_null_in_json(tmp_path: Path) -> None:
    rows = sft(20, 100)
    rows[-1]["train_mean_nll"] = NAN
    status = look(folder(tmp_path, rows))
    assert [finding.cause for finding in status.findings] == ["loss-not-finite"]
    assert status.needs_attention
    document = json.loads(json.dumps(status.as_dict(), allow_nan=False))
    assert document["train"] == {
        "key": "train_mean_nll",
        "value": None,
        "step": 19,
        "first": rows[0]["train_mean_nll"],
        "change": None,
    }


@pytest.mark.parametrize("shift", [0, 1], ids=["step / total", "(step + 1) / total"])
@pytest.mark.parametrize("rows", [1, 3])
def test_the_plan_is_told_by_the_share_of_each_row(tmp_path: Path, shift: int, rows: int) -> None:
    """tinker-cookbook's loops log either share; see run_analysis/names.py."""
    steps = range(7, 7 + rows)
    share = [{"step": s, "progress": (s + shift) / 50, "train_mean_nll": 1.0} for s in steps]
    total = look(folder(tmp_path, share)).total
    assert total == 50 or (rows == 1 and not shift and total == 57)  # one row cannot tell which


def test_figures_of_each_kind(tmp_path: Path) -> None:
    def status(name: str, rows: list[dict[str, Any]], **files: Any) -> Status:
        (tmp_path / name).mkdir()
        return look(folder(tmp_path / name, rows, **files))

    rows = rl(10, lambda t: {"optim/kl_sample_train_v1": 0.002, "optim/entropy": 1.2 - t})
    rows.append({"step": 10, "test/env/all/correct": 0.5, "test/env/all/reward/total": 0.4})
    ours = status("rl", rows)
    assert ours.kind == "rl" and ours.train and ours.train.label == "reward"
    assert ours.kl and ours.kl.value == 0.002 and ours.entropy
    assert round(ours.entropy.value, 6) == 0.2
    assert ours.held_out and (ours.held_out.label, ours.held_out.value) == ("correct", 0.5)

    pairs = [{"step": n, "dpo_loss": 0.7 - n / 10, "test/accuracy": 0.5 + n / 10} for n in range(3)]
    dpo = status("dpo", pairs)
    assert dpo.kind == "dpo" and dpo.train and dpo.train.label == "loss"
    assert dpo.held_out and round(dpo.held_out.change or 0, 6) == 0.2

    taught = [
        {"progress/batch": n, "progress/done_frac": (n + 1) / 4, "teacher_kl": 1.0 / (n + 1)}
        | {"env/all/reward/total": 0.0, "optim/entropy": 1.0, "eval/gsm8k/score": 0.1}
        for n in range(2)
    ]
    distill = status("distill", taught)
    assert distill.kind == "distill" and distill.train and distill.train.label == "KL to teacher"
    assert distill.held_out and distill.held_out.label == "gsm8k"
    assert (distill.done, distill.total) == (2, 4)


def test_spans() -> None:
    assert [span(s) for s in (7.4, 119, 150, 3600 * 3.5, 86400 * 3)] == [
        "7 s",
        "119 s",
        "2 min",
        "3 h 30 min",
        "3 days",
    ]
