"""Is this folder a model that can be loaded? Answered from file names and headers alone."""

from __future__ import annotations

import json
from pathlib import Path

from tinkerlab.errors import InputError

INDEX = "model.safetensors.index.json"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def check_folder(directory: Path) -> Path:
    """Return ``directory`` if it holds a config, whole safetensors weights and a tokenizer.

    Raises:
        InputError: names the first thing that is missing or broken, and the way to mend it.
    """
    read_config(directory)
    for file in weight_files(directory):
        _check_weight_file(file)
    if not any((directory / name).is_file() for name in _TOKENIZERS) and not any(
        directory.glob("*.tiktoken")
    ):
        raise InputError(
            f"{directory}: no tokenizer (tokenizer.json): save it there with "
            "AutoTokenizer.from_pretrained(MODEL).save_pretrained(FOLDER)"
        )
    return directory


def read_config(directory: Path) -> dict:
    """Return config.json.

    Raises:
        InputError: missing, not JSON, or without ``model_type``.
    """
    path = directory / "config.json"
    if not path.is_file():
        adapter = (directory / "adapter_config.json").is_file()
        raise InputError(
            f"{directory}: no config.json"
            + ("; it is an adapter: give the folder of its base model" if adapter else "")
            + ("" if adapter else ": give a Hugging Face model folder")
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON ({error}): fetch the file again") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise InputError(f"{path}: no model_type: this is not the config of a transformers model")
    return config


def weight_files(directory: Path) -> list[Path]:
    """Return the safetensors files of ``directory``: those of the index, or the only ones there.

    Raises:
        InputError: none; a shard of the index is missing; only pickled weights.
    """
    index = directory / INDEX
    if index.is_file():
        try:
            shards = sorted(
                set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            )
            if not all(isinstance(shard, str) for shard in shards):
                raise TypeError("a weight_map whose files are no names")
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise InputError(f"{index}: not a safetensors index ({error!r})") from error
        missing = [shard for shard in shards if not (directory / shard).is_file()]
        if missing or not shards:
            raise InputError(
                f"{directory}: {len(missing)} of {len(shards)} weight files of the index are "
                f"missing ({', '.join(missing[:3])}): download them again"
            )
        return [directory / shard for shard in shards]
    files = sorted(directory.glob("*.safetensors"))
    if files:
        return files
    pickled = sorted([*directory.glob("*.bin"), *directory.glob("*.pt"), *directory.glob("*.pth")])
    if pickled:
        raise InputError(
            f"{directory}: only pickled weights ({pickled[0].name}), which can run code when "
            "loaded: convert them to safetensors (model.save_pretrained(FOLDER))"
        )
    raise InputError(f"{directory}: no *.safetensors weights")


def _check_weight_file(file: Path) -> None:
    """Open ``file``: the header's length and offsets must agree with the file's size."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(file), framework="np"):
            pass
    except (SafetensorError, OSError) as error:
        raise InputError(f"{file}: broken ({error}): copy or download it again") from error
