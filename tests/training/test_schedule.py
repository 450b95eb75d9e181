"""Learning rates and data order: pure functions of the step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinkerlab.errors import InputError
from tinkerlab.training.batches import BatchPlan, epoch_order
from tinkerlab.training.schedule import learning_rate_at, recommended_learning_rate


def rates(total: int, **options) -> list[float]:
    return [learning_rate_at(step, total, peak=1.0, **options) for step in range(total)]


def test_schedules_have_their_shapes() -> None:
    assert rates(4, schedule="linear") == [1.0, 0.75, 0.5, 0.25]
    assert rates(4, schedule="constant") == [1.0] * 4
    assert rates(4, schedule="cosine") == pytest.approx([1.0, 0.853553, 0.5, 0.146447], abs=1e-6)


def test_warm_up_rises_to_the_peak_and_the_schedule_follows() -> None:
    assert rates(6, schedule="linear", warmup_steps=2) == pytest.approx(
        [1 / 3, 2 / 3, 1.0, 0.75, 0.5, 0.25]
    )


def test_auto_is_the_cookbooks_rate() -> None:
    from tinker_cookbook.hyperparam_utils import get_lr

    assert recommended_learning_rate("Qwen/Qwen3-8B") == get_lr("Qwen/Qwen3-8B")


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "Llama and Qwen only"),
        ("openai/gpt-oss-20b", "not calibrated"),
        ("nowhere/llama-that-is-not-there", "hidden size could not be read"),
    ],
)
def test_no_formula_says_what_to_set(model: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as caught:
        recommended_learning_rate(model)
    assert "Set a number" in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.integers(1, 60), st.integers(1, 12), st.integers(0, 2**40))
def test_an_epoch_trains_on_no_row_twice(rows: int, batch: int, seed: int) -> None:
    if rows < batch:
        return
    plan = BatchPlan(rows, batch, seed)
    for epoch in range(2):
        first = epoch * plan.steps_per_epoch
        seen = [i for s in range(first, first + plan.steps_per_epoch) for i in plan.indices(s)]
        assert len(seen) == len(set(seen)) == plan.steps_per_epoch * batch
        assert all(plan.position(first + b) == (epoch, b) for b in range(plan.steps_per_epoch))


def test_the_order_is_the_same_on_every_machine() -> None:
    """Written down: a change here would break the resume of every older run."""
    assert epoch_order(8, seed=0, epoch=0) == (7, 4, 1, 2, 3, 0, 6, 5)
    assert epoch_order(8, seed=0, epoch=1) != epoch_order(8, seed=0, epoch=0)
    assert epoch_order(8, seed=1, epoch=0) != epoch_order(8, seed=0, epoch=0)


def test_steps_follow_epochs_unless_given() -> None:
    plan = BatchPlan(10, 4, seed=0)
    assert plan.total_steps(None, None) == 2
    assert plan.total_steps(3, None) == 6
    assert plan.total_steps(None, 5) == 5


def test_fewer_rows_than_a_batch_is_refused() -> None:
    with pytest.raises(InputError, match="train_batch_size=3 or less"):
        BatchPlan(3, 4, seed=0)
