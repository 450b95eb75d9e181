"""Config keys, metric keys and names of classes that stand in backticks are written right.

A name of several words is held against all words of our scripts and configs, of tinker and of
tinker-cookbook, and of the page's own blocks: a slip of the pen is in none of them.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import tinker
import tinker_cookbook
from markdown_pages import inline_code, markdown_pages, page_blocks, read_page
from repository import ROOT, project_files

# `key`, `key=value`, `key: value`, `path/key`; of several words, joined by _ or by capitals.
_NAME = re.compile(r"^(?:[\w-]+/)*([A-Za-z]\w*)(?:[=:] ?\S.*|\(.*\))?$")
_SEVERAL = re.compile(r"[A-Za-z0-9]_[A-Za-z0-9]|[a-z][A-Z]")
_OF_OTHERS = {"return_dict"}  # transformers' own
PAGES = [page for page in markdown_pages() if page.parts[0] in ("skills", "templates")]


@cache
def known() -> frozenset[str]:
    """Every word of the code that pages may name."""
    ours = [
        ROOT / path
        for path in project_files()
        if path.parts[0] in ("scripts", "templates") and path.suffix in (".py", ".yaml", ".sh")
    ]
    theirs = [
        path
        for package in (tinker, tinker_cookbook)
        for path in Path(str(package.__file__)).parent.rglob("*.py")
    ]
    return words("\n".join(path.read_text(encoding="utf-8") for path in [*ours, *theirs]))


def words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text))


def unknown_names(page: Path, text: str) -> list[str]:
    found = [match[1] for span in inline_code(text) if (match := _NAME.match(span))]
    blocks = words("\n".join(block.text for block in page_blocks(page)))
    several = {name for name in found if _SEVERAL.search(name) and not re.search("_[A-Z]+$", name)}
    return sorted(several - known() - blocks - _OF_OTHERS)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_names_are_written_right(page: Path) -> None:
    assert unknown_names(page, read_page(page)) == []


def test_a_slip_of_the_pen_is_found() -> None:
    text = "`dpo_betta` `train_file=x.jsonl` `test/teacher_kll` `ProblemEnvs` `loss_fn: ppoo`\n"
    found = unknown_names(PAGES[0], text)
    assert found == ["ProblemEnvs", "dpo_betta", "teacher_kll"]
