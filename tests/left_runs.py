"""Runs on the disk as our trainers leave them, for what reads their rows and checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

USER, REPLY = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}


def run_folder(folder: Path, held_out: list[dict[str, Any]], records: list[dict[str, Any]]) -> Path:
    folder.mkdir()
    (folder / "held_out.jsonl").write_text("".join(json.dumps(r) + "\n" for r in held_out))
    (folder / "checkpoints.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return folder


def sft(messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    from tinkerlab.data import Row
    from tinkerlab.training.supervised_data import _document

    return _document(Row(0, 1, messages, **more))


def record(step: int, name: str | None = None, **more: Any) -> dict[str, Any]:
    name = name or f"{step:06}"
    path = f"tinker://12345678-9/sampler_weights/{name}"
    return {"name": name, "step": step, "batch": step, "epoch": 0, "sampler_path": path, **more}
