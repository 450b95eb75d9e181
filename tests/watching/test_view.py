"""What people see: no line too long, nothing cut off that matters, nothing of a key."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tinkerlab.diagnosis.findings import Finding
from tinkerlab.watching.follow import Patience, all_ended, one_needs_attention
from tinkerlab.watching.status import Figure, State, Status
from tinkerlab.watching.view import Changes, line, screen


def status(name: str = "run", state: State = "running", **more: object) -> Status:
    values: dict = {
        "done": 120,
        "total": 400,
        "train": Figure("env/all/reward/total", 0.7199, 119, 0.1),
        "held_out": Figure("test/env/all/correct", 0.7, 100, 0.2),
        "kl": Figure("optim/kl_sample_train_v1", 0.003, 119),
        "entropy": Figure("optim/entropy", 1.0, 119),
        "seconds_per_step": 31.2,
        "eta": 8736.0,
        **more,
    }
    return Status(name, f"runs/{name}", state, **values)


def shown(statuses: list[Status], width: int = 80, height: int | None = None) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width)
    console.print(screen(statuses, width=width, height=height))
    return out.getvalue().rstrip("\n").split("\n")


def test_two_lines_in_80_columns() -> None:
    name = "learning_rate-1e-4_seed-0"
    head, first, second = shown([status(name)])
    assert head.endswith("1 run: 1 running")
    assert first == f"{name}  running  ETA 2:25:36  31.2 s/step  KL 0.003 H 1.00"
    assert second == "  ━━━╌╌╌╌╌╌╌ 120/400  reward 0.7199  held-out correct 0.7 (+0.5)"


def test_findings_and_reasons_stand_below_without_keys() -> None:
    finding = Finding(cause="loss-not-finite", what="it is NaN", where="step 9")
    lines = shown(
        [
            status(findings=(finding,) * 5),
            status("b", "stopped", reason="error: key tml-abcdefghijk refused [bold]"),
        ],
        width=200,
    )
    assert "run: problem [loss-not-finite] step 9: it is NaN" in lines
    assert "run: and 2 more warnings" in lines
    assert "b: stopped: error: key tml-*** refused [bold]" in lines


@pytest.mark.parametrize("count", [5, 12, 40])
def test_a_low_terminal_keeps_what_needs_attention(count: int) -> None:
    runs = [status(f"seeds/learning_rate-3e-2_seed-{n}", "finished") for n in range(count)]
    runs.append(status("bad", "stopped", reason="x" * 300))
    lines = shown(runs, height=12)
    assert len(lines) <= 12 and max(map(len, lines)) <= 80
    assert any(text.startswith("bad") and "stopped" in text for text in lines)
    if count > 12:
        assert lines[-1].startswith("... and ")
    assert any("rate-3e-2_seed-0" in text for text in lines), "the end of a name tells runs apart"


def test_one_line_for_each_change() -> None:
    changes = Changes()
    finding = Finding(cause="loss-spike", what="it jumped", fix="look", severity="warning")
    assert len(list(changes.lines([status(), status("b")]))) == 2
    assert list(changes.lines([status(), status("b")])) == []
    (moved,) = changes.lines([status(), status("b", done=121)])
    assert "  b  running  step 121/400 (30 %)  reward 0.7199" in moved
    found = list(changes.lines([status(findings=(finding,)), status("b", done=121)]))
    assert found[0].endswith("run  warning [loss-spike] it jumped") and "fix: look" in found[1]
    assert list(changes.lines([status(findings=(finding,)), status("b", done=121)])) == []


def test_a_line_with_a_loss_that_is_nan() -> None:
    text = line(status(train=Figure("train_mean_nll", float("nan"), 3), held_out=None))
    assert "loss nan" in text


def test_when_watching_ends() -> None:
    running, finished = status(), status(state="finished")
    stalled = status(state="stalled")
    assert not all_ended([]) and not all_ended([running, finished])
    assert all_ended([stalled, finished])
    assert one_needs_attention([running, stalled]) and not one_needs_attention([running])


def test_a_stopped_run_is_given_time_to_resume() -> None:
    stopped = status(state="stopped")
    assert not Patience(all_ended, 60)([stopped])
    assert Patience(all_ended, 0)([stopped])
    seen = Patience(all_ended, 60)
    assert not seen([status()]) and seen([stopped]), "it was seen running"
    assert Patience(all_ended, 60)([status(state="finished")])
