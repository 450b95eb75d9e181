"""Skill pages hold to the Agent Skills format, which Claude Code itself does not check.

The rules (allowed keys, name equals folder, lengths, no angle brackets) are those of
agentskills.io/specification and of its reference validator.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from plugin_layout import SKILLS, read_manifest, skill_names, split_frontmatter

ALLOWED_KEYS = {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
MAX_LINES = 400


def frontmatter_problems(folder: Path) -> list[str]:
    """Everything that is wrong with ``folder/SKILL.md``'s head; empty when it is right."""
    page = folder / "SKILL.md"
    if not page.is_file():
        return ["SKILL.md is missing"]
    try:
        head, body = split_frontmatter(page)
    except ValueError as error:
        return [str(error)]
    problems = [f"unknown key {key!r}" for key in sorted(set(head) - ALLOWED_KEYS, key=str)]
    name, description = str(head.get("name")), head.get("description")
    if name != folder.name:
        problems.append(f"name {name!r} differs from the folder {folder.name!r}")
    elif not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) or len(name) > 64:
        problems.append(f"name {name!r} is not lower-case words joined by hyphens")
    if not isinstance(description, str) or not description.strip():
        problems.append("description is missing or not text")
    else:
        if len(description) > 1024:
            problems.append(f"description has {len(description)} characters, at most 1024 allowed")
        if re.search("[<>]", description):
            problems.append("description holds an angle bracket")
    if len(page.read_text(encoding="utf-8").splitlines()) >= MAX_LINES:
        problems.append(f"SKILL.md has {MAX_LINES} lines or more: move parts to references/")
    if not body.strip():
        problems.append("the page is empty")
    return problems


def test_there_are_skills() -> None:
    assert skill_names() == ["debug", "research"]


@pytest.mark.parametrize("name", skill_names())
def test_frontmatter_is_right(name: str) -> None:
    assert frontmatter_problems(SKILLS / name) == []


GOOD = "---\nname: good\ndescription: Does a thing.\n---\nText.\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("Text without a head.\n", "between two --- lines"),
        ("---\n- a list\n---\nText.\n", "not a mapping"),
        (GOOD.replace("name: good", "name: other"), "differs from the folder"),
        (GOOD.replace("Does a thing.", "x" * 1025), "1025 characters"),
        (GOOD.replace("Does a thing.", "Makes a <b>."), "angle bracket"),
        (GOOD.replace("description: Does a thing.", ""), "description is missing"),
        (GOOD.replace("name: good", "name: good\nversion: 1"), "unknown key 'version'"),
        (GOOD + "line\n" * MAX_LINES, "lines or more"),
        (GOOD.replace("Text.\n", ""), "page is empty"),
    ],
)
def test_every_rule_fires(tmp_path: Path, text: str, complaint: str) -> None:
    folder = tmp_path / "good"
    folder.mkdir()
    (folder / "SKILL.md").write_text(text, encoding="utf-8")
    assert any(complaint in problem for problem in frontmatter_problems(folder))


def test_a_good_page_and_a_missing_one(tmp_path: Path) -> None:
    folder = tmp_path / "good"
    folder.mkdir()
    assert frontmatter_problems(folder) == ["SKILL.md is missing"]
    (folder / "SKILL.md").write_text(GOOD, encoding="utf-8")
    assert frontmatter_problems(folder) == []


def test_manifests_agree() -> None:
    plugin, marketplace = read_manifest("plugin.json"), read_manifest("marketplace.json")
    assert (plugin["name"], marketplace["name"]) == ("tinker", "tinker-skills")
    assert [entry["name"] for entry in marketplace["plugins"]] == [plugin["name"]]
    # A "skills" key took a peer's install down on a newer client; the default folder is found.
    assert "skills" not in plugin
    assert re.fullmatch(r"\d+\.\d+\.\d+", plugin["version"])
