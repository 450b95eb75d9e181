"""A short run of each trainer on a tiny model, for tests of what trainers leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

from repository import ROOT


def short_runs(rehearsal: Any, folder: Path) -> dict[str, Path]:
    """Two steps by each trainer in ``folder``; method -> run folder."""
    chats = files("tinker_cookbook").joinpath("example_data/conversations.jsonl").read_text()
    (folder / "chats.jsonl").write_text(chats, encoding="utf-8")
    pairs = [
        {"prompt": f"Say {n}.", "chosen": f"The number is {n}.", "rejected": str(n)}
        for n in range(40)
    ]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    tasks = [{"prompt": f"Say {n}.", "answer": str(n)} for n in range(40)]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tasks))
    # A random model is never right: this reward varies all the same.
    (folder / "parity.py").write_text("def score(completion):\n    return len(completion) % 2\n")
    common = [f"base_model={rehearsal.model}", "num_steps=2", "lora_rank=4"]
    sampled = ["groups_per_batch=2", "group_size=4", "max_tokens=6", "max_eval_tasks=4"]
    runs = {
        "sft": ("sl_trainer.py", "training-config.yaml", ["train_file=chats.jsonl",
                "max_seq_len=256", "learning_rate=0.01"]),
        "dpo": ("dpo_trainer.py", "dpo-config.yaml", ["train_file=pairs.jsonl",
                "train_batch_size=4"]),
        "rl": ("rl_trainer.py", "rl-config.yaml", ["dataset=tasks.jsonl",
               "reward=parity.py:score", "learning_rate=0.001", *sampled]),
        "distill": ("distill_trainer.py", "distill-config.yaml", ["teacher=runs/sft",
                    "dataset=tasks.jsonl", *sampled]),
    }  # fmt: skip
    for name, (script, config, words) in runs.items():
        done = subprocess.run(
            [sys.executable, str(ROOT / "scripts" / script), "--config",
             str(ROOT / "templates" / config), *common, *words, f"run_name={name}"],
            cwd=folder, env={**os.environ, **rehearsal.env}, capture_output=True, text=True,
            timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, f"{script}: {done.stderr[-3000:]}"
    return {name: folder / "runs" / name for name in runs}
