"""What a step sends to the service, against computations that share no code with it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker
from rl_tools import config, data, group, rollouts, rows, run, share_of_e

from tinkerlab.runs import checkpoints
from tinkerlab.training.batches import BatchPlan
from tinkerlab.training.rl.config import POLICY_LOSSES
from tinkerlab.training.rl.data import stop_sequences
from tinkerlab.training.rl.objective import RLObjective, batch_tasks, group_seeds
from tinkerlab.training.rl.rollout_log import RolloutLog
from tinkerlab.training.rl.rollouts import sample_seed

CONFIGS = {
    "ppo": {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1},
    "cispo": {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1},
    "gspo": {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1},
    "dro": {"beta": 0.3},
}


@pytest.fixture(autouse=True)
def use(rehearsal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TINKER_BASE_URL", "TINKER_API_KEY"):
        monkeypatch.setenv(name, rehearsal.env[name])


def token_losses(
    name: str, p: np.ndarray, q: np.ndarray, a: np.ndarray, settings: dict[str, float]
) -> np.ndarray:
    """Each token's loss, as the service's pages on losses write it; ``[T]`` each."""
    ratio = np.exp(p - q)
    if name == "importance_sampling":
        return -ratio * a
    if name == "dro":
        return -(p * a - 0.5 * settings["beta"] * (p - q) ** 2)
    if name == "gspo":
        ratio = np.full_like(p, np.exp((p - q).mean()))
    clipped = np.clip(ratio, settings["clip_low_threshold"], settings["clip_high_threshold"])
    if name == "cispo":
        return -clipped * a * p
    return -np.minimum(ratio * a, clipped * a)


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_the_loss_of_an_off_policy_step_is_the_formulas(
    tmp_path: Path, rehearsal: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Step 1 is sampled before the update of step 0, so ratios are not 1.

    p comes from the sampler's prompt logprobs of the weights after step 0, q and the tokens from
    the request, advantages from the rewards in rollouts.jsonl.
    """
    sent: list[list[tinker.Datum]] = []
    original = tinker.TrainingClient.forward_backward

    def record(client: Any, batch: Any, loss_fn: Any, loss_fn_config: Any = None) -> Any:
        sent.append(batch)
        assert (loss_fn, loss_fn_config) == (name, CONFIGS.get(name))
        return original(client, batch, loss_fn, loss_fn_config=loss_fn_config)

    monkeypatch.setattr(tinker.TrainingClient, "forward_backward", record)
    settings = {"loss_fn": name, "loss_fn_config": CONFIGS.get(name)}
    # One step that is kept, and the same one again with a second behind it.
    run(tmp_path / "one", num_steps=1, eval_every=0, **settings).train()
    sent.clear()
    run(
        tmp_path / "two",
        num_steps=2,
        eval_every=0,
        save_every=0,
        max_steps_off_policy=1,
        **settings,
    ).train()
    path = checkpoints.read(tmp_path / "one")[-1].sampler_path
    sampler = rehearsal.client().create_sampling_client(model_path=path).result()

    graded = [row for row in rollouts(tmp_path / "two") if row["step"] == 1]
    assert len(graded) == len(sent[1]) == 8
    rewards = np.array([row["reward"] for row in graded]).reshape(2, 4)
    advantages = (rewards - rewards.mean(axis=1, keepdims=True)).ravel()
    total, moved = 0.0, 0.0
    for datum, advantage, row in zip(sent[1], advantages, graded, strict=True):
        inputs = {key: value.to_numpy() for key, value in datum.loss_fn_inputs.items()}
        assert set(inputs) == {"target_tokens", "logprobs", "advantages"}
        count = row["tokens"]
        np.testing.assert_allclose(inputs["advantages"][-count:], advantage, atol=1e-6)
        assert not inputs["advantages"][:-count].any()
        whole = [*datum.model_input.to_ints(), int(inputs["target_tokens"][-1])]
        scored = sampler.compute_logprobs(tinker.ModelInput.from_ints(whole)).result()
        p = np.array(scored[1:], dtype=np.float64)
        q, a = inputs["logprobs"].astype(np.float64), inputs["advantages"].astype(np.float64)
        if name == "dro":  # its penalty counts at the prompt's tokens too
            assert (q[:-count] < 0).all()
            total += token_losses(name, p, q, a, CONFIGS[name]).sum()
        else:
            assert not q[:-count].any()
            span = slice(len(p) - count, len(p))
            total += token_losses(name, p[span], q[span], a[span], CONFIGS.get(name, {})).sum()
        moved = max(moved, float(np.abs(p - q)[-count:].max()))
    assert moved > 0.05
    assert rows(tmp_path / "two")[1]["optim/loss"] == pytest.approx(total, rel=1e-3, abs=1e-4)


def test_seeds_and_tasks_depend_on_the_step_alone() -> None:
    settings = config(Path("unused"), groups_per_batch=3)
    tasks = data(settings)
    plan = BatchPlan(10, 3, settings.seed)
    assert [task.place for task in batch_tasks(tasks, plan, 4)] == [
        task.place for task in batch_tasks(tasks, BatchPlan(10, 3, settings.seed), 4)
    ]
    seeds = [seed for step in range(200) for seed in group_seeds(settings, step)]
    assert len(set(seeds)) == 600
    assert all(seed is not None and 0 <= seed < 2**48 for seed in seeds)
    assert sample_seed(0, "train", 1, 11) != sample_seed(0, "train", 11, 1)


def test_nothing_is_sampled_across_a_checkpoint() -> None:
    def horizons(**changes: Any) -> list[int]:
        settings = config(Path("unused"), num_steps=7, **changes)
        objective = RLObjective(
            None,  # type: ignore[arg-type]
            settings,
            data(settings),
            BatchPlan(10, 2, 0),
            lambda step: tinker.AdamParams(),
            7,
            RolloutLog(Path("unused"), 0),
        )
        return [objective._horizon(step) for step in range(7)]

    assert horizons(max_steps_off_policy=0, save_every=3) == [0, 1, 2, 3, 4, 5, 6]
    assert horizons(max_steps_off_policy=2, save_every=3) == [2, 2, 2, 5, 5, 5, 6]
    assert horizons(max_steps_off_policy=2, save_every=0) == [2, 3, 4, 5, 6, 6, 6]


def test_constant_groups_are_left_out_of_the_gradient_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    original = tinker.TrainingClient.forward_backward

    def record(client: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        sent.append(len(batch))
        return original(client, batch, *args, **kwargs)

    monkeypatch.setattr(tinker.TrainingClient, "forward_backward", record)
    calls = 0

    def every_second_group(text: str) -> float:
        nonlocal calls
        calls += 1
        return share_of_e(text) + calls if (calls - 1) // 4 % 2 else 0.0

    settings = {"num_steps": 1, "eval_every": 0, "max_tokens": 12}
    trained = run(
        tmp_path / "run", every_second_group, remove_constant_reward_groups=True, **settings
    )
    trained.data.held_out.clear()  # type: ignore[attr-defined]
    trained.train()
    assert sent == [4]
    row = rows(tmp_path / "run")[0]
    assert row["env/all/total_episodes"] == 8
    assert row["env/all/by_group/frac_mixed"] == 0.5


def test_stop_texts_join_the_renderers_tokens() -> None:
    settings = config(Path("unused"))
    tasks = data(settings)
    assert stop_sequences(tasks.renderer, tasks.tokenizer, None) == tasks.stop
    assert stop_sequences(tasks.renderer, tasks.tokenizer, ["\n"]) == ["<|im_end|>", "\n"]


def test_rollouts_are_bounded(tmp_path: Path) -> None:
    from rl_tools import completion

    log = RolloutLog(tmp_path, per_step=3)
    groups = [group(completion(text="x" * 5000), completion(1.0)) for _ in range(4)]
    log.write(0, "train", groups)
    log.write(1, "test", groups[:1])
    kept = rollouts(tmp_path)
    assert [(row["step"], row["group"], row["sample"]) for row in kept] == [
        (0, 0, 0),
        (0, 0, 1),
        (0, 1, 0),
        (1, 0, 0),
        (1, 0, 1),
    ]
    assert kept[0]["completion"].endswith("x [... 1000 characters more]")
    assert kept[0]["tokens"] == 5000
    log.keep_before(1)
    assert len(rollouts(tmp_path)) == 3
    RolloutLog(tmp_path / "none", per_step=0).keep_before(0)


def test_a_system_prompt_gives_way_to_the_tasks_own() -> None:
    settings = config(Path("unused"), system_prompt="Be brief.")
    tasks = data(settings)
    task = tasks.train[0]
    assert tasks.messages(task)[0] == {"role": "system", "content": "Be brief."}
    task.prompt.insert(0, {"role": "system", "content": "Own."})  # type: ignore[attr-defined]
    assert [m["content"] for m in tasks.messages(task)] == ["Own.", "Say 0."]
    assert math.isfinite(tasks.prompt(task).length)
