"""A short run of each of tinker-cookbook's own loops, for tests of what they leave.

python tests/cookbook_runs.py MODEL_FOLDER OUTPUT_FOLDER    # TINKER_BASE_URL names a rehearsal

A program of its own, since the loops' tracing stays switched on in the process that ran them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def cookbook_runs(rehearsal: Any, folder: Path) -> dict[str, Path]:
    """Run SFT, RL and DPO of the cookbook in ``folder``; loop -> its log folder."""
    done = subprocess.run(
        [sys.executable, __file__, str(rehearsal.model_dir), str(folder)],
        env={**os.environ, **rehearsal.env}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return {name: folder / name for name in ("sft", "rl", "dpo")}


def _dpo(model_dir: str, folder: Path) -> None:
    from tinker_cookbook.preference import train_dpo
    from tinker_cookbook.preference.dpo_datasets import DPODatasetBuilderFromComparisons
    from tinker_cookbook.preference.preference_datasets import ComparisonBuilderFromJsonl
    from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig

    def said(text: str) -> list[dict[str, str]]:
        return [{"role": "assistant", "content": text}]

    pairs = folder / "pairs.jsonl"
    with pairs.open("w", encoding="utf-8") as file:
        for number in range(8):
            prompt = [{"role": "user", "content": f"Say {number}."}]
            comparison = {
                "prompt_conversation": prompt,
                "completion_A": said(f"It is {number}."),
                "completion_B": said(str(number)),
            }
            file.write(json.dumps({"comparison": comparison, "label": "A"}) + "\n")
    common = ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=model_dir,
        renderer_name="qwen3_instruct",
        max_length=128,
        batch_size=4,
    )
    train_dpo.main(
        train_dpo.Config(
            log_path=str(folder / "dpo"),
            model_name=model_dir,
            recipe_name="test",
            renderer_name="qwen3_instruct",
            dataset_builder=DPODatasetBuilderFromComparisons(
                common_config=common,
                comparison_builder=ComparisonBuilderFromJsonl(train_path=str(pairs)),
            ),
            learning_rate=1e-3,
            lora_rank=4,
            num_epochs=1,
            eval_every=0,
            save_every=0,
        )
    )


def main(model_dir: str, output: str) -> None:
    from run_recipes import chat_file, cookbook_rl, cookbook_sft

    folder = Path(output)
    server = SimpleNamespace(model_dir=model_dir)
    _dpo(model_dir, folder)
    cookbook_sft(server, folder / "sft", chat_file(folder, 16))
    cookbook_rl(
        server,
        folder / "rl",
        lambda reply: len(reply) % 2,
        batches=2,
        num_groups_to_log=2,
        enable_trace=True,
        save_every=1,
    )


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
    main(*sys.argv[1:])
