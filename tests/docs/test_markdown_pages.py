"""The reader of pages is itself right: what it misses, no other test here can see."""

from __future__ import annotations

from pathlib import Path

import pytest
from markdown_pages import (
    command_lines,
    inline_code,
    invocations,
    output_lines_missing,
    parse_blocks,
)

PAGE = Path("page.md")


def test_blocks_and_their_marks() -> None:
    text = (
        "A `span`.\n\n```bash\nls\n```\n\n<!-- not run: needs a key -->\n\n```bash\nmake demo\n```\n"
        "<!-- exits 2 -->\n```python\nraise SystemExit(2)\n```\n"
        "<!-- output of the block above -->\n````text\n```\ninner\n```\n````\n```\nbare\n```\n"
        "<!-- config of rl_trainer.py -->\n```yaml\nseed: 1\n```\n"
        "- item\n\n  <!-- not checked: needs a GPU -->\n  ```bash\n  vllm serve x\n  ```\n"
    )
    blocks = parse_blocks(PAGE, text)
    assert [(b.language, b.line) for b in blocks] == [
        ("bash", 3),
        ("bash", 9),
        ("python", 13),
        ("text", 17),
        ("", 22),
        ("yaml", 26),
        ("bash", 32),
    ]
    assert [b.not_run for b in blocks] == [None, "needs a key", *[None] * 5]
    assert [b.not_checked for b in blocks] == [*[None] * 6, "needs a GPU"]
    assert [b.exit_code for b in blocks] == [0, 0, 2, 0, 0, 0, 0]
    assert blocks[5].config_of == "rl_trainer.py"
    assert [b.is_executed for b in blocks] == [True, False, True, False, False, False, False]
    assert blocks[6].text == "vllm serve x\n"
    assert blocks[3].is_output and blocks[3].text == "```\ninner\n```\n"
    assert inline_code(text) == ["span"]


def test_a_mark_must_hold_a_reason() -> None:
    blocks = parse_blocks(PAGE, "<!-- not run:  -->\n```bash\nls\n```\n")
    assert blocks[0].not_run is None


def test_an_open_block_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"page\.md:2: the code block is not closed"):
        parse_blocks(PAGE, "Text.\n```bash\nls\n")


def test_invocations_are_found_through_wrappers() -> None:
    shell = (
        "# a comment\n"
        'python "${CLAUDE_PLUGIN_ROOT}/scripts/rehearse.py" run --store=keep -- \\\n'
        "    python ${CLAUDE_PLUGIN_ROOT}/scripts/sl_trainer.py --config a.yaml seed=3 | head --lines=2\n"
    )
    (command,) = command_lines(shell)
    rehearse, trainer = invocations(command)
    assert (rehearse.script, rehearse.flags) == ("rehearse.py", ["--store"])
    assert (trainer.script, trainer.flags) == ("sl_trainer.py", ["--config"])
    assert trainer.overrides == ["seed"]
    assert invocations("cat scripts/notes.txt") == []


def test_a_here_document_is_no_command() -> None:
    shell = "cat > a.py <<'EOF'\nprint('it\\'s')\nEOF\npython a.py\n"
    assert command_lines(shell) == ["cat > a.py <<'EOF'", "python a.py"]


def test_output_is_compared_without_its_figures() -> None:
    printed = "\x1b[1mloss\x1b[0m   0.8671 -> 0.763\nsaved runs/a/weights\n"
    assert output_lines_missing("loss 1.2 -> 3\nsaved ...\n...\n", printed) == []
    assert output_lines_missing("gain 1.2 -> 3\nsaved elsewhere\n", printed) == [
        "gain 1.2 -> 3",
        "saved elsewhere",
    ]


def test_every_executed_page_is_run_by_one_file() -> None:
    """They are split over files so that test workers share them; none may fall between."""
    from page_runs import PAGES

    def home(page: Path) -> str:
        if page.name in ("README.md", "AGENTS.md", "SKILL.md"):
            return "skills"
        for folder, name in (
            ("skills/research/references", "research_pages"),
            ("skills/debug/references", "debug_pages"),
            ("templates", "recipes"),
        ):
            if page.is_relative_to(folder):
                return name
        return "none"

    assert [page for page in PAGES if home(page) == "none"] == []
