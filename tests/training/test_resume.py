"""A run that is killed at any moment ends as if it had not been."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinkerlab.errors import CheckFailed, InputError
from tinkerlab.runs import checkpoints, jsonl, metrics
from tinkerlab.training.interrupts import Interrupts
from tinkerlab.training.supervised import SupervisedRun

MakeRun = Callable[..., SupervisedRun]


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the trainer may catch it and save something."""


class Reaper:
    """Kills the process at the n-th thing that it does with the service or the disk.

    A write can be cut at three places: before it, in the middle of the line, and after it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kill_at: int | None = None
        self.count = 0
        self._append, self._rewrite = jsonl.append, jsonl.write_atomically
        monkeypatch.setattr(jsonl, "append", self.append)
        monkeypatch.setattr(jsonl, "write_atomically", self.write_atomically)

    def arm(self, kill_at: int | None) -> None:
        self.kill_at, self.count = kill_at, 0

    def point(self) -> None:
        self.count += 1
        if self.count == self.kill_at:
            raise Killed

    def append(self, path: Path, row: Any) -> None:
        self.point()
        before = path.read_bytes() if path.exists() else b""
        self._append(path, row)
        whole = path.read_bytes()
        self.count += 1
        if self.count == self.kill_at:
            path.write_bytes(whole[: len(before) + (len(whole) - len(before)) // 2])
            raise Killed
        self.point()

    def write_atomically(self, path: Path, content: bytes) -> None:
        self.point()
        self._rewrite(path, content)
        self.point()


def result(run: SupervisedRun, memory: Any) -> tuple[Any, list[dict[str, Any]]]:
    """(final weights, rows without their times)."""
    final = checkpoints.read(run.folder.path)[-1]
    assert final.final
    rows = [
        {key: value for key, value in row.items() if not key.startswith("time/")}
        for row in metrics.read(run.folder.path)
    ]
    assert final.state_path and final.sampler_path
    assert memory.saved[final.state_path] == memory.saved[final.sampler_path]
    return memory.saved[final.state_path], rows


def check_records(run: SupervisedRun, memory: Any) -> None:
    """Every recorded checkpoint holds exactly the updates that it says."""
    for record in checkpoints.read(run.folder.path):
        assert record.state_path and record.sampler_path
        assert len(memory.saved[record.state_path]) == record.step
        assert len(memory.saved[record.sampler_path]) == record.step


@pytest.mark.parametrize("submit_ahead", [0, 1, 3])
def test_killed_anywhere_it_ends_the_same(
    make_run: MakeRun, memory: Any, monkeypatch: pytest.MonkeyPatch, submit_ahead: int
) -> None:
    reference = make_run("reference", submit_ahead=submit_ahead)
    reference.train()
    expected = result(reference, memory)
    assert [row["step"] for row in expected[1]] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert len(expected[0]) == 7

    reaper = Reaper(monkeypatch)
    kill_at = 0
    while True:
        kill_at += 1
        run = make_run(f"killed-{submit_ahead}-{kill_at}", submit_ahead=submit_ahead)
        reaper.arm(kill_at)
        try:
            run.train()
        except Killed:
            pass
        else:
            break  # the run has no more points than this
        reaper.arm(None)
        check_records(run, memory)
        run.train()
        check_records(run, memory)
        assert result(run, memory) == expected, f"killed at point {kill_at}"
    assert kill_at > 40


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    kills=st.lists(st.integers(1, 30), max_size=6),
    save_every=st.integers(0, 4),
    eval_every=st.integers(0, 3),
    ahead=st.integers(0, 2),
)
def test_killed_again_and_again_it_ends_the_same(
    make_run: MakeRun, memory: Any, kills: list[int], save_every: int, eval_every: int, ahead: int
) -> None:
    options = {"save_every": save_every, "eval_every": eval_every, "submit_ahead": ahead}
    name = f"{memory.clients}"
    reference = make_run(f"reference-{name}", **options)
    reference.train()
    with pytest.MonkeyPatch.context() as patch:
        reaper = Reaper(patch)
        run = make_run(f"killed-{name}", **options)
        for kill_at in kills:
            reaper.arm(kill_at)
            try:
                run.train()
            except Killed:
                check_records(run, memory)
        reaper.arm(None)
        run.train()
    assert result(run, memory) == result(reference, memory)


@pytest.mark.parametrize("stop_after", range(1, 7))
def test_ctrl_c_saves_and_goes_on_the_same(
    make_run: MakeRun, memory: Any, monkeypatch: pytest.MonkeyPatch, stop_after: int
) -> None:
    reference = make_run("reference")
    reference.train()

    run = make_run("stopped")
    write = metrics.append
    presses = []

    def append_and_press(folder: Path, step: int, row: Any) -> None:
        write(folder, step, row)
        if step == stop_after - 1 and not presses:
            presses.append(step)
            signals[-1].signal_number = 2

    signals: list[Interrupts] = []
    enter = Interrupts.__enter__
    monkeypatch.setattr(
        Interrupts, "__enter__", lambda self: (signals.append(self), enter(self))[1]
    )
    monkeypatch.setattr(metrics, "append", append_and_press)
    code, summary = run.train()
    done = checkpoints.read(run.folder.path)[-1]
    if done.final:  # pressed when nothing was left to submit: it simply finishes
        assert (code, summary["status"]) == (0, "complete")
    else:
        assert (code, summary["status"]) == (130, "interrupted")
        assert len(metrics.read(run.folder.path)) == done.step == summary["steps"]
        code, summary = run.train()
        assert (code, summary["status"]) == (0, "complete")
    assert result(run, memory) == result(reference, memory)


@pytest.mark.parametrize("pauses", [[1, 2, 3, 4, 5, 6], [4], [3, 3, 100]])
def test_paused_and_gone_on_it_ends_the_same(
    make_run: MakeRun, memory: Any, pauses: list[int]
) -> None:
    reference = make_run("reference")
    reference.train()

    run = make_run("paused")
    for until in pauses:
        run.until_step = until
        code, summary = run.train()
        assert code == 0
        if until < 7:
            assert (summary["status"], summary["steps"]) == ("paused", until)
            assert len(metrics.read(run.folder.path)) == until
            check_records(run, memory)
    run.until_step = None
    code, summary = run.train()
    assert (code, summary["steps"]) == (0, 7)
    assert result(run, memory) == result(reference, memory)


def test_a_pause_that_is_reached_asks_for_no_client(make_run: MakeRun, memory: Any) -> None:
    run = make_run("paused")
    run.until_step = 3
    run.train()
    clients = memory.clients
    assert run.train()[1]["status"] == "paused"
    assert memory.clients == clients


def test_ctrl_c_before_the_first_step_leaves_nothing_to_resume(
    make_run: MakeRun, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    with monkeypatch.context() as patch:
        patch.setattr(Interrupts, "requested", True)
        assert run.train()[0] == 130
    assert checkpoints.read(run.folder.path) == []
    assert run.train()[0] == 0
    assert len(result(run, memory)[1]) == 8


def test_a_complete_run_is_left_alone(make_run: MakeRun, memory: Any) -> None:
    run = make_run()
    run.train()
    clients = memory.clients
    code, summary = run.train()
    assert (code, summary["status"]) == (0, "already complete")
    assert summary["training_run"] == "session-1:train:0"
    assert memory.clients == clients


def test_an_older_checkpoint_serves_when_the_newest_is_gone(
    make_run: MakeRun, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = make_run("reference")
    reference.train()
    run = make_run()
    reaper = Reaper(monkeypatch)
    kill_at = 1
    while len(checkpoints.read(run.folder.path) if run.folder.path.exists() else []) < 2:
        reaper.arm(kill_at)
        with pytest.raises(Killed):
            run.train()
        kill_at += 1
    reaper.arm(None)
    newest = checkpoints.read(run.folder.path)[-1]
    assert newest.state_path
    del memory.saved[newest.state_path]
    run.train()
    assert [r.step for r in checkpoints.read(run.folder.path)] == [3, 6, 7]
    assert result(run, memory) == result(reference, memory)


def test_it_does_not_begin_again_when_every_checkpoint_is_gone(
    make_run: MakeRun, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.CheckpointRecord, "final", True, raising=False)
        reaper = Reaper(patch)
        reaper.arm(35)
        with pytest.raises(Killed):
            run.train()
    rows = metrics.read(run.folder.path)
    assert checkpoints.read(run.folder.path)
    memory.saved.clear()
    with pytest.raises(CheckFailed, match="none of its 1 recorded checkpoints"):
        run.train()
    assert metrics.read(run.folder.path) == rows


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"learning_rate": 0.02}, "learning_rate was 0.01 and is 0.02"),
        ({"num_steps": 8}, "total_steps was 7 and is 8"),
        ({"train_rows": 10}, "train_rows was 9 and is 10"),
        ({"held_out": 2}, "held_out_sha256 was"),
        ({"seed": 1}, "seed was 0 and is 1"),
        ({"lora_rank": 8}, "lora_rank was 32 and is 8"),
        ({"eval_every": 3}, "eval_every was 2 and is 3"),
    ],
)
def test_other_settings_are_refused(make_run: MakeRun, changes: dict, what: str) -> None:
    make_run().train()
    with pytest.raises(InputError, match=what) as caught:
        make_run(**changes).train()
    assert "new run_name" in str(caught.value)


def test_settings_that_decide_nothing_may_change(make_run: MakeRun) -> None:
    make_run().train()
    code, _ = make_run(save_every=1, submit_ahead=4, ttl_seconds=None, train_file="b").train()
    assert code == 0
