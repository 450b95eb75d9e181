"""What the pages say agrees with the code: names, flags, links, tables, versions."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from command_parsing import check_shell, tinker_options
from markdown_pages import (
    LANGUAGES,
    RUNNABLE,
    Block,
    anchors,
    command_lines,
    inline_code,
    invocations,
    markdown_pages,
    page_blocks,
    read_page,
    unchecked_blocks,
)
from repository import ROOT
from script_help import help_text, script_names, subcommands

PAGES = markdown_pages()
BLOCKS = [block for page in PAGES for block in page_blocks(page)]
CONFIG_TEMPLATES = {
    "sl_trainer.py": ROOT / "templates" / "training-config.yaml",
    "rl_trainer.py": ROOT / "templates" / "rl-config.yaml",
    "dpo_trainer.py": ROOT / "templates" / "dpo-config.yaml",
    "distill_trainer.py": ROOT / "templates" / "distill-config.yaml",
}


def code_of(page: Path) -> list[str]:
    """Every command and code span of a page."""
    shell = [block.text for block in page_blocks(page) if block.language == "bash"]
    return [line for text in shell for line in command_lines(text)] + inline_code(read_page(page))


def test_there_is_something_to_check() -> None:
    """Zero items inspected would be a failure that looks like a success."""
    assert Path("README.md") in PAGES and Path("AGENTS.md") in PAGES
    assert len([page for page in PAGES if page.name == "SKILL.md"]) == 2
    calls = [call for page in PAGES for line in code_of(page) for call in invocations(line)]
    assert len(calls) >= 10
    executed = [b for b in BLOCKS if b.is_executed]
    kept_back = [b for b in BLOCKS if b.not_run is not None]
    assert len(executed) > len(kept_back), "most blocks must be executed"


def test_few_blocks_are_beyond_checking() -> None:
    """Neither run nor parsed: the summary of the test run lists them with their reasons."""
    assert len(unchecked_blocks()) < 0.05 * len(BLOCKS), [str(b) for b in unchecked_blocks()]


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.not_run], ids=str)
def test_what_is_not_run_is_parsed(block: Block) -> None:
    """By the parsers of the scripts, of `tinker` and of make; see `command_parsing`."""
    check_shell(block.text)


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_blocks_are_marked_right(block: Block) -> None:
    assert block.language in LANGUAGES, f"{block}: name one of {sorted(LANGUAGES)}"
    if block.not_checked is not None or block.exit_code:
        assert block.language in RUNNABLE, f"{block}: only bash and python blocks are run"
    if block.not_run is not None:
        assert block.language == "bash", f"{block}: only commands are parsed instead of run"
    if block.language == "yaml":
        assert block.config_of, f"{block}: say above it whose config it is"
    if block.is_output:
        assert block.language == "text", f"{block}: output stands in a text block"


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language != "bash"], ids=str)
def test_other_languages_parse(block: Block) -> None:
    if block.language == "yaml":
        load_config_block(block)
    elif block.language == "json":
        json.loads(block.text)
    elif block.language == "jsonl":
        assert [json.loads(line) for line in block.text.splitlines()]
    elif block.language == "python":
        compile(block.text, str(block), "exec")


def load_config_block(block: Block) -> None:
    """Read a whole config, or some keys of one, as the trainer that it is for does.

    Raises:
        InputError: as the trainer would.
    """
    from tinkerlab.training import config

    trainer = config_class(str(block.config_of))
    for key, value in yaml.safe_load(block.text).items():
        config.cast_field(trainer, key, value, str(block))


def config_class(trainer: str) -> type:
    from tinkerlab.training.distill.config import DistillConfig
    from tinkerlab.training.dpo.config import DPOConfig
    from tinkerlab.training.rl.config import RLConfig
    from tinkerlab.training.supervised_config import SupervisedConfig

    return {
        "sl_trainer.py": SupervisedConfig,
        "rl_trainer.py": RLConfig,
        "dpo_trainer.py": DPOConfig,
        "distill_trainer.py": DistillConfig,
    }[trainer]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_scripts_and_flags_exist(page: Path) -> None:
    problems = []
    for line in code_of(page):
        for script in re.findall(r"scripts/(\w+\.py)", line):
            if script not in script_names():
                problems.append(f"`{line}`: there is no scripts/{script}")
        for call in invocations(line):
            if call.script not in script_names():
                continue
            known = help_text(call.script)
            first = call.arguments[0] if call.arguments else ""
            if first in subcommands(call.script):
                known += help_text(call.script, first)
            for flag in call.flags:
                if not re.search(rf"(?<![\w-]){flag}(?![\w-])", known):
                    problems.append(f"`{line}`: {call.script} has no {flag}")
    assert problems == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_flags_in_prose_exist(page: Path) -> None:
    """A lone `--flag` span must belong to some script of ours, or to the `tinker` command."""
    every_help = "".join(
        help_text(script, *sub)
        for script in script_names()
        for sub in [(), *((name,) for name in subcommands(script))]
    ) + " ".join(tinker_options())
    spans = inline_code(read_page(page))
    flags = {match for span in spans for match in re.findall(r"^(--[a-z][\w-]*)", span)}
    unknown = [f for f in sorted(flags) if not re.search(rf"(?<![\w-]){f}(?![\w-])", every_help)]
    assert unknown == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_config_keys_exist(page: Path) -> None:
    unknown = {
        f"{call.script}: {key}"
        for line in code_of(page)
        for call in invocations(line)
        if call.script in CONFIG_TEMPLATES
        for key in call.overrides
        if key not in yaml.safe_load(CONFIG_TEMPLATES[call.script].read_text(encoding="utf-8"))
    }
    assert unknown == set()


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for line in code_of(page) for name in re.findall(r"^make ([a-z]+)", line)}
    assert named - targets == set()


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_resolve(page: Path) -> None:
    text = re.sub(r"```.*?```", "", read_page(page), flags=re.DOTALL)
    broken = []
    for target in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_files_named_in_code_exist(page: Path) -> None:
    """`templates/x.yaml`, `scripts/tinkerlab/x.py` and the like, with or without the plugin root."""
    folders = "|".join(["scripts", "templates", "skills", "tests", "benchmarks", "docs"])
    pattern = rf"(?:\$\{{CLAUDE_PLUGIN_ROOT\}}/|(?<![\w./-]))((?:{folders})/[\w./-]*\w)"
    named = {name for line in code_of(page) for name in re.findall(pattern, line)}
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.parts[0] in ("skills", "templates")], ids=str
)
def test_commands_work_outside_a_clone(page: Path) -> None:
    """A plugin's user is in a folder of their own: files of ours by the plugin's root alone."""
    blocks = [b for b in page_blocks(page) if b.language == "bash"]
    lines = [line for block in blocks for line in command_lines(block.text)]
    assert [line for line in lines if re.search(r"(?<![\w./}-])(?:scripts|templates)/", line)] == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_no_path_of_one_machine(page: Path) -> None:
    assert re.findall(r"(?<![\w.])/(?:root|home|work|Users)/\S*", read_page(page)) == []


def first_cells(page: Path, header: str) -> list[str]:
    """The first column of the page's tables whose header row starts with ``header``."""
    rows, inside = [], False
    for line in read_page(page).split("\n"):
        if line.startswith(f"| {header} |"):
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not line.startswith("| ---"):
            rows.append(line.split("|")[1].strip())
    assert rows, f"{page} has no table headed {header!r}"
    return rows


def test_readme_lists_every_script() -> None:
    listed = [cell.strip("`") for cell in first_cells(Path("README.md"), "script")]
    assert sorted(listed) == [f"scripts/{name}" for name in script_names()]


def test_readme_names_the_pinned_versions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pinned = dict(item.split("==") for item in project["dependencies"])
    text = read_page(Path("README.md"))
    for name in ("tinker", "tinker-cookbook", "torch", "transformers"):
        assert f"{name} {pinned[name]}" in text, f"README.md must say {name} {pinned[name]}"
