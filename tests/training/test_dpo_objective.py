"""A DPO step's loss and gradient, against transformers, autograd and the formula by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from dpo_tools import adapter, pairs, rows_of, run
from merged_model import MergedModel
from safetensors.torch import load as load_tensors

from tinkerlab.runs import checkpoints
from tinkerlab.training.dpo.objective import PairLogprobs, dpo_loss, figures

BETA = 0.3
RATE, EPS = 1e-3, 1.0  # with both betas 0 an update is RATE * g / (|g| + EPS)


@pytest.fixture(autouse=True)
def use(rehearsal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TINKER_BASE_URL", "TINKER_API_KEY"):
        monkeypatch.setenv(name, rehearsal.env[name])


def reply_logprob(
    model: MergedModel, state: dict[str, torch.Tensor], prompt: str, reply: str
) -> torch.Tensor:
    """Summed log-probability of the reply and the end of its turn."""
    start = f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
    before = model.tokenizer.encode(start, add_special_tokens=False)
    after = model.tokenizer.encode(f"{reply}<|im_end|>", add_special_tokens=False)
    return model.token_logprobs(state, before + after)[len(before) - 1 :].sum()


def loss_of(
    model: MergedModel, state: dict[str, torch.Tensor], batch: list[dict[str, str]]
) -> torch.Tensor:
    """The mean of log(1 + exp(-BETA * difference of log-ratios))."""
    losses = []
    for pair in batch:
        ratio = {
            side: reply_logprob(model, state, pair["prompt"], pair[side])
            - reply_logprob(model, model.base(), pair["prompt"], pair[side]).detach()
            for side in ("chosen", "rejected")
        }
        difference = BETA * (ratio["chosen"] - ratio["rejected"])
        losses.append(torch.log1p(torch.exp(-difference)))
    return torch.stack(losses).mean()


def test_loss_and_gradient_of_a_step_are_those_computed_by_hand(
    tmp_path: Path, rehearsal: Any
) -> None:
    """Step 1 of two: its loss from the weights after step 0, its gradient from both checkpoints."""
    trained = run(
        tmp_path / "run",
        num_steps=2,
        save_every=1,
        dpo_beta=BETA,
        learning_rate=RATE,
        adam_beta1=0.0,
        adam_beta2=0.0,
        adam_eps=EPS,
        train_unembed=False,
    )
    assert trained.train()[0] == 0
    before, after = (
        load_tensors(adapter(rehearsal, str(record.state_path)))
        for record in checkpoints.read(tmp_path / "run")
    )
    model = MergedModel(rehearsal.model_dir, rank=4)
    batch = [pairs()[trained.data.train[index].line - 1] for index in trained.plan.indices(1)]

    leaves = {name: value.float().clone().requires_grad_(True) for name, value in before.items()}
    loss = loss_of(model, model.merged(leaves), batch)
    logged = rows_of(tmp_path / "run")
    assert math.isclose(logged[0]["dpo_loss"], math.log(2), rel_tol=1e-6)
    assert math.isclose(logged[1]["dpo_loss"], loss.item(), rel_tol=1e-4)
    assert abs(logged[1]["dpo_loss"] - math.log(2)) > 1e-3  # the step before changed something

    loss.backward()
    expected, found = [], []
    for name, leaf in leaves.items():
        moved = (after[name] - before[name]).float() / -RATE  # g / (|g| + EPS)
        found.append((moved * EPS / (1 - moved.abs())).flatten())
        assert leaf.grad is not None
        expected.append(leaf.grad.flatten())
    wanted, got = torch.cat(expected), torch.cat(found)
    assert wanted.norm() > 1e-2
    assert (got - wanted).norm() / wanted.norm() < 2e-3


def scalars(*values: float) -> list[torch.Tensor]:
    return [torch.tensor(value) for value in values]


def test_figures_by_hand() -> None:
    policy = PairLogprobs(scalars(-2.0, -5.0), scalars(-3.0, -4.0))
    start = PairLogprobs(scalars(-3.0, -5.0), scalars(-3.0, -3.0))
    found = figures(policy, start, 0.5)
    assert found["policy_accuracy"] == 0.5
    assert found["accuracy"] == 1.0  # both log-ratios differ by 1 in favour of chosen
    assert math.isclose(found["margin"], 0.5)
    assert math.isclose(found["dpo_loss"], math.log1p(math.exp(-0.5)), rel_tol=1e-6)
    assert (found["chosen_reward"], found["rejected_reward"]) == (0.25, -0.25)


def test_a_loss_that_is_not_finite_gives_no_gradient_but_its_value() -> None:
    import tinker

    datum = tinker.Datum(
        model_input=tinker.ModelInput.from_ints([1, 2]),
        loss_fn_inputs={
            "target_tokens": tinker.TensorData(data=[2, 3], dtype="int64"),
            "weights": tinker.TensorData(data=[1.0, 1.0], dtype="float32"),
        },
    )
    logprobs = [torch.tensor([math.nan, -1.0], requires_grad=True) for _ in range(2)]
    loss, metrics = dpo_loss(PairLogprobs(scalars(-1.0), scalars(-1.0)), 0.1)(
        [datum, datum], logprobs
    )
    loss.backward()
    assert math.isnan(metrics["dpo_loss"])
    assert all(torch.equal(value.grad, torch.zeros(2)) for value in logprobs)  # type: ignore[arg-type]
