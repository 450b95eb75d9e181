"""Give a tied base model an output matrix of its own, without copying it.

Tinker's unembedding LoRA changes the output layer. Where a base ties that layer to the input
embedding (SmolLM2, small Qwen and Llama models), tinker-cookbook 0.5.8 adds it to the shared
matrix, and the merged model reads its input with changed embeddings: it computes something
else. Given a base with a separate ``lm_head.weight``, the same code does the right thing.
"""

from __future__ import annotations

import json
from pathlib import Path

from tinkerlab.export.checkpoint import HEAD, Checkpoint
from tinkerlab.rehearsal.models.folders import INDEX

_HEAD_FILE = "lm_head.safetensors"


def untied_view(base: Checkpoint, directory: Path) -> None:
    """Fill the empty ``directory`` with links to the files of ``base`` and an output matrix."""
    from safetensors.torch import save_file

    for file in base.directory.iterdir():
        if file.is_file() and file.name not in ("config.json", INDEX):
            (directory / file.name).symlink_to(file.resolve())
    save_file(
        {HEAD: base.tensor(base.embedding).clone()},
        str(directory / _HEAD_FILE),
        metadata={"format": "pt"},
    )
    weight_map = {name: path.name for name, path in base.files.items()} | {HEAD: _HEAD_FILE}
    _write_json(directory / INDEX, {"metadata": {}, "weight_map": weight_map})
    config = dict(base.config)
    config["tie_word_embeddings"] = False
    if isinstance(config.get("text_config"), dict):
        config["text_config"] = config["text_config"] | {"tie_word_embeddings": False}
    _write_json(directory / "config.json", config)


def _write_json(path: Path, document: dict) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
