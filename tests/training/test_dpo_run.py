"""DPO on a rehearsal: it learns the preference, repeats itself, and survives interruptions."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from dpo_tools import final_adapter, pairs, rows_of, run, write

from tinkerlab.errors import InputError
from tinkerlab.evaluation.checking import check_results
from tinkerlab.runs import checkpoints, jsonl, metrics


@pytest.fixture(autouse=True)
def use(rehearsal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TINKER_BASE_URL", "TINKER_API_KEY"):
        monkeypatch.setenv(name, rehearsal.env[name])


@pytest.fixture(scope="module")
def reference(
    rehearsal: Any, tmp_path_factory: pytest.TempPathFactory
) -> tuple[bytes, list[dict[str, Any]]]:
    """(final adapter, metrics) of an uninterrupted run of four steps."""
    folder = tmp_path_factory.mktemp("dpo") / "reference"
    with pytest.MonkeyPatch.context() as patch:
        for name in ("TINKER_BASE_URL", "TINKER_API_KEY"):
            patch.setenv(name, rehearsal.env[name])
        code, summary = run(folder).train()
    assert code == 0 and summary["status"] == "complete"
    assert [record.step for record in checkpoints.read(folder)] == [2, 4]
    return final_adapter(rehearsal, folder), rows_of(folder)


def outcome(rehearsal: Any, folder: Path) -> tuple[bytes, list[dict[str, Any]]]:
    return final_adapter(rehearsal, folder), rows_of(folder)


def mixed(count: int) -> list[dict[str, str]]:
    """Pairs of which an untrained model prefers about half: the longer side is either."""
    found = []
    for n in range(count):
        quiet, loud = f"It is {n + 1}.", f"WHAT {n}!!"
        if n % 2:
            quiet += " Quite sure of it."
        else:
            loud += " WHY DO YOU ASK?"
        found.append({"prompt": f"Add {n} and 1.", "chosen": quiet, "rejected": loud})
    return found


def test_training_raises_margin_and_held_out_accuracy(tmp_path: Path) -> None:
    trained = run(
        tmp_path / "run",
        mixed(120),
        num_steps=30,
        val_fraction=0.5,
        eval_every=10,
        train_batch_size=8,
    )
    code, summary = trained.train()
    assert code == 0
    assert summary["held_out_margin_first"] == 0.0
    assert summary["held_out_margin_last"] > 1.0
    assert summary["held_out_accuracy_last"] > 0.9
    assert summary["loss_first"] > 0.69 > 0.5 > summary["loss_last"]
    results = summary["results"]
    assert results["baseline_score"] < 0.7
    assert results["difference"]["low"] > 0.2  # the interval is far above zero
    assert results["trained_score"] == summary["held_out_policy_accuracy_last"]
    verdict = check_results(tmp_path / "run" / "results")
    assert (verdict.findings, verdict.items) == ([], len(trained.data.held_out))


def test_rows_have_the_cookbooks_names(reference: Any) -> None:
    _, rows = reference
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    names = {"dpo_loss", "accuracy", "margin", "chosen_reward", "rejected_reward", "num_pairs"}
    for row in rows[:-1]:
        assert names | {"num_tokens", "learning_rate", "progress", "epoch"} <= set(row)
        assert ("test/margin" in row) == (row["step"] % 2 == 0)
    # The reference is the start, scored alike: exactly no preference before the first update.
    assert rows[0]["margin"] == rows[0]["test/margin"] == rows[0]["chosen_reward"] == 0.0
    assert rows[-1]["test/margin"] > 0


def test_the_same_seed_gives_the_same_bits(tmp_path: Path, rehearsal: Any, reference: Any) -> None:
    run(tmp_path / "again", submit_ahead=3).train()
    assert outcome(rehearsal, tmp_path / "again") == reference
    run(tmp_path / "other", seed=1).train()
    assert outcome(rehearsal, tmp_path / "other")[0] != reference[0]


@pytest.mark.parametrize("stop_after", [0, 1])
def test_ctrl_c_after_any_step_and_it_ends_in_the_same_bits(
    tmp_path: Path,
    rehearsal: Any,
    reference: Any,
    monkeypatch: pytest.MonkeyPatch,
    stop_after: int,
) -> None:
    append = metrics.append

    def append_and_press(path: Path, step: int, row: Any) -> None:
        append(path, step, row)
        if step == stop_after:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(metrics, "append", append_and_press)
        code, summary = run(tmp_path / "run").train()
    assert (code, summary["status"]) == (130, "interrupted")
    assert "results" not in summary
    code, summary = run(tmp_path / "run").train()
    assert code == 0 and "results" in summary
    assert outcome(rehearsal, tmp_path / "run") == reference


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the trainer may catch it and save something."""


def test_killed_at_any_write_it_ends_in_the_same_bits(
    tmp_path: Path, rehearsal: Any, reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every write of the run's logs, which is several in each step."""
    append = jsonl.append
    for kill_at in range(1, 40):
        count = 0

        def append_or_die(path: Path, row: Any, kill_at: int = kill_at) -> None:
            nonlocal count
            count += 1
            if count == kill_at:
                raise Killed
            append(path, row)

        folder = tmp_path / f"killed-{kill_at}"
        with monkeypatch.context() as patch:
            patch.setattr(jsonl, "append", append_or_die)
            try:
                run(folder).train()
            except Killed:
                pass
            else:
                break
        assert run(folder).train()[0] == 0
        assert outcome(rehearsal, folder) == reference, f"killed at write {kill_at}"
    else:
        pytest.fail("the run has more writes than were tried")
    assert kill_at > 7


def test_killed_before_its_results_they_are_written_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tinkerlab.training.dpo import run as module

    def die(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_results", die)
        with pytest.raises(Killed):
            run(tmp_path / "run").train()
    code, summary = run(tmp_path / "run").train()
    assert (code, summary["status"]) == (0, "already complete")
    assert check_results(tmp_path / "run" / "results").ok
    before = (tmp_path / "run" / "results" / "summary.json").read_bytes()
    run(tmp_path / "run").train()
    assert (tmp_path / "run" / "results" / "summary.json").read_bytes() == before


def test_from_a_checkpoint_the_reference_is_the_checkpoint(tmp_path: Path, rehearsal: Any) -> None:
    """Also after a resume, where tinker-cookbook's own loop takes the resumed weights."""
    run(tmp_path / "first").train()
    whole = run(tmp_path / "second", load_checkpoint_path=tmp_path / "first")
    code, _ = whole.train()
    assert code == 0
    rows = rows_of(tmp_path / "second")
    assert rows[0]["margin"] == rows[0]["test/margin"] == 0.0
    summary = json.loads((tmp_path / "second" / "results" / "summary.json").read_text())
    assert summary["models"]["base"].endswith("/weights/final")

    with pytest.MonkeyPatch.context() as patch:
        append = metrics.append

        def append_or_die(path: Path, step: int, row: Any) -> None:
            if step == 3:
                raise Killed
            append(path, step, row)

        patch.setattr(metrics, "append", append_or_die)
        with pytest.raises(Killed):
            run(tmp_path / "third", load_checkpoint_path=tmp_path / "first").train()
    assert run(tmp_path / "third", load_checkpoint_path=tmp_path / "first").train()[0] == 0
    assert outcome(rehearsal, tmp_path / "third") == outcome(rehearsal, tmp_path / "second")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"load_checkpoint_path": "tinker://none/weights/x"}, "it expired, was deleted, or"),
        ({"load_checkpoint_path": "first", "lora_rank": 2}, "its rank is 4, not 2"),
        ({"base_model": "tiny:qwen3"}, "the service refused an adapter"),
    ],
)
def test_a_wrong_start_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if changes.get("load_checkpoint_path") == "first":
        run(tmp_path / "first", num_steps=1).train()
    with pytest.raises(InputError) as caught:
        run(tmp_path / "run", **changes).train()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_settings_do_not_go_on_with_a_run(tmp_path: Path) -> None:
    run(tmp_path / "run", num_steps=1).train()
    with pytest.raises(InputError, match=r"dpo_beta was 0\.1 and is 0\.2"):
        run(tmp_path / "run", num_steps=1, dpo_beta=0.2).train()
    write(tmp_path / "pairs.jsonl", pairs(30))
    with pytest.raises(InputError, match="train_pairs was 22 and is 28"):
        run(tmp_path / "run", num_steps=1).train()
