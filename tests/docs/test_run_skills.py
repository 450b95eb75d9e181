"""Executes README.md, AGENTS.md and both skills' own pages: the walk of a new user."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from markdown_pages import page_blocks
from page_runs import PAGES, run_page

MINE = [page for page in PAGES if page.name in ("README.md", "AGENTS.md", "SKILL.md")]


def test_there_are_such_pages() -> None:
    assert len(MINE) >= 3


def test_a_new_shell_knows_the_plugin_s_folder(tmp_path: Path) -> None:
    """Claude Code fills the variable into SKILL.md; no shell and no other page has it."""
    page = Path("skills/research/SKILL.md")
    (text,) = [b.text for b in page_blocks(page) if "make -C" in b.text]
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").write_text("# a virtual environment's\n")
    filled = text.replace("${CLAUDE_PLUGIN_ROOT}", "/a user/plugins/tinker")
    commands = [line for line in filled.splitlines() if not line.startswith("make")]
    for shell in ("\n".join(commands), "source .venv/bin/activate && echo $CLAUDE_PLUGIN_ROOT"):
        done = subprocess.run(
            ["bash", "-euc", shell],
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    assert done.stdout == "/a user/plugins/tinker\n"


@pytest.mark.slow
@pytest.mark.timeout(1800)  # on the real small model, at a busy machine's pace
@pytest.mark.parametrize("page", MINE, ids=str)
def test_page_runs(page: Path, tmp_path: Path) -> None:
    run_page(page, tmp_path)
