"""Make the folders that a user names, or say in one line why it can't be done."""

from __future__ import annotations

import os
from pathlib import Path

from tinkerlab.errors import InputError


def make_folder(path: Path, option: str = "--output") -> None:
    """Create ``path`` and its parents; nothing happens to one that is there.

    Args:
        option: how the user named it, for the message.

    Raises:
        InputError: it can't be created, or a file is in the way.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{option} {path}: {error.strerror}; choose another") from None


def require_writable(path: Path, option: str = "--output") -> None:
    """Refuse a place that can't be written before the long work that would end there.

    Raises:
        InputError: the nearest folder that exists is none, or may not be written.
    """
    nearest = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not nearest.is_dir():
        raise InputError(f"{option} {path}: {nearest} is a file; choose another")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"{option} {path}: no permission to write in {nearest}; choose another")
