"""The Makefile and .ci/run hold what README.md promises of them."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from repository import ROOT

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[0].split()

# The makefile's own settings, which `make fast ARGS=...` exports to what it runs.
SETTINGS = re.findall(r"^(\w+) \?= ", MAKEFILE, re.MULTILINE) + re.findall(
    r"\$\((ARGS)\)", MAKEFILE
)
OF_MAKE = re.compile(rf"MAKE|MFLAGS$|({'|'.join(sorted(set(SETTINGS)))})$")


def make(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        # A make that runs these tests must not hand its own variables to the one under test:
        # what was set on its command line (ARGS=...) is in the environment too.
        env={key: value for key, value in os.environ.items() if not OF_MAKE.match(key)},
    )


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_is_explained(target: str) -> None:
    assert re.search(rf"^#[^\n]*\n{target}:", MAKEFILE, re.MULTILINE), "no comment above it"


def test_ci_runs_make_test() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    commands = [
        line for line in script.read_text().splitlines() if line and not line.startswith("#")
    ]
    assert commands[0] == "set -euo pipefail"
    assert commands[-1] == "make test"


def stub_environment(folder: Path, failing: str = "") -> None:
    """A copy of the Makefile with an installed environment whose tools only report themselves."""
    (folder / "Makefile").write_text(MAKEFILE, encoding="utf-8")
    (folder / "pyproject.toml").write_text("", encoding="utf-8")
    tools = folder / ".venv" / "bin"
    tools.mkdir(parents=True)
    for name in ("ruff", "pyright", "python"):
        code = 1 if name == failing else 0
        (tools / name).write_text(f'#!/bin/sh\necho "ran {name} $*"\nexit {code}\n')
        (tools / name).chmod(0o755)
    (folder / ".venv" / "installed").touch()


STEPS = [
    "ran ruff check .",
    "ran ruff format --check .",
    "ran pyright",
    "ran python -m pytest -n 2 --dist loadfile",
]


def test_make_test_runs_every_check(tmp_path: Path) -> None:
    stub_environment(tmp_path)
    done = make("test", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.strip() for line in done.stdout.splitlines() if line.startswith("ran")] == STEPS


@pytest.mark.parametrize("failing", ["ruff", "pyright", "python"])
def test_a_failing_check_fails_make_but_hides_no_other(tmp_path: Path, failing: str) -> None:
    stub_environment(tmp_path, failing)
    done = make("test", cwd=tmp_path)
    assert done.returncode != 0
    assert [line.strip() for line in done.stdout.splitlines() if line.startswith("ran")] == STEPS


def test_a_changed_pyproject_installs_again(tmp_path: Path) -> None:
    stub_environment(tmp_path)
    assert "pip install" not in make("-n", "demo", cwd=tmp_path).stdout
    later = (tmp_path / ".venv" / "installed").stat().st_mtime + 10
    os.utime(tmp_path / "pyproject.toml", (later, later))
    assert "pip install" in make("-n", "demo", cwd=tmp_path).stdout


def test_without_a_new_enough_python_it_says_so(tmp_path: Path) -> None:
    stub_environment(tmp_path)
    (tmp_path / ".venv" / "installed").unlink()
    done = make("demo", "PYTHON=", cwd=tmp_path)
    assert done.returncode != 0
    assert "error: no Python 3.11 or newer found" in done.stderr


def test_the_requirements_are_those_of_pyproject(tmp_path: Path) -> None:
    """Runs the recipe's own one-liner, in the Makefile's words, on the real pyproject.toml."""
    recipe = re.search(r"-c '(import tomllib;.*?)' >", MAKEFILE, re.DOTALL)
    assert recipe
    code = recipe.group(1).replace("\\\n\t\t", "")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *itertools.chain.from_iterable(extras)]
    assert done.stdout.split() == wanted
    assert all("==" in requirement for requirement in wanted), "every version is pinned"
