"""The real Claude Code CLI, and a copy of the plugin that it has installed."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from npm_packages import npm_program
from repository import copy_project

# The newest version that Node 20 runs; a later one needs Node 22.
CLAUDE_CODE_VERSION = "2.1.197"


@dataclass(frozen=True)
class ClaudeCode:
    """The CLI with a home folder of its own, so that no login and no user setting is met."""

    executable: Path
    home: Path
    cwd: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``claude ARGUMENTS`` without input; the caller judges the exit code."""
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
            "NO_COLOR": "1",
        }
        return subprocess.run(
            [str(self.executable), *arguments],
            cwd=self.cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def succeed(self, *arguments: str) -> str:
        """Run ``claude ARGUMENTS``, insist on exit code 0, and return what it printed."""
        done = self.run(*arguments)
        assert done.returncode == 0, f"claude {arguments}: {done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture(scope="session")
def claude_executable() -> Path:
    """The CLI from npm, installed once into .cache/.

    Raises:
        pytest.skip.Exception: there is no npm to install it with.
    """
    return npm_program("@anthropic-ai/claude-code", CLAUDE_CODE_VERSION, "claude")


@pytest.fixture(scope="session")
def plugin_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project as a user's clone of it would be: no environment, no caches."""
    return copy_project(tmp_path_factory.mktemp("clone"))


@pytest.fixture(scope="session")
def claude(
    claude_executable: Path, plugin_copy: Path, tmp_path_factory: pytest.TempPathFactory
) -> ClaudeCode:
    """The CLI, run in the plugin's copy; nothing is installed in it yet."""
    return ClaudeCode(claude_executable, tmp_path_factory.mktemp("home"), plugin_copy)


@pytest.fixture(scope="session")
def installed(claude: ClaudeCode) -> ClaudeCode:
    """The CLI after a user's two install commands, exactly as README.md gives them."""
    claude.succeed("plugin", "marketplace", "add", "./")
    claude.succeed("plugin", "install", "tinker@tinker-skills")
    return claude
