"""Download a base model from the Hugging Face hub: weights as safetensors only, no code."""

from __future__ import annotations

import re
from pathlib import Path

from tinkerlab.errors import InputError

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.\-]*/[\w.\-]+")
# No *.bin (pickle) and no *.py: nothing that a download brings is ever executed.
_FILES = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt"]
# Second copies of the weights in another layout, in subfolders.
_NOT = ["original/*", "metal/*", "onnx/*", "*/*.safetensors"]


def looks_like_a_hub_name(name: str) -> bool:
    """Say whether ``name`` has the form ``owner/model`` (whether it exists is another matter)."""
    return _HUB_NAME.fullmatch(name) is not None


def download(name: str, *, offline_choices: list[str]) -> Path:
    """Return the folder of the hub model ``name``, from the hub's own cache where possible.

    Args:
        offline_choices: names to offer when the hub can't be reached.

    Raises:
        InputError: it can't be had; the line ends with the models that need no network.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        return Path(snapshot_download(name, allow_patterns=_FILES, ignore_patterns=_NOT))
    except GatedRepoError:
        reason = "its licence must be accepted on the hub first, then HF_TOKEN be set"
    except RepositoryNotFoundError:
        reason = "the hub has no such model (or it is private: set HF_TOKEN)"
    except LocalEntryNotFoundError:
        reason = "the hub can't be reached and the model isn't in the hub's cache on this machine"
    except Exception as error:
        # The hub's client, its HTTP library and the disk have no common ancestor below this.
        reason = f"{type(error).__name__}: {_first_sentence(error)}"
    raise InputError(
        f"can't download {name}: {reason}; without a network: a local folder, or "
        + ", ".join(offline_choices)
    )


def _first_sentence(error: Exception) -> str:
    words = " ".join(str(error).split())
    return re.split(r"(?<=[a-z])[.:] ", words, maxsplit=1)[0][:200]
