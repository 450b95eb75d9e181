"""The Modal app: the image in which an agent works. Needs the package ``modal`` to be imported.

Made of declarations alone, so importing it needs no account and builds nothing. What is added
is named here, so nothing else of a clone (data, runs, an .env) ever leaves the machine.
"""

from __future__ import annotations

import os

import modal  # pyright: ignore[reportMissingImports]

from tinkerlab.agents.clis import PLUGIN

NAME = "tinker-agent"
ROOT = "/opt/tinker"
VENV = "/opt/venv"
PYTHON = f"{VENV}/bin/python"
FOLDERS = (".claude-plugin", "scripts", "skills", "templates")
FILES = (".mcp.json", "pyproject.toml", "Makefile", "LICENSE")
# The versions that were tried with tinkerlab.agents.clis.
AGENT_PACKAGES = ("@anthropic-ai/claude-code@2.1.197", "@openai/codex@0.171.0")


def _image() -> modal.Image:
    """Node for the agents, Python 3.11 with the pinned packages, and the plugin on top.

    The packages depend on pyproject.toml and the Makefile alone: a change of a script does not
    install them again.
    """
    # A plain pip takes torch for CUDA; with pip's own setting, as in README.md, the CPU's.
    index = os.environ.get("PIP_EXTRA_INDEX_URL")
    image = (
        modal.Image.from_registry("node:20-bookworm-slim", add_python="3.11")
        .apt_install("git", "make", "ca-certificates")
        .run_commands(f"npm install --global {' '.join(AGENT_PACKAGES)}")
        .env({"PIP_EXTRA_INDEX_URL": index} if index else {})
        .add_local_file(PLUGIN / "pyproject.toml", "/opt/build/pyproject.toml", copy=True)
        .add_local_file(PLUGIN / "Makefile", "/opt/build/Makefile", copy=True)
        .run_commands(f"make -C /opt/build install VENV={VENV}")
    )
    for name in FILES:
        image = image.add_local_file(PLUGIN / name, f"{ROOT}/{name}")
    for name in FOLDERS:
        image = image.add_local_dir(
            PLUGIN / name, f"{ROOT}/{name}", ignore=["**/__pycache__", "**/*.pyc"]
        )
    return image


app = modal.App(NAME)
image = _image()
