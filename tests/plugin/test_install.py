"""The plugin, installed by the real Claude Code CLI: it decides what loads, not our reading."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from plugin_layout import read_manifest, skill_names

# Tokens, measured with both skills: 248 always on; 2,000 for debug and 1,800 for research when
# invoked. The limits leave room for a sentence or a section, not for a second page.
ALWAYS_ON_LIMIT = 350
ON_INVOKE_LIMIT = 4000


def section(details: str, title: str) -> str:
    """The indented lines under ``title`` in what ``plugin details`` prints."""
    found = re.search(rf"^{re.escape(title)}.*\n((?:[ \t]+\S.*\n?|\n)+)", details, re.MULTILINE)
    assert found, f"no section {title!r} in:\n{details}"
    return found.group(1)


def tokens(text: str) -> int:
    """The number in ``~1.2k tok``, ``~32 tok`` or ``< 20``, as an upper bound."""
    found = re.search(r"([\d.,]+)\s*(k)?", text)
    assert found, f"no token count in {text!r}"
    return round(float(found.group(1).replace(",", "")) * (1000 if found.group(2) else 1))


def test_manifests_pass_strict_validation(claude) -> None:
    for manifest in (".", ".claude-plugin/plugin.json"):
        assert "Validation passed" in claude.succeed("plugin", "validate", "--strict", manifest)


def test_validation_really_looks(claude, tmp_path: Path) -> None:
    """The same command refuses a broken manifest, so its yes above means something."""
    broken = tmp_path / ".claude-plugin"
    broken.mkdir()
    (broken / "plugin.json").write_text(json.dumps({"version": "0.1.0", "skills": 3}))
    assert claude.run("plugin", "validate", "--strict", str(tmp_path)).returncode != 0


@pytest.fixture(scope="session")
def listed(installed) -> list[dict[str, Any]]:
    return json.loads(installed.succeed("plugin", "list", "--json"))


@pytest.fixture(scope="session")
def install_path(listed) -> Path:
    """The folder that ``${CLAUDE_PLUGIN_ROOT}`` stands for."""
    return Path(listed[0]["installPath"])


def test_installed_and_enabled(listed) -> None:
    assert [row["id"] for row in listed] == ["tinker@tinker-skills"]
    assert listed[0]["enabled"] is True
    assert listed[0]["version"] == read_manifest("plugin.json")["version"]


@pytest.fixture(scope="session")
def details(installed) -> str:
    return installed.succeed("plugin", "details", "tinker")


def test_both_skills_are_found(details: str) -> None:
    inventory = section(details, "Component inventory")
    found = re.search(r"Skills \((\d+)\)\s+(.*)", inventory)
    assert found, inventory
    names = sorted(name.strip() for name in found.group(2).split(","))
    assert names == ["debug", "research"] == skill_names()


def test_it_costs_little(details: str) -> None:
    cost = section(details, "Projected token cost")
    always_on = re.search(r"Always-on:(.*)", cost)
    assert always_on, cost
    assert 0 < tokens(always_on.group(1)) <= ALWAYS_ON_LIMIT

    table = section(details, "Per-component")
    for name in skill_names():
        row = re.search(rf"^\s*{name}\s{{2,}}(\S.*?)\s{{2,}}(\S.*)$", table, re.MULTILINE)
        assert row, table
        assert tokens(row.group(2)) <= ON_INVOKE_LIMIT, f"{name} got long: {row.group(2)}"


def test_the_installed_copy_holds_what_the_skills_name(install_path: Path) -> None:
    named = set()
    for name in skill_names():
        page = (install_path / "skills" / name / "SKILL.md").read_text()
        named |= set(re.findall(r"\$\{CLAUDE_PLUGIN_ROOT\}/([\w./-]+\w)", page))
    assert named, "the skills name no file of the plugin"
    assert [path for path in sorted(named) if not (install_path / path).exists()] == []


def test_a_script_runs_from_the_installed_copy(install_path: Path, tmp_path: Path) -> None:
    """No install of this repository, any working folder: what an agent will do."""
    done = subprocess.run(
        [sys.executable, str(install_path / "scripts" / "check_results.py"), "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "usage: check_results.py" in done.stdout


@pytest.mark.parametrize(
    ("text", "count"), [("~32 tok", 32), ("< 20", 20), ("~1.2k tok", 1200), ("1,024", 1024)]
)
def test_token_counts_are_read_right(text: str, count: int) -> None:
    assert tokens(text) == count
