"""Executes the reference pages of the debug skill."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_runs import PAGES, run_page

MINE = [page for page in PAGES if page.is_relative_to("skills/debug/references")]


def test_there_are_such_pages() -> None:
    assert len(MINE) >= 5


@pytest.mark.slow
@pytest.mark.timeout(1800)  # on the real small model, at a busy machine's pace
@pytest.mark.parametrize("page", MINE, ids=str)
def test_page_runs(page: Path, tmp_path: Path) -> None:
    run_page(page, tmp_path)
