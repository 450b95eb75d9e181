"""The checkout under test: where it is, which files belong to it, and clean copies of it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def project_files() -> list[Path]:
    """Every file of the project, relative to ``ROOT``: committed ones and new ones not ignored.

    Asks git, so that environments, caches and a user's runs stay out.

    Raises:
        subprocess.CalledProcessError: the folder is not a git checkout.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    names = sorted(name for name in listed.split("\0") if name)
    # A file deleted but not yet committed is still listed as cached.
    return [Path(name) for name in names if (ROOT / name).is_file()]


def copy_project(destination: Path) -> Path:
    """Copy the project's files into ``destination`` (made if missing) and return it."""
    for relative in project_files():
        target = destination / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / relative, target)
    return destination
