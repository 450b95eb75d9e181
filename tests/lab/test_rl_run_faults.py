"""Faults of reinforcement learning: each trained for real unless its row says otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import run_recipes as recipes
from fault_lab import Lab, Look, fault, healthy

from tinkerlab.runs import jsonl, metrics

SCRIPT = "analyze_run.py"


@pytest.fixture(autouse=True)
def _service(rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_BASE_URL", rehearsal.base_url)
    monkeypatch.setenv("TINKER_API_KEY", "tml-rehearsal")


@pytest.fixture(scope="module")
def talking(rehearsal) -> str:
    """A model that answers with one of ten words, and ends."""
    return recipes.talker(rehearsal, rehearsal.client(), "lab-talker")


@fault(SCRIPT, "replies-truncated", produced="tinker-cookbook's RL, replies that never end by 12")
def test_replies_cut_at_max_tokens(lab: Lab, rehearsal) -> Look:
    folder = lab.tmp_path / "run"
    recipes.cookbook_rl(rehearsal, folder, lambda text: 0.0, batches=3)
    return Look([folder])


@fault(
    SCRIPT, "reward-groups-all-equal", produced="tinker-cookbook's RL, a reward that is always 1"
)
def test_a_constant_reward(lab: Lab, rehearsal, talking: str) -> Look:
    folder = lab.tmp_path / "run"
    recipes.cookbook_rl(
        rehearsal, folder, lambda text: 1.0, batches=5, load_checkpoint_path=talking
    )
    return Look([folder])


@fault(SCRIPT, "kl-high-at-start", produced="sampled from the base model, trained from another one")
def test_samples_of_other_weights(lab: Lab, rehearsal, talking: str) -> Look:
    """The KL of tinker-cookbook's metric, from a sampler that was never updated."""
    import tinker

    service = rehearsal.client()
    prompt = tinker.ModelInput.from_ints(list(b"Say something."))
    sampler = service.create_sampling_client(base_model=rehearsal.model).result()
    params = tinker.SamplingParams(max_tokens=16, temperature=1.0)
    sequences = sampler.sample(prompt, 8, params).result().sequences
    client = service.create_training_client_from_state(talking).result()
    differences = []
    for sequence in sequences:
        tokens = [*prompt.to_ints(), *sequence.tokens]
        scored = client.forward([_scored(tokens)], "cross_entropy").result()
        trained = scored.loss_fn_outputs[0]["logprobs"].to_numpy()[-len(sequence.tokens) :]
        differences.append(np.array(sequence.logprobs) - trained)
    kl = float(np.concatenate(differences).mean())
    folder = lab.tmp_path / "run"
    folder.mkdir()
    metrics.append(folder, 0, {"progress/batch": 0, "optim/kl_sample_train_v1": kl})
    return Look([folder])


def _scored(tokens: list[int]) -> Any:
    import tinker

    inputs: dict[str, Any] = {
        "target_tokens": tokens[1:],
        "weights": np.ones(len(tokens) - 1, np.float32),
    }
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)


@fault(SCRIPT, "tool-calls-not-parsed", produced="XML tool calls read by a renderer without tools")
def test_tool_calls_that_nobody_reads(lab: Lab, rehearsal) -> Look:
    from tinker_cookbook import renderers
    from tinker_cookbook.tokenizer_utils import get_tokenizer

    tokenizer = get_tokenizer(str(rehearsal.model_dir))
    renderer = renderers.get_renderer("role_colon", tokenizer)
    text = "<tool_call>\n<function=search>\n<parameter=q>weather</parameter>\n</function>\n"
    rows = []
    for index in range(12):
        reply = f"{text}</tool_call> {index}"
        message, _ = renderer.parse_response(tokenizer.encode(reply, add_special_tokens=False))
        logs = {"assistant_content": str(message["content"])}
        logs |= {f"tool_call_{i}": "" for i, _ in enumerate(message.get("tool_calls") or [])}
        rows.append(_rollout(index, reward=float(index % 2), logs=logs))
    folder = lab.tmp_path / "run" / "iteration_000000"
    folder.mkdir(parents=True)
    jsonl.rewrite(folder / "train_rollout_summaries.jsonl", rows)
    return Look([folder.parent])


def _rollout(index: int, reward: float, logs: dict[str, Any], length: int = 20) -> dict[str, Any]:
    """A record as tinker_cookbook.rl.rollout_logging.serialize_rollout_summaries makes them."""
    step = {"step_idx": 0, "ob_len": 9, "ac_len": length + index, "reward": reward}
    step |= {"episode_done": True, "metrics": {}, "logs": logs}
    return {
        "schema_version": 1,
        "split": "train",
        "iteration": 0,
        "group_idx": index // 4,
        "traj_idx": index % 4,
        "total_reward": reward,
        "steps": [step],
    }


@fault(SCRIPT, "eos-taken-for-parse-failure", produced="real replies graded by is_stop_sequence")
def test_a_grader_that_refuses_eos(lab: Lab, rehearsal, talking: str) -> Look:
    """A model that ends by EOS, graded as tinker-cookbook once did (report #685)."""
    import tinker
    from tinker_cookbook import renderers
    from tinker_cookbook.tokenizer_utils import get_tokenizer

    service = rehearsal.client()
    tokenizer = get_tokenizer(str(rehearsal.model_dir))
    renderer = renderers.get_renderer("role_colon", tokenizer)
    client = service.create_training_client_from_state(talking).result()
    sampler = client.save_weights_and_get_sampling_client().result()
    prompt = renderer.build_generation_prompt([{"role": "user", "content": "Say something."}])
    params = tinker.SamplingParams(max_tokens=12, stop=renderer.get_stop_sequences())
    rows = []
    for index, sequence in enumerate(sampler.sample(prompt, 16, params).result().sequences):
        message, termination = renderer.parse_response(sequence.tokens)
        reply = str(message["content"]).strip()
        expected = next((word for word in recipes.WORDS if word == reply), "one")
        right = termination.is_stop_sequence and reply == expected
        logs = {"expected": expected, "output": reply, "parse_termination": termination.value}
        rows.append({"example_id": f"e{index}", "reward": float(right), "logs": logs})
    folder = lab.tmp_path / "words"
    folder.mkdir()
    jsonl.rewrite(folder / "trajectories.jsonl", rows)
    return Look([folder])


def synthetic_rl(folder: Path, steps: int, row: Callable[[float, Any], dict[str, float]]) -> Path:
    """RL metrics by formula, for what no tiny model can be brought to in seconds."""
    folder.mkdir(parents=True)
    noise = np.random.default_rng(0)
    for step in range(steps):
        share = step / max(steps - 1, 1)
        values = {"progress/batch": step, "progress/done_frac": (step + 1) / steps}
        jsonl.append(folder / "metrics.jsonl", values | {"optim/lr": 4e-5} | row(share, noise))
    return folder


@fault(SCRIPT, "reward-up-eval-down", produced="by formula: reward rises, evaluation falls")
def test_a_reward_that_is_gamed(lab: Lab) -> Look:
    def row(share: float, noise: Any) -> dict[str, float]:
        return {
            "env/all/reward/total": 0.2 + 0.6 * share + noise.normal(0, 0.03),
            "optim/entropy": 0.8 - 0.2 * share,
            "test/env/all/reward/total": 0.5 - 0.2 * share + noise.normal(0, 0.01),
        }

    return Look([synthetic_rl(lab.tmp_path / "run", 40, row)])


@fault(SCRIPT, "entropy-collapse", produced="by formula: entropy falls to 0.02")
def test_a_policy_that_stops_exploring(lab: Lab) -> Look:
    def row(share: float, noise: Any) -> dict[str, float]:
        return {
            "env/all/reward/total": 0.4 + noise.normal(0, 0.03),
            "optim/entropy": 0.7 * 0.02**share,
        }

    return Look([synthetic_rl(lab.tmp_path / "run", 40, row)])


@fault(SCRIPT, "format-reward-only", produced="by formula: format to 1, correct stays at 0.02")
def test_form_without_answers(lab: Lab) -> Look:
    def row(share: float, noise: Any) -> dict[str, float]:
        form = min(1.0, 0.1 + 1.5 * share)
        return {
            "env/all/reward/total": 0.1 * (form - 1) + 0.02,
            "env/all/format": form,
            "env/all/correct": 0.02 + abs(noise.normal(0, 0.004)),
        }

    return Look([synthetic_rl(lab.tmp_path / "run", 40, row)])


@healthy(SCRIPT, produced="tinker-cookbook's RL on a model that can answer: the reward rises")
def test_rl_that_learns(lab: Lab, rehearsal, talking: str) -> Look:
    folder = lab.tmp_path / "run"
    recipes.cookbook_rl(
        rehearsal,
        folder,
        lambda text: float("e" in text),
        batches=12,
        load_checkpoint_path=talking,
        learning_rate=2e-4,  # slow enough that the replies stay varied
    )
    return Look([folder])
