"""Tables of the research skill's reference pages, for the tests that hold them to the code."""

from __future__ import annotations

import re
from pathlib import Path

from markdown_pages import read_page

PAGES = Path("skills/research/references")


def table(page: str, *header: str) -> list[list[str]]:
    """Rows of the table whose first header cells are ``header``, as lists of cells."""
    lines = read_page(PAGES / page).split("\n")
    opening = f"| {' | '.join(header)} |".replace("|  |", "| |")
    start = next(i for i, line in enumerate(lines) if line.startswith(opening))
    found = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))])
    assert found
    return found


def spans(cell: str) -> list[str]:
    """The `code` spans of a cell."""
    return re.findall(r"`([^`]+)`", cell)
