"""Faults of supervised runs, and of any run's folder: each trained for real on a rehearsal unless its row says otherwise."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import run_recipes as recipes
from fault_lab import Lab, Look, fault, healthy
from run_recipes import Loop, config, datum, sentences

import sl_trainer
from tinkerlab.runs import jsonl, metrics

SCRIPT = "analyze_run.py"
HOUR = 3600


@pytest.fixture(autouse=True)
def _service(rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_BASE_URL", rehearsal.base_url)
    monkeypatch.setenv("TINKER_API_KEY", "tml-rehearsal")


def new_client(rehearsal: Any) -> Any:
    return rehearsal.client().create_lora_training_client(rehearsal.model, rank=4, seed=1).result()


def loop(rehearsal: Any, lab: Lab, total: int, **options: Any) -> Loop:
    folder = lab.tmp_path / "run"
    folder.mkdir(exist_ok=True)
    return Loop(new_client(rehearsal), folder, total, **options)


def age(file: Path, hours: float) -> None:
    then = time.time() - hours * HOUR
    os.utime(file, (then, then))


def trainer(lab: Lab, rehearsal: Any, **settings: Any) -> Path:
    """scripts/sl_trainer.py on 60 short chats; the run's folder."""
    file = lab.tmp_path / "train.jsonl"
    rows = [{"prompt": f"Count {i}.", "completion": t} for i, t in enumerate(sentences(60))]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = {
        "base_model": rehearsal.model,
        "train_file": file,
        "log_path": lab.tmp_path / "run",
        "num_steps": 24,
        "train_batch_size": 4,
        "max_seq_len": 64,
        "lora_rank": 4,
        "learning_rate": 0.01,
        "renderer": "qwen3_instruct",
        "eval_every": 6,
        "save_every": 8,
        **settings,
    }
    sl_trainer.main([f"{key}={value}" for key, value in values.items()])
    return lab.tmp_path / "run"


# --- losses and learning rate -----------------------------------------------------------------


@fault(SCRIPT, "loss-diverged", produced="30 steps at 300 times the learning rate that works")
def test_a_learning_rate_far_too_high(lab: Lab, rehearsal) -> Look:
    run = loop(rehearsal, lab, 30, rate=lambda _: 3.0)
    run.run()
    return Look([run.folder])


@fault(SCRIPT, "lr-too-high", produced="the same, where no model is named")
def test_a_learning_rate_that_no_model_takes(lab: Lab, rehearsal) -> Look:
    run = loop(rehearsal, lab, 12, rate=lambda _: 3.0)
    run.run()
    return Look([run.folder / "metrics.jsonl"])


@fault(SCRIPT, "loss-not-finite", produced="a learning rate of 1e30, so that weights overflow")
def test_weights_that_overflow(lab: Lab, rehearsal) -> Look:
    run = loop(rehearsal, lab, 6, rate=lambda _: 1e30)
    run.run()
    return Look([run.folder])


@fault(SCRIPT, "loss-plateau", produced="a loop that never submits optim_step, 40 steps")
def test_an_update_forgotten(lab: Lab, rehearsal) -> Look:
    run = loop(rehearsal, lab, 40, update=False)
    run.run()
    return Look([run.folder])


@fault(SCRIPT, "overfitting", produced="80 steps on two texts, scored on others")
def test_two_texts_learned_by_heart(lab: Lab, rehearsal) -> Look:
    few = [datum(text) for text in sentences(2)]
    others = [datum(text) for text in sentences(6, seed=5)]
    run = loop(rehearsal, lab, 80, batch=lambda _: few, held_out=others)
    run.run()
    return Look([run.folder])


@fault(SCRIPT, "lr-not-as-configured", produced="config says linear, the loop's rate is constant")
def test_a_schedule_that_is_not_applied(lab: Lab, rehearsal) -> Look:
    run = loop(rehearsal, lab, 20)
    config(run.folder, learning_rate=0.01, lr_schedule="linear", max_steps=20)
    run.run()
    return Look([run.folder])


@fault(SCRIPT, "loss-scale-changed", produced="weights sum to 1 for 10 steps, then count tokens")
def test_the_loss_weights_change(lab: Lab, rehearsal) -> Look:
    def batch(step: int) -> list[Any]:
        return [datum(text, per_example=step < 10) for text in sentences(4, seed=step)]

    run = loop(rehearsal, lab, 20, batch=batch, rate=lambda _: 1e-3)
    run.run()
    return Look([run.folder])


# --- resumes ----------------------------------------------------------------------------------


class Died(Exception):
    """The machine is taken away."""


@contextlib.contextmanager
def dies_at(batch: int) -> Iterator[None]:
    """tinker-cookbook's supervised dataset fails at this batch."""
    from tinker_cookbook.supervised.data import SupervisedDatasetFromHFDataset as Dataset

    whole = Dataset.get_batch

    def get_batch(self: Any, index: int) -> Any:
        if index == batch:
            raise Died
        return whole(self, index)

    Dataset.get_batch = get_batch  # type: ignore[method-assign]
    try:
        with contextlib.suppress(Died):
            yield
    finally:
        Dataset.get_batch = whole  # type: ignore[method-assign]


@fault(SCRIPT, "resume-replays-batch", produced="tinker-cookbook's loop dies and is started again")
def test_tinker_cookbooks_own_resume(lab: Lab, rehearsal) -> Look:
    chats, folder = recipes.chat_file(lab.tmp_path, 96), lab.tmp_path / "run"
    with dies_at(batch=9):
        recipes.cookbook_sft(rehearsal, folder, chats)
    recipes.cookbook_sft(rehearsal, folder, chats)
    return Look([folder])


@fault(SCRIPT, "optimizer-state-lost", produced="resumed with create_training_client_from_state")
def test_adam_starts_anew(lab: Lab, rehearsal) -> Look:
    run = loop(rehearsal, lab, 40)
    run.run(0, 20)
    path = run.save(20, step=20)
    jsonl.append(run.folder / "attempts.jsonl", {"training_run": "a", "first_step": 0})
    jsonl.append(run.folder / "attempts.jsonl", {"training_run": "b", "first_step": 20})
    run.client = rehearsal.client().create_training_client_from_state(path).result()
    run.run(20)
    return Look([run.folder])


@fault(SCRIPT, "optimizer-state-lost", produced="the same, told only by the repeated steps 16-19")
def test_adam_starts_anew_on_repeated_steps(lab: Lab, rehearsal) -> Look:
    run = loop(rehearsal, lab, 30)
    run.run(0, 16)
    path = run.save(16, step=16)
    run.run(16, 20)
    run.client = rehearsal.client().create_training_client_from_state(path).result()
    run.run(16)
    return Look([run.folder])


@fault(SCRIPT, "weights-not-restored", produced="resumed with create_lora_training_client")
def test_a_resume_that_begins_again(lab: Lab, rehearsal) -> Look:
    run = loop(rehearsal, lab, 40)
    run.run(0, 20)
    run.save(20, step=20)
    run.client = new_client(rehearsal)
    run.run(18)
    return Look([run.folder])


@fault(SCRIPT, "runs-interleaved", produced="two trainers write into one folder in turns")
def test_two_runs_in_one_folder(lab: Lab, rehearsal) -> Look:
    first, second = loop(rehearsal, lab, 12), loop(rehearsal, lab, 12)
    for step in range(12):
        first.run(step, step + 1)
        if step >= 2:
            second.run(step - 2, step - 1)
    return Look([first.folder])


@fault(SCRIPT, "steps-missing", produced="resumed two steps after the checkpoint's own")
def test_a_label_too_far(lab: Lab, rehearsal) -> Look:
    run = loop(rehearsal, lab, 20)
    run.run(0, 10)
    run.run(12)
    return Look([run.folder])


@fault(SCRIPT, "final-checkpoint-label", produced="a whole run whose last save is labelled 0")
def test_a_final_checkpoint_labelled_zero(lab: Lab, rehearsal) -> Look:
    run = loop(rehearsal, lab, 10)
    run.run()
    run.save(10, name="final", final=True, batch=0, epoch=0)
    return Look([run.folder])


# --- checkpoints and the end ------------------------------------------------------------------


@fault(SCRIPT, "checkpoints-missing", produced="a loop that never saves; config: save_every 4")
def test_saves_that_never_happen(lab: Lab, rehearsal) -> Look:
    run = loop(rehearsal, lab, 20)
    config(run.folder, save_every=4)
    run.run(0, 15)
    return Look([run.folder])


@fault(SCRIPT, "checkpoints-expired", produced="an interrupted run, 8 days old by its files")
def test_a_run_left_alone_for_a_week(lab: Lab, rehearsal) -> Look:
    run = loop(rehearsal, lab, 20)
    config(run.folder, save_every=5, ttl_seconds=604_800)
    run.run(0, 10)
    run.save(10)
    age(run.folder / "checkpoints.jsonl", hours=8 * 24)
    return Look([run.folder])


@fault(SCRIPT, "checkpoints-expiring", produced="the same, with 5 hours left")
def test_a_checkpoint_about_to_expire(lab: Lab, rehearsal) -> Look:
    run = loop(rehearsal, lab, 20)
    config(run.folder, save_every=5, ttl_seconds=604_800)
    run.run(0, 10)
    run.save(10)
    age(run.folder / "checkpoints.jsonl", hours=7 * 24 - 5)
    return Look([run.folder])


@fault(SCRIPT, "final-checkpoint-missing", produced="a run to its end without the last save")
def test_a_last_save_that_failed(lab: Lab, rehearsal) -> Look:
    run = loop(rehearsal, lab, 14)
    config(run.folder, save_every=5)
    run.run(0, 10)
    run.save(10)
    run.run(10)
    return Look([run.folder])


@fault(SCRIPT, "run-stopped-early", produced="a run ends at step 10 of 20, files 3 hours old")
def test_a_run_that_ended_too_early(lab: Lab, rehearsal) -> Look:
    run = loop(rehearsal, lab, 20)
    run.run(0, 10)
    age(run.folder / "metrics.jsonl", hours=3)
    return Look([run.folder])


@fault(SCRIPT, "slow-steps", produced="a batch that takes 3.5 s to make")
def test_a_batch_that_is_slow_to_make(lab: Lab, rehearsal) -> Look:
    def batch(step: int) -> list[Any]:
        if step == 7:
            time.sleep(3.5)
        return [datum(text) for text in sentences(4, seed=step)]

    run = loop(rehearsal, lab, 16, batch=batch)
    run.run()
    return Look([run.folder])


@fault(SCRIPT, "slow-steps-unaccounted", produced="--fault latency:4s,1x on one forward_backward")
def test_a_service_that_stalls_once(lab: Lab) -> Look:
    with lab.start_rehearsal(faults=["latency:4s,1x,on=/forward_backward"]) as server:
        folder = lab.tmp_path / "run"
        folder.mkdir()
        run = Loop(new_client(server), folder, 12)
        # The first request meets the fault; log it where no start-up can excuse it.
        run.run(6)
        run.run(6)
        rows = metrics.read(folder)
        rows = rows[6:11] + rows[:6] + rows[11:]
        jsonl.rewrite(
            folder / "metrics.jsonl", [row | {"step": step} for step, row in enumerate(rows)]
        )
    return Look([folder])


# --- healthy controls -------------------------------------------------------------------------


@healthy(SCRIPT, produced="sl_trainer.py, cosine with warm-up, evaluated and saved, to its end")
def test_a_whole_run_of_our_trainer(lab: Lab, rehearsal) -> Look:
    return Look([trainer(lab, rehearsal, lr_schedule="cosine", warmup_steps=3)])


@healthy(SCRIPT, produced="sl_trainer.py killed by an error at step 13 and started again")
def test_a_run_of_our_trainer_resumed(lab: Lab, rehearsal, monkeypatch) -> Look:
    whole, calls = metrics.append, []

    def append(folder: Path, step: int, row: Any) -> None:
        calls.append(step)
        if len(calls) == 14:
            raise Died
        whole(folder, step, row)

    with monkeypatch.context() as patch, contextlib.suppress(Died):
        patch.setattr(metrics, "append", append)
        trainer(lab, rehearsal)
    return Look([trainer(lab, rehearsal)])


@healthy(SCRIPT, produced="a run in progress: step 12 of 40, half a last line")
def test_a_live_run(lab: Lab, rehearsal) -> Look:
    run = loop(rehearsal, lab, 40)
    config(run.folder, save_every=10, learning_rate=0.01, lr_schedule="constant")
    run.run(0, 12)
    run.save(10)
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 12, "epoch": 0, "train_me')
    return Look([run.folder])


@healthy(SCRIPT, produced="tinker-cookbook's supervised loop, two epochs, to its end")
def test_a_whole_run_of_the_cookbook(lab: Lab, rehearsal) -> Look:
    folder = lab.tmp_path / "run"
    chats = recipes.chat_file(lab.tmp_path, 64)
    recipes.cookbook_sft(rehearsal, folder, chats, num_epochs=2)
    return Look([folder])


@healthy(SCRIPT, produced="an SDK loop stopped at a checkpoint and resumed with its optimizer")
def test_an_exact_resume(lab: Lab, rehearsal) -> Look:
    run = loop(rehearsal, lab, 40)
    run.run(0, 20)
    path = run.save(20, step=20)
    jsonl.append(run.folder / "attempts.jsonl", {"training_run": "a", "first_step": 0})
    jsonl.append(run.folder / "attempts.jsonl", {"training_run": "b", "first_step": 20})
    service = rehearsal.client()
    run.client = service.create_training_client_from_state_with_optimizer(path).result()
    run.run(20)
    run.save(40, name="final", final=True)
    return Look([run.folder])


@healthy(SCRIPT, produced="the same, with steps 16-19 done and logged twice")
def test_steps_redone_after_an_exact_resume(lab: Lab, rehearsal) -> Look:
    run = loop(rehearsal, lab, 40)
    run.run(0, 16)
    path = run.save(16, step=16)
    run.run(16, 20)
    service = rehearsal.client()
    run.client = service.create_training_client_from_state_with_optimizer(path).result()
    run.run(16)
    run.save(40, name="final", final=True)
    return Look([run.folder])


@healthy(SCRIPT, produced="by formula: 300 noisy SFT steps, batch of one, a held-out loss")
def test_a_noisy_loss(lab: Lab) -> Look:
    noise = np.random.default_rng(1)
    folder = lab.tmp_path / "run"
    folder.mkdir()
    for step in range(300):
        level = 1.1 + 1.4 * np.exp(-step / 60)
        row = {
            "progress": (step + 1) / 300,
            "learning_rate": 2e-4 * (1 - step / 300),
            "train_mean_nll": float(level * np.exp(noise.normal(0, 0.25))),
            "time/total": 2.0 + abs(noise.normal(0, 0.4)),
        }
        if step % 30 == 0:
            row["test/nll"] = float(level + 0.05 + noise.normal(0, 0.004))
        metrics.append(folder, step, row)
    return Look([folder])
