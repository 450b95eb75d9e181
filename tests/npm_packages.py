"""Programs from npm that tests run, each installed once into ``.cache/``."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from repository import ROOT


def npm_program(package: str, version: str, program: str) -> Path:
    """The executable ``program`` of an npm package.

    Raises:
        pytest.skip.Exception: there is no npm to install it with.
    """
    folder = ROOT / ".cache" / f"{package.split('/')[-1]}-{version}"
    executable = folder / "node_modules" / ".bin" / program
    if executable.exists():
        return executable
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip(f"npm is not on PATH, and {package} comes from npm: install Node.js 20")
    folder.parent.mkdir(exist_ok=True)
    # Install beside the final place and rename: an interrupted download is never taken for one.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-") as staging:
        done = subprocess.run(
            [
                npm,
                "install",
                "--no-audit",
                "--no-fund",
                "--prefix",
                staging,
                f"{package}@{version}",
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == 0, f"npm install {package} failed:\n{done.stdout}\n{done.stderr}"
        shutil.rmtree(folder, ignore_errors=True)
        Path(staging).rename(folder)
        Path(staging).mkdir()  # for TemporaryDirectory to remove
    return executable
