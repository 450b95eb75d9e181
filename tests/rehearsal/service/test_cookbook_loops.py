"""tinker-cookbook's own training loops run unmodified against the rehearsal."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _service(rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_BASE_URL", rehearsal.base_url)
    monkeypatch.setenv("TINKER_API_KEY", "tml-rehearsal")


def metrics(log_path: Path) -> list[dict]:
    return [json.loads(line) for line in (log_path / "metrics.jsonl").read_text().splitlines()]


def test_supervised_train(rehearsal, tmp_path: Path) -> None:
    import tinker_cookbook
    from tinker_cookbook.supervised import train
    from tinker_cookbook.supervised.data import FromConversationFileBuilder
    from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig

    data = Path(tinker_cookbook.__file__).parent / "example_data" / "conversations.jsonl"
    config = train.Config(
        log_path=str(tmp_path),
        model_name=str(rehearsal.model_dir),
        recipe_name="rehearsal-test",
        renderer_name="qwen3_instruct",
        dataset_builder=FromConversationFileBuilder(
            common_config=ChatDatasetBuilderCommonConfig(
                model_name_for_tokenizer=str(rehearsal.model_dir),
                renderer_name="qwen3_instruct",
                max_length=128,
                batch_size=16,
            ),
            file_path=str(data),
        ),
        learning_rate=1e-2,
        lora_rank=8,
        num_epochs=2,
        save_every=4,
        eval_every=0,
    )
    asyncio.run(train.main(config))
    rows = [row for row in metrics(tmp_path) if "train_mean_nll" in row]
    assert len(rows) == 16
    first, last = rows[0]["train_mean_nll"], rows[-1]["train_mean_nll"]
    assert last < first - 0.5, "a random tiny model learns the bytes' frequencies at once"
    checkpoints = (tmp_path / "checkpoints.jsonl").read_text().splitlines()
    assert json.loads(checkpoints[-1])["state_path"].startswith("tinker://")


def test_rl_train_on_arithmetic(rehearsal, tmp_path: Path) -> None:
    from tinker_cookbook.recipes.math_rl.arithmetic_env import ArithmeticDatasetBuilder
    from tinker_cookbook.rl import train

    config = train.Config(
        learning_rate=1e-3,
        dataset_builder=ArithmeticDatasetBuilder(
            batch_size=4,
            model_name_for_tokenizer=str(rehearsal.model_dir),
            renderer_name="role_colon",
            n_batches=3,
            group_size=4,
        ),
        model_name=str(rehearsal.model_dir),
        recipe_name="rehearsal-test",
        renderer_name="role_colon",
        max_tokens=6,
        log_path=str(tmp_path),
        lora_rank=4,
        eval_every=0,
        save_every=2,
        # A random model earns no reward, so every group is uniform; keep them, to train at all.
        remove_constant_reward_groups=False,
    )
    asyncio.run(train.main(config))
    rows = [row for row in metrics(tmp_path) if "optim/kl_sample_train_v1" in row]
    assert len(rows) == 3
    for row in rows:
        assert math.isfinite(row["env/all/reward/total"])
        # Sampler and trainer agree on the logprobs of what was sampled.
        assert abs(row["optim/kl_sample_train_v1"]) < 1e-4
