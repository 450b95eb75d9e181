"""Find and parse the scripts to read: files, folders, notebooks."""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tinkerlab.errors import InputError

SKIPPED = {".venv", "venv", "node_modules", "__pycache__", ".git", "build", "dist", ".tox"}
IGNORE = re.compile(r"#\s*tinker:\s*ignore(?:\[([\w\s,-]*)\])?")
SUFFIXES = {".py", ".pyw", ".ipynb", ""}
MAX_BYTES = 5_000_000  # no script is larger; a data file named .py would take minutes


@dataclass
class Source:
    """One parsed script.

    Attributes:
        ignored: for each line with a ``# tinker: ignore[cause, ...]`` comment the causes that
            it silences there; an empty set silences all.
        cells: for a notebook, the cell and the line in it of each line of the text.
    """

    path: Path
    text: str
    tree: ast.Module
    ignored: dict[int, set[str]] = field(default_factory=dict)
    cells: list[tuple[int, int]] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    def where(self, line: int) -> str:
        """``train.py:12``, or ``train.ipynb cell 3:4``."""
        if self.cells and line <= len(self.cells):
            cell, inner = self.cells[line - 1]
            return f"{self.path} cell {cell}:{inner}"
        return f"{self.path}:{line}"

    def silences(self, cause: str, first: int, last: int) -> bool:
        """Whether a comment on one of a statement's lines, or just above it, silences a cause."""
        for line in range(first - 1, last + 1):
            causes = self.ignored.get(line)
            alone = line >= first or (
                0 < line <= len(self.lines) and self.lines[line - 1].lstrip().startswith("#")
            )
            if causes is not None and alone and (not causes or cause in causes):
                return True
        return False


def read_sources(paths: Iterable[Path]) -> list[Source]:
    """Every script named, or found under a folder named.

    Raises:
        InputError: a path is missing, a folder holds no script, or a file does not parse.
    """
    return [read_source(file) for path in paths for file in files(path)]


def files(path: Path) -> Iterator[Path]:
    if not path.exists():
        raise InputError(f"no such file: {path}")
    if not path.is_dir():
        if path.suffix not in SUFFIXES:  # JSON, for one, would parse as Python
            raise InputError(f"{path}: neither a Python script (.py) nor a notebook (.ipynb)")
        yield path
        return
    found = [
        file
        for pattern in ("*.py", "*.ipynb")
        for file in sorted(path.rglob(pattern))
        if file.is_file()
        and not SKIPPED & set(file.relative_to(path).parts)
        and ".ipynb_checkpoints" not in file.parts
    ]
    # An empty __init__.py is normal inside a package, though not as a file that was named.
    found = [file for file in found if file.stat().st_size or file.name != "__init__.py"]
    if not found:
        raise InputError(f"{path}: no .py or .ipynb file in this folder")
    yield from found


def read_source(path: Path) -> Source:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    if len(raw) > MAX_BYTES:
        raise InputError(f"{path}: {len(raw):,} bytes is no script")
    if b"\0" in raw:
        raise InputError(f"{path}: a binary file, not a Python script")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        text = raw.decode(encoding)
    except (UnicodeDecodeError, SyntaxError, LookupError) as error:
        raise InputError(f"{path}: not a text file in a known encoding ({error})") from error
    if not text.strip():
        raise InputError(f"{path}: an empty file")
    cells: list[tuple[int, int]] = []
    if path.suffix == ".ipynb":
        text, cells = notebook(path, text)
    tree = parse(path, text, cells)
    return Source(path, text, tree, ignores(text), cells)


def parse(path: Path, text: str, cells: list[tuple[int, int]]) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes: not what we were asked about
            return ast.parse(text.removeprefix("\ufeff"))
    except SyntaxError as error:
        line = error.lineno or 1
        place = f"{path}:{line}"
        if cells and line <= len(cells):
            place = f"{path} cell {cells[line - 1][0]}:{cells[line - 1][1]}"
        raise InputError(f"{place}: does not parse as Python: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"{path}: does not parse as Python: {error}") from error


def notebook(path: Path, text: str) -> tuple[str, list[tuple[int, int]]]:
    """The code cells of a notebook as one script, and where each line comes from.

    Magics and shell lines become comments; a cell may await at its top level.
    """
    try:
        document = json.loads(text)
        found = [
            (number, "".join(cell["source"]))
            for number, cell in enumerate(document["cells"], 1)
            if cell.get("cell_type") == "code"
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not a notebook: {error}") from error
    lines: list[str] = []
    cells: list[tuple[int, int]] = []
    for number, code in found:
        if code.lstrip().startswith("%%"):
            continue
        for inner, line in enumerate(code.splitlines(), 1):
            magic = line.lstrip().startswith(("%", "!", "?"))
            lines.append(
                f"{line[: len(line) - len(line.lstrip())]}pass  # {line.strip()}" if magic else line
            )
            cells.append((number, inner))
    if not lines:
        raise InputError(f"{path}: a notebook without code")
    return "\n".join(lines) + "\n", cells


def ignores(text: str) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = IGNORE.search(line) if "tinker" in line else None
        if match:
            found[number] = {
                part.strip() for part in (match.group(1) or "").split(",") if part.strip()
            }
    return found
