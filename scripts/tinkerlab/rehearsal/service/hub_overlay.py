"""A hub cache in which the served models' names lead to local folders.

The SDK and the cookbook load a tokenizer by the model's hub name. With this overlay as
``HF_HUB_CACHE`` that works without a network, for the child process only; everything else in
the user's own cache stays visible through links.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

# Names that the SDK and the cookbook look up instead (tinker/lib/public_interfaces/
# sampling_client.py, "Avoid gating of Llama 3 models").
_LLAMA3_TOKENIZER = "thinkingmachineslabinc/meta-llama-3-instruct-tokenizer"


def hub_cache() -> Path:
    """The user's hub cache folder, by the environment variables that huggingface_hub reads."""
    if explicit := os.environ.get("HF_HUB_CACHE"):
        return Path(explicit)
    home = os.environ.get("HF_HOME")
    return (Path(home) if home else Path.home() / ".cache" / "huggingface") / "hub"


def build_overlay(overlay: Path, models: dict[str, Path]) -> Path:
    """Fill ``overlay`` with links to the user's cache and entries for ``models``.

    Args:
        models: hub name (``org/name``) -> folder; other names need no entry and are passed over.

    Returns:
        ``overlay``.
    """
    overlay.mkdir(parents=True, exist_ok=True)
    real = hub_cache()
    if real.is_dir() and real.resolve() != overlay.resolve():
        for entry in real.iterdir():
            _link(overlay / entry.name, entry)
    for name, folder in models.items():
        if name.count("/") != 1 or Path(name).is_dir():
            continue
        names = [name]
        if name.startswith("meta-llama/Llama-3"):
            names.append(_LLAMA3_TOKENIZER)
        for hub_name in names:
            _add(overlay, hub_name, folder)
    return overlay


def _add(overlay: Path, name: str, folder: Path) -> None:
    entry = overlay / f"models--{name.replace('/', '--')}"
    if entry.is_symlink():
        entry.unlink()
    # huggingface_hub finds a snapshot through refs/main; any 40 hex digits do.
    commit = hashlib.sha1(str(folder).encode(), usedforsecurity=False).hexdigest()
    (entry / "refs").mkdir(parents=True, exist_ok=True)
    (entry / "snapshots").mkdir(exist_ok=True)
    _link(entry / "snapshots" / commit, folder)
    (entry / "refs" / "main").write_text(commit)


def _link(link: Path, target: Path) -> None:
    if link.is_symlink():
        link.unlink()
    if not link.exists():
        link.symlink_to(target.resolve(), target_is_directory=target.is_dir())
