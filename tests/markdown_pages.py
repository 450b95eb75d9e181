"""The project's Markdown, taken apart for the tests that hold it to the code.

How a page marks its code blocks (AGENTS.md tells writers):

- every block names its language: bash, python, yaml, json, jsonl or text;
- bash and python blocks are executed, in order, in one working folder per page. They must exit
  with 0, or with N where the line above the fence is ``<!-- exits N -->``;
- ``<!-- not run: REASON -->`` above a bash block keeps it from being executed: its commands are
  given to the parsers of the programs that they name instead (``command_parsing``);
- ``<!-- not checked: REASON -->`` above a bash or python block keeps it from both. Such blocks
  are counted, and must stay rare;
- a yaml block is a config of the trainer that ``<!-- config of TRAINER.py -->`` names;
- a text block under ``<!-- output of the block above -->`` must be found in what the last
  executed block printed: line by line, numbers and runs of spaces aside, ``...`` for anything.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from repository import ROOT, project_files
from sybil import Document
from sybil.parsers.markdown.lexers import RawFencedCodeBlockLexer

LANGUAGES = {"bash", "python", "yaml", "json", "jsonl", "text"}
RUNNABLE = {"bash", "python"}

_FENCE = re.compile(r"^( {0,3})(`{3,}|~{3,})\s*([\w+-]*)\s*(.*)$")
_BLOCKS = RawFencedCodeBlockLexer(re.compile(r"[ ]*(?P<language>[\w+-]*)[^\n]*\n"))
_NOT_RUN = re.compile(r"^<!-- not run: (\S.*\S) -->$")
_NOT_CHECKED = re.compile(r"^<!-- not checked: (\S.*\S) -->$")
_CONFIG = re.compile(r"^<!-- config of (\w+\.py) -->$")
_EXITS = re.compile(r"^<!-- exits (\d+) -->$")
_OUTPUT = "<!-- output of the block above -->"


@dataclass(frozen=True)
class Block:
    """One fenced block. ``line`` is where its fence opens, counted from 1."""

    page: Path
    line: int
    language: str
    text: str
    not_run: str | None = None
    not_checked: str | None = None
    exit_code: int = 0
    is_output: bool = False
    config_of: str | None = None

    @property
    def is_executed(self) -> bool:
        return self.language in RUNNABLE and not (self.not_run or self.not_checked)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Invocation:
    """One ``python [...]/scripts/NAME.py ARGUMENTS`` in a page."""

    script: str
    arguments: tuple[str, ...]

    @property
    def flags(self) -> list[str]:
        """The long options, without values."""
        return [word.split("=")[0] for word in self.arguments if word.startswith("--")]

    @property
    def overrides(self) -> list[str]:
        """The keys of ``key=value`` words."""
        return [word.split("=")[0] for word in self.arguments if re.match(r"[a-z]\w*=", word)]


def markdown_pages() -> list[Path]:
    """Every Markdown file of the project, relative to its root; tests' own fixtures aside."""
    return [path for path in project_files() if path.suffix == ".md" and path.parts[0] != "tests"]


def read_page(page: Path) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def parse_blocks(page: Path, text: str) -> list[Block]:
    """The fenced blocks of ``text`` in order; what stands in a longer fence is text.

    Raises:
        ValueError: a fence is not closed.
    """
    document = Document(text, str(page))
    found = sorted(_BLOCKS(document), key=lambda region: (region.start, -region.end))
    blocks: list[Block] = []
    end = 0
    for region in found:
        if region.start < end:
            continue
        end = region.end
        line = text.count("\n", 0, region.start) + 1
        closing = text[region.start : region.end].rsplit("\n", 1)[-1].strip()
        if not re.fullmatch(r"`{3,}|~{3,}", closing):
            raise ValueError(f"{page}:{line}: the code block is not closed")
        before = text[: region.start].split("\n")
        above = next((row for row in reversed(before) if row.strip()), "").strip()
        not_run, not_checked = _NOT_RUN.match(above), _NOT_CHECKED.match(above)
        exits, config = _EXITS.match(above), _CONFIG.match(above)
        blocks.append(
            Block(
                page=page,
                line=line,
                language=region.lexemes["language"],
                text=str(region.lexemes["source"]),
                not_run=not_run.group(1) if not_run else None,
                not_checked=not_checked.group(1) if not_checked else None,
                exit_code=int(exits.group(1)) if exits else 0,
                is_output=above == _OUTPUT,
                config_of=config.group(1) if config else None,
            )
        )
    return blocks


def page_blocks(page: Path) -> list[Block]:
    return parse_blocks(page, read_page(page))


def unchecked_blocks() -> list[Block]:
    """Blocks that nothing here can check, each with its reason."""
    return [b for page in markdown_pages() for b in page_blocks(page) if b.not_checked]


def inline_code(text: str) -> list[str]:
    """The `code` spans of a page's prose, fenced blocks aside."""
    prose, fenced = [], None
    for line in text.split("\n"):
        fence = _FENCE.match(line)
        if fence and (fenced is None or fence.group(2).startswith(fenced)):
            fenced = None if fenced else fence.group(2)
        elif fenced is None:
            prose.append(line)
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", "\n".join(prose))


def anchors(file: Path) -> set[str]:
    """The ids that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ +(.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in headings}


def command_lines(shell: str) -> list[str]:
    """The commands of a shell text, continuation lines joined, comments and blanks left out.

    What a here-document holds is a file's content, no command.
    """
    shell = re.sub(r"(<<-?\s*['\"]?(\w+)['\"]?[^\n]*\n).*?\n\2\n", r"\1", shell, flags=re.DOTALL)
    joined = re.sub(r"\\\n\s*", " ", shell)
    return [line.strip() for line in joined.split("\n") if line.strip() and line.strip()[0] != "#"]


def invocations(command: str) -> list[Invocation]:
    """The project's scripts that ``command`` calls; ``rehearse.py run -- python x.py`` gives two.

    Raises:
        ValueError: the command's quotes do not match.
    """
    # punctuation_chars splits at ; | & and parentheses, so that a flag behind a pipe is not ours.
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.wordchars += "{}$:=@%+,[]#"
    words = list(lexer)
    found: list[Invocation] = []
    arguments: list[str] | None = None
    for word in words:
        script = re.fullmatch(r"(?:.*/)?scripts/(\w+\.py)", word)
        if script:
            arguments = []
            found.append(Invocation(script.group(1), ()))
        elif arguments is None:
            continue
        elif word == "--" or re.fullmatch(r"[();<>|&]+", word):
            arguments = None
        else:
            arguments.append(word)
            found[-1] = Invocation(found[-1].script, tuple(arguments))
    return found


def output_lines_missing(expected: str, printed: str) -> list[str]:
    """The lines of ``expected`` that ``printed`` does not hold, in whatever order.

    Numbers are compared as "a number", runs of spaces as one space, and ``...`` matches anything
    within a line, since figures and widths differ between machines.
    """

    def plain(text: str) -> str:
        text = re.sub(r"\x1b\[[0-9;]*m", "", text)
        text = re.sub(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?", "0", text)
        return re.sub(r"\s+", " ", text).strip()

    haystack = [plain(line) for line in printed.split("\n")]
    missing = []
    for line in expected.split("\n"):
        parts = [re.escape(part) for part in plain(line).split("...")]
        if any(parts) and not any(re.search(".*".join(parts), row) for row in haystack):
            missing.append(line)
    return missing
