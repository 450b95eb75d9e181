"""DPO runs small enough for tests: short pairs, a tiny model, a few steps."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

from tinkerlab.runs import checkpoints, metrics
from tinkerlab.training import config as configs
from tinkerlab.training.dpo.config import ELSEWHERE, DPOConfig
from tinkerlab.training.dpo.data import prepare
from tinkerlab.training.dpo.run import DPORun
from tinkerlab.training.starting import resolve_checkpoint

COMMAND = "python scripts/dpo_trainer.py --config c.yaml"


def pairs(count: int = 24) -> list[dict[str, str]]:
    """Pairs whose chosen and rejected replies differ in manner, with about as many letters."""
    return [
        {"prompt": f"Add {n} and 1.", "chosen": f"It is {n + 1}.", "rejected": f"WHAT {n}!!"}
        for n in range(count)
    ]


def write(file: Path, rows: list[Any]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def config(folder: Path, **changes: Any) -> DPOConfig:
    """A run of four steps of four pairs, saved and evaluated every second."""
    settings: dict[str, Any] = {
        "base_model": "tiny:llama",
        "train_file": folder.parent / "pairs.jsonl",
        "log_path": folder,
        "renderer": "qwen3_instruct",
        "num_steps": 4,
        "train_batch_size": 4,
        "lora_rank": 4,
        "learning_rate": 0.003,
        "lr_schedule": "constant",
        "eval_every": 2,
        "save_every": 2,
        "max_seq_len": 128,
        **changes,
    }
    overrides = [f"{key}={value}" for key, value in settings.items()]
    return configs.load(DPOConfig, None, overrides, ELSEWHERE)


def run(folder: Path, rows: list[Any] | None = None, **changes: Any) -> DPORun:
    """A DPO run on the rehearsal that the environment names; its pairs lie beside its folder."""
    if not (folder.parent / "pairs.jsonl").exists():
        write(folder.parent / "pairs.jsonl", rows or pairs())
    settings = config(folder, **changes)
    checkpoint = resolve_checkpoint(settings.load_checkpoint_path)
    return DPORun(settings, prepare(settings), COMMAND, checkpoint)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a run without its times."""
    return [
        {key: value for key, value in row.items() if not key.startswith("time/")}
        for row in metrics.read(folder)
    ]


def adapter(rehearsal: Any, state_path: str) -> bytes:
    """The bytes of a saved adapter, as the service hands them out."""
    client = rehearsal.client().create_training_client_from_state(state_path).result()
    path = client.save_weights_external("compare").result().path
    urls = rehearsal.rest().get_external_weights_urls(path).result().urls
    with urllib.request.urlopen(urls["adapter_model.safetensors"]) as reply:
        return reply.read()


def final_adapter(rehearsal: Any, folder: Path) -> bytes:
    """The adapter of a complete run."""
    record = checkpoints.read(folder)[-1]
    assert record.final and record.state_path
    return adapter(rehearsal, record.state_path)
