"""Read a log line by line, and keep together the lines of one traceback."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tinkerlab.errors import InputError

MAX_LINE = 4_000  # characters of a line that are looked at; the rest is data, not a message
MAX_TRACEBACK = 400  # lines; a longer one is cut into parts

_TRACEBACK = "Traceback (most recent call last)"
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)')
_CHAINED = ("During handling of the above", "The above exception was the direct cause")
_GROUP_BAR = re.compile(r"^\s*[|+][-+ ]?")  # in front of the lines of an exception group


@dataclass
class Unit:
    """A single line, or a traceback with the exception that ends it.

    Attributes:
        line: number of its first line.
        lines: its lines, without their ends.
    """

    line: int
    lines: list[str] = field(default_factory=list)
    traceback: bool = False

    @property
    def message(self) -> str:
        """The line that says what happened: of a traceback, the last."""
        return next((text for text in reversed(self.lines) if text.strip()), "").strip()

    def messages(self) -> list[str]:
        """The lines that speak: of a traceback its exceptions and frames, not the quoted code."""
        if not self.traceback:
            return self.lines
        bare = [_GROUP_BAR.sub("", text) for text in self.lines]
        return [text for text in bare if text[:1].strip() or _FRAME.match(text)]

    def frame(self) -> str:
        """``file:line`` of the innermost frame in the user's own code; empty without one."""
        own = [
            f"{found['file']}:{found['line']}"
            for text in self.lines
            if (found := _FRAME.match(text))
            and "site-packages" not in found["file"]
            and "/lib/python" not in found["file"]
            and not found["file"].startswith("<")
        ]
        return own[-1] if own else ""


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a log, streamed.

    Raises:
        InputError: no such file, a folder, an empty file, or no text.
    """
    try:
        if path.is_dir():
            raise InputError(
                f"{path}: is a folder; give a log file, or for a run folder use"
                f" python scripts/analyze_run.py {path}"
            )
        with path.open("rb") as file:
            head = file.read(8192)
            if not head.strip():
                raise InputError(f"{path}: is empty; give a log, a traceback or a message")
            if b"\0" in head:
                raise InputError(f"{path}: holds binary data; give the text of a log or traceback")
            file.seek(0)
            for raw in file:
                yield raw[: MAX_LINE * 4].decode("utf-8", "replace").rstrip("\r\n")[:MAX_LINE]
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; give a log file, a message, or -") from None


def units(lines: Iterable[str]) -> Iterator[Unit]:
    """Group ``lines``: a traceback from its head to its exception is one unit."""
    current: Unit | None = None
    for number, text in enumerate(lines, start=1):
        if current is not None:
            current.lines.append(text)
            if _ends(text, current) or len(current.lines) >= MAX_TRACEBACK:
                yield current
                current = None
        elif _TRACEBACK in text:
            current = Unit(number, [text], traceback=True)
        else:
            yield Unit(number, [text])
    if current is not None:
        yield current


def _ends(text: str, unit: Unit) -> bool:
    """Whether ``text`` is the exception line: not indented, after at least one frame."""
    bare = text.strip()
    if not bare or text[0].isspace() or bare.startswith(_CHAINED) or _TRACEBACK in text:
        return False
    return len(unit.lines) > 1
