"""What each script's ``--help`` prints, asked once per test run."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache

from repository import ROOT


def script_names() -> list[str]:
    """The files of ``scripts/`` that a user runs, sorted."""
    return sorted(path.name for path in (ROOT / "scripts").glob("*.py"))


@cache
def help_text(script: str, *subcommand: str) -> str:
    """What ``python scripts/SCRIPT [SUBCOMMAND] --help`` prints.

    Raises:
        AssertionError: it does not exit with 0.
    """
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / script), *subcommand, "--help"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, f"{script} {subcommand} --help: {done.stderr}"
    return done.stdout


def subcommands(script: str) -> list[str]:
    """The names in argparse's ``{serve,run,models}``; empty for a script without subcommands."""
    listed = re.search(r"^  \{([\w,-]+)\}", help_text(script), re.MULTILINE)
    return listed.group(1).split(",") if listed else []
