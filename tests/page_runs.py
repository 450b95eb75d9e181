"""Runs a page: every bash and python block that is not marked otherwise really runs, in order.

README.md and AGENTS.md run in a copy of the project, as in a clone; the pages of skills and
recipes run in an empty folder, as in a user's own project, with ``CLAUDE_PLUGIN_ROOT`` naming the
copy. In both lies ``chats.jsonl``, "your data": tinker-cookbook's 128 example conversations.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

from markdown_pages import Block, markdown_pages, output_lines_missing, page_blocks
from repository import copy_project

PAGES = [page for page in markdown_pages() if any(b.is_executed for b in page_blocks(page))]


def run_page(page: Path, tmp_path: Path) -> None:
    """Run all of ``page``'s blocks.

    Raises:
        AssertionError: a block ends with another code than it should, or did not print what the
            page shows.
    """
    clone = copy_project(tmp_path / "clone")
    folder = page_folder(page, tmp_path, clone)
    cache = own_cache(tmp_path / "cache")
    printed = ""
    for block in page_blocks(page):
        if block.is_output:
            missing = output_lines_missing(block.text, printed)
            assert missing == [], f"{block}: not in the output:\n{printed[-6000:]}"
        elif block.is_executed:
            done = run_block(block, folder, clone, cache)
            printed = done.stdout
            assert done.returncode == block.exit_code, f"{block}:\n{block.text}\n{printed[-6000:]}"


def page_folder(page: Path, tmp_path: Path, clone: Path) -> Path:
    """Where ``page``'s blocks run, with ``chats.jsonl`` in it."""
    folder = tmp_path / "project" if page.parts[0] in ("skills", "templates") else clone
    folder.mkdir(exist_ok=True)
    chats = files("tinker_cookbook").joinpath("example_data/conversations.jsonl").read_text()
    (folder / "chats.jsonl").write_text(chats, encoding="utf-8")
    return folder


def own_cache(folder: Path) -> Path:
    """The models that are made already, and a default store that no other page's rehearsal holds."""
    from tinkerlab.rehearsal.models.cache import cache_root
    from tinkerlab.rehearsal.models.registry import resolve

    resolve("HuggingFaceTB/SmolLM2-135M-Instruct")  # half a gigabyte: made once for all pages
    folder.mkdir()
    for made in cache_root().iterdir():
        if made.is_dir() and made.name != "store" and ".partial-" not in made.name:
            (folder / made.name).symlink_to(made)
    return folder


def run_block(
    block: Block, folder: Path, clone: Path, cache: Path
) -> subprocess.CompletedProcess[str]:
    """Run one block as a user with the project's environment and no key would."""
    environment = {key: value for key, value in os.environ.items() if "TINKER_API" not in key}
    environment.pop("TINKER_BASE_URL", None)
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment["CLAUDE_PLUGIN_ROOT"] = str(clone)
    environment["TINKER_REHEARSAL_CACHE"] = str(cache)
    shell = ["bash", "-euo", "pipefail", "-c", block.text]
    rehearsed = [sys.executable, str(clone / "scripts" / "rehearse.py"), "run", "--"]
    python = [*rehearsed, sys.executable, "-c", block.text]
    return subprocess.run(
        shell if block.language == "bash" else python,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
