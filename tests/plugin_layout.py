"""The plugin's own files, read once for the tests of the plugin and of its pages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from repository import ROOT

SKILLS = ROOT / "skills"


def read_manifest(name: str) -> dict[str, Any]:
    """``.claude-plugin/NAME`` as a dictionary."""
    return json.loads((ROOT / ".claude-plugin" / name).read_text(encoding="utf-8"))


def skill_names() -> list[str]:
    """The folders of ``skills/``, sorted."""
    return sorted(folder.name for folder in SKILLS.iterdir() if folder.is_dir())


def split_frontmatter(page: Path) -> tuple[dict[str, Any], str]:
    """The YAML head of a skill's page, and the page without it.

    Raises:
        ValueError: no head between two ``---`` lines, or one that is not a mapping. Claude Code
            only warns then, and loads the skill without its description.
    """
    lines = page.read_text(encoding="utf-8").split("\n")
    if lines[0] != "---" or "---" not in lines[1:]:
        raise ValueError(f"{page.name}: the frontmatter must stand first, between two --- lines")
    end = lines.index("---", 1)
    head = yaml.safe_load("\n".join(lines[1:end]))
    if not isinstance(head, dict):
        raise ValueError(f"{page.name}: the frontmatter is not a mapping")
    return head, "\n".join(lines[end + 1 :])
