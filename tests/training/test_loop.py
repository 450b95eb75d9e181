"""The loop: order of requests, what is recorded when, and how it stops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import tinker

from tinkerlab.errors import CheckFailed
from tinkerlab.runs import checkpoints, jsonl, metrics
from tinkerlab.training.batches import BatchPlan
from tinkerlab.training.supervised import SupervisedRun

MakeRun = Callable[..., SupervisedRun]


def test_each_step_trains_on_its_batch_at_its_rate(make_run: MakeRun, memory: Any) -> None:
    run = make_run()
    run.train()
    plan = BatchPlan(9, 2, seed=0)
    final = checkpoints.read(run.folder.path)[-1]
    assert final.state_path
    weights = memory.saved[final.state_path]
    for step, (batch, rate) in enumerate(weights):
        assert list(batch) == [100 + index for index in plan.indices(step)]
        assert rate == pytest.approx(0.01 * (1 - step / 7))


def test_rows_have_the_cookbooks_keys(make_run: MakeRun) -> None:
    run = make_run()
    run.train()
    rows = metrics.read(run.folder.path)
    keys = [
        "step",
        "epoch",
        "progress",
        "learning_rate",
        "num_sequences",
        "num_tokens",
        "num_loss_tokens",
        "train_mean_nll",
        "train_mean_bpb",
        "grad_norm:mean",
        "time/step",
        "time/total",
        "time/get_batch",
        "time/submit_batch",
    ]
    for row in rows[:-1]:
        assert set(keys) <= set(row)
        assert ("test/nll" in row) == (row["step"] % 2 == 0)
        assert (row["num_sequences"], row["num_tokens"], row["num_loss_tokens"]) == (2, 8, 6)
    assert rows[-1]["step"] == 7
    assert "test/nll" in rows[-1] and "train_mean_nll" not in rows[-1]
    assert rows[-1]["progress"] == rows[-2]["progress"] == 1.0
    assert [row["epoch"] for row in rows] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_held_out_nll_is_the_mean_per_trained_token(make_run: MakeRun, memory: Any) -> None:
    run = make_run(num_steps=1)
    run.train()
    client = memory.create_lora_training_client("m").result()
    outputs = client.forward(run.data.held_out_datums(), "cross_entropy").result().loss_fn_outputs
    trained = [sum(-value for value in o["logprobs"].data[1:]) / 3 for o in outputs]
    row = metrics.read(run.folder.path)[0]
    assert row["test/nll"] == pytest.approx(sum(trained) / 3, rel=1e-6)
    assert row["test/nll_per_token"] == pytest.approx(sum(trained) / 3, rel=1e-6)


def test_the_next_step_is_submitted_before_the_last_is_awaited(
    make_run: MakeRun, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = metrics.append
    submitted: dict[int, int] = {}

    def append(folder: Any, step: int, row: Any) -> None:
        submitted[step] = memory.calls.count("optim_step")
        write(folder, step, row)

    monkeypatch.setattr(metrics, "append", append)
    make_run("ahead", submit_ahead=1).train()
    assert submitted == {0: 2, 1: 3, 2: 4, 3: 5, 4: 6, 5: 7, 6: 7, 7: 7}
    memory.calls.clear()
    make_run("waiting", submit_ahead=0).train()
    assert submitted == {0: 1, 1: 2, 2: 3, 3: 4, 4: 5, 5: 6, 6: 7, 7: 7}


def test_periodic_checkpoints_expire_and_the_final_one_does_not(
    make_run: MakeRun, memory: Any
) -> None:
    run = make_run()
    run.train()
    records = checkpoints.read(run.folder.path)
    assert [(r.name, r.step, r.final) for r in records] == [
        ("000003", 3, False),
        ("000006", 6, False),
        ("final", 7, True),
    ]
    assert [(r.epoch, r.batch) for r in records] == [(0, 3), (1, 2), (1, 3)]
    assert {path.split("/")[-1]: life for path, life in memory.lives.items()} == {
        "000003": 604_800,
        "000006": 604_800,
        "final": None,
    }
    assert {path.split("/")[-2] for path in memory.lives} == {"weights", "sampler_weights"}


def test_without_saves_evaluations_or_held_out_rows(make_run: MakeRun, memory: Any) -> None:
    run = make_run(save_every=0, eval_every=0, held_out=0)
    code, summary = run.train()
    assert code == 0
    assert summary["held_out_nll_last"] is None
    assert "forward" not in memory.calls
    assert [r.name for r in checkpoints.read(run.folder.path)] == ["final"]
    assert [row["step"] for row in metrics.read(run.folder.path)] == list(range(7))


@pytest.mark.parametrize("submit_ahead", [0, 1, 3])
@pytest.mark.parametrize(
    ("diverge_at", "good", "stops_at"),
    [(2, None, 2), (3, None, 3), (4, 3, 4), (6, 3, 6), (7, 6, 7)],
)
def test_a_loss_that_is_not_finite_stops_the_run(
    make_run: MakeRun,
    memory: Any,
    diverge_at: int,
    good: int | None,
    stops_at: int,
    submit_ahead: int,
) -> None:
    """``diverge_at`` updates break the weights; a checkpoint of them must not be recorded."""
    memory.diverge_at = diverge_at
    run = make_run(submit_ahead=submit_ahead)
    with pytest.raises(CheckFailed, match=f"is nan at step {stops_at}") as caught:
        run.train()
    text = str(caught.value)
    assert "lower learning_rate" in text and "\n" not in text
    rows = metrics.read(run.folder.path)
    assert rows[-1]["step"] == stops_at
    broken = rows[-1]["train_mean_nll" if stops_at < 7 else "test/nll"]
    assert math.isnan(broken)
    records = checkpoints.read(run.folder.path)
    assert (records[-1].step if records else None) == good
    if good:
        assert records[-1].state_path and records[-1].state_path in text
    else:
        assert "no good checkpoint" in text


def test_a_service_that_stops_answering_is_one_line_with_the_way_on(
    make_run: MakeRun, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = make_run("reference")
    reference.train()
    run = make_run()
    client_class = type(memory.create_lora_training_client("m").result())
    step = client_class.optim_step

    def fail_at_the_sixth(self: Any, adam_params: Any) -> Any:
        if len(self.weights) == 5:
            raise memory.refusal(tinker.APIStatusError, 503)
        return step(self, adam_params)

    with monkeypatch.context() as patch:
        patch.setattr(client_class, "optim_step", fail_at_the_sixth)
        with pytest.raises(CheckFailed, match="the service stopped the run: refused") as caught:
            run.train()
    assert "python scripts/sl_trainer.py --config c.yaml" in str(caught.value)
    assert run.train()[0] == 0
    final, expected = (checkpoints.read(r.folder.path)[-1].state_path for r in (run, reference))
    assert memory.saved[final] == memory.saved[expected]


def test_a_repeated_sampler_save_that_had_succeeded_counts(
    make_run: MakeRun, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK repeats a save whose answer was lost; the service then says 409."""
    client_class = type(memory.create_lora_training_client("m").result())
    save = client_class.save_weights_for_sampler

    def saved_then_409(self: Any, name: str, ttl_seconds: int | None) -> Any:
        save(self, name, ttl_seconds)
        from concurrent.futures import Future

        from tinker.lib.public_interfaces.api_future import AwaitableConcurrentFuture

        future: Future = Future()
        future.set_exception(memory.refusal(tinker.ConflictError, 409))
        return AwaitableConcurrentFuture(future)

    monkeypatch.setattr(client_class, "save_weights_for_sampler", saved_then_409)
    run = make_run()
    run.train()
    for record in checkpoints.read(run.folder.path):
        assert record.sampler_path in memory.saved


def test_the_folder_tells_what_was_run(make_run: MakeRun) -> None:
    run = make_run()
    run.train()
    config = run.folder.read_config()
    assert config is not None
    assert config["lora_rank"] == 32
    assert config["resolved"]["total_steps"] == 7
    assert config["versions"]["tinker"] == tinker.__version__
    assert jsonl.read(run.folder.held_out_file) == [{"messages": [f"row {i}"]} for i in range(3)]
    assert (
        jsonl.read(run.folder.attempts_file)
        == [{"training_run": "session-2:train:0", "first_step": 0, "resumed_from": None}]
        or len(jsonl.read(run.folder.attempts_file)) == 1
    )
