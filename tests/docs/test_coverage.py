"""Every section of the documents that the project grew from is somewhere, or was dropped on purpose."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from markdown_pages import anchors
from repository import ROOT

TABLE = Path(__file__).with_name("coverage.md")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TABLE.read_text(encoding="utf-8").split("\n")
    if line.startswith("| ") and not line.startswith(("| section |", "| --- |"))
]
POINTER = re.compile(r"`([\w.-]+(?:/[\w.-]+)+|README\.md|pyproject\.toml)(?:#([\w-]+))?`")


def test_the_table_is_whole() -> None:
    assert len(ROWS) > 80
    assert all(len(row) == 2 and all(row) for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:50])
def test_a_section_leads_somewhere(row: list[str]) -> None:
    pointers = POINTER.findall(row[1])
    assert pointers or row[1].startswith(("dropped", "as the ")), "no page, and no reason"
    for path, anchor in pointers:
        assert (ROOT / path).exists(), path
        assert not anchor or anchor in anchors(ROOT / path), f"{path} has no #{anchor}"
