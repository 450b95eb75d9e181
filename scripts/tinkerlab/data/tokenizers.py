"""From a model's name to its tokenizer and its limits, without loading weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinkerlab.errors import InputError

# What a folder holds when a tokenizer can be loaded from it.
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")


@dataclass(frozen=True)
class ModelLimits:
    """What a model's config.json says; None where it doesn't or can't be read here."""

    vocab_size: int | None = None
    context_length: int | None = None


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a rehearsal model, a local folder, or a model on the hub.

    Code in a local folder is not executed; for the hub the cookbook decides (it loads Kimi's
    tokenizer class, at a pinned revision).

    Raises:
        InputError: it can't be had; one line that says why.
    """
    folder = model_folder(name)
    if folder is None:
        return _from_hub(name)
    if not any((folder / file).is_file() for file in _TOKENIZER_FILES):
        raise InputError(f"tokenizer folder {name}: holds none of {', '.join(_TOKENIZER_FILES)}")
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    except Exception as error:  # whatever transformers raises on broken files
        raise InputError(
            f"tokenizer folder {name}: can't be loaded: {_first_line(error)}"
        ) from None


def model_folder(name: str) -> Path | None:
    """The local folder behind ``name``; None for a model of the hub.

    Raises:
        InputError: a rehearsal model that can't be made.
    """
    from tinkerlab.rehearsal.models import registry, tiny

    local = Path(name).expanduser()
    if name and local.is_dir():
        return local
    if name == registry.DEFAULT_MODEL or name.startswith(tiny.PREFIX):
        return registry.resolve(name).directory
    return None


def model_limits(name: str) -> ModelLimits:
    """Vocabulary size and context length of a local or rehearsal model.

    The vocabulary is the number of embedding rows, which may be more or fewer than the
    tokenizer's tokens: an id over it can't be trained on.
    """
    folder = model_folder(name)
    try:
        config = json.loads((folder / "config.json").read_text()) if folder else {}
    except (OSError, ValueError):
        return ModelLimits()
    text = config.get("text_config", config)
    sizes = [text.get(key) for key in ("vocab_size", "max_position_embeddings")]
    return ModelLimits(*(size if isinstance(size, int) else None for size in sizes))


def _from_hub(name: str) -> Any:
    from tinker_cookbook.tokenizer_utils import get_tokenizer

    try:
        return get_tokenizer(name)
    except Exception as error:  # the hub's client, its HTTP library and the disk each have theirs
        raise InputError(
            f"tokenizer {name}: not a local folder, and the hub gave none ({_first_line(error)}); "
            "name a folder with its tokenizer files (check_data.py: --tokenizer)"
        ) from None


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
