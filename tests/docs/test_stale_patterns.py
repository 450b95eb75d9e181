"""No page, template or script holds what only older versions understood (stale_patterns.yaml)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from repository import ROOT, project_files

LIST = Path(__file__).with_name("stale_patterns.yaml")
PATTERNS: list[dict[str, Any]] = yaml.safe_load(LIST.read_text(encoding="utf-8"))
WATCHED = {"skills", "templates", "scripts", "docs"}
FILES = [
    path
    for path in project_files()
    if (path.parts[0] in WATCHED or path.name == "README.md")
    and path.suffix in {".md", ".py", ".sh", ".yaml", ".j2", ".txt"}
]


def found_in(path: Path, entry: dict[str, Any]) -> list[str]:
    """The places of ``path`` that hold the pattern."""
    if any(_matches(path, glob) for glob in entry.get("allowed", [])):
        return []
    text = (ROOT / path).read_text(encoding="utf-8")
    pattern = re.compile(entry["pattern"])
    return [
        f"{path}:{number}: {line.strip()}; write {entry['instead']}"
        for number, line in enumerate(text.split("\n"), start=1)
        if pattern.search(line)
    ]


def _matches(path: Path, glob: str) -> bool:
    """`**` at the end of a glob is any depth; Python 3.11 has no Path.full_match."""
    if glob.endswith("/**"):
        return path.is_relative_to(glob.removesuffix("/**"))
    return path.match(glob)


def test_there_is_something_to_look_at() -> None:
    assert len(FILES) > 100 and len(PATTERNS) > 20


@pytest.mark.parametrize("entry", PATTERNS, ids=lambda entry: entry["pattern"][:40])
def test_a_pattern_finds_what_it_is_for(entry: dict[str, Any]) -> None:
    assert re.search(entry["pattern"], entry["catches"])
    assert not re.search(entry["pattern"], entry["spares"])
    assert entry["instead"]


@pytest.mark.parametrize("entry", PATTERNS, ids=lambda entry: entry["pattern"][:40])
def test_nothing_stale_is_left(entry: dict[str, Any]) -> None:
    assert [place for path in FILES for place in found_in(path, entry)] == []


def test_an_exception_must_be_needed() -> None:
    """A file that may name a pattern and no longer does loses the right to."""
    for entry in PATTERNS:
        for glob in entry.get("allowed", []):
            matching = [path for path in FILES if _matches(path, glob)]
            assert any(
                re.search(entry["pattern"], line)
                for path in matching
                for line in (ROOT / path).read_text(encoding="utf-8").split("\n")
            ), f"{glob} holds no {entry['pattern']}"
