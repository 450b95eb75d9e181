"""Read a log line by line, and keep together the lines of one traceback."""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tinkerlab.errors import InputError

MAX_LINE = 4_000  # characters of a line that are looked at; the rest is data, not a message
MAX_TRACEBACK = 400  # lines; a longer one is cut into parts

_TRACEBACK = "Traceback (most recent call last)"
# At the end of its line, or in a rule of rich; in the middle of one it is somebody's words.
_HEAD = re.compile(
    r"(?P<before>.*?)(?:Exception Group )?Traceback \(most recent call last\):?\s*[\u2500-\u257f]*$"
)
_FRAME = re.compile(
    r'^\s*(?:\u2502 )?(?:File ")?(?P<file>[^":]+)(?:", line |:)(?P<line>\d+)(?:, in | in |$)'
)
_BOX = "\u2500\u2502\u256d\u2570\u256f\u256e"  # of a traceback as rich draws it
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
EXCEPTION = re.compile(
    r"^[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Timeout|Group|Cancelled)\b(:|$| )"
)
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
        """The line that says what happened: of a traceback, its last exception."""
        bare = [_GROUP_BAR.sub("", text).strip() for text in reversed(self.lines)]
        if self.traceback:
            for text in bare:
                if EXCEPTION.match(text) and not text.startswith("ExceptionGroup"):
                    return text
        return next((text for text in bare if text), "")

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
            file.seek(0)
            if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                # What PowerShell writes for `python train.py > train.log`.
                yield from io.TextIOWrapper(file, encoding="utf-16", errors="replace")
                return
            if b"\0" in head or head.startswith(b"\x1f\x8b") or _mostly_no_text(head):
                raise InputError(f"{path}: holds binary data; give the text of a log or traceback")
            yield from decoded(file)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; give a log file, a message, or -") from None


def decoded(lines: Iterable[bytes]) -> Iterator[str]:
    """Lines as text; of a progress bar's "line" only its last state and what was printed next.

    tqdm and rich overwrite their line with a carriage return, so a traceback may stand at the
    end of a very long one.
    """
    for raw in lines:
        text = raw.rstrip(b"\r\n").rsplit(b"\r", 1)[-1]
        yield text[: MAX_LINE * 4].decode("utf-8", "replace")


def clean(text: str) -> str:
    """A line as a reader sees it: without colours, and without the tail that is only data."""
    return _COLOUR.sub("", text[: MAX_LINE * 2]).rstrip("\r\n")[:MAX_LINE]


def _mostly_no_text(head: bytes) -> bool:
    text = head.decode("utf-8", "replace")
    odd = sum(c == "\ufffd" or (c < " " and c not in "\t\n\r\x1b\b\f\a") for c in text)
    return odd > 0.3 * len(text)


def units(lines: Iterable[str]) -> Iterator[Unit]:
    """Group ``lines``: a traceback from its head to its exception is one unit.

    What a launcher or a log collector puts before each line (``[rank0]:``, ``(Worker pid=3)``, a
    time) stands before the traceback's head as well, and is taken off.
    """
    current: Unit | None = None
    prefix: re.Pattern[str] | None = None
    for number, text in enumerate(lines, start=1):
        if current is not None:
            bare = prefix.sub("", text, count=1) if prefix else text
            current.lines.append(bare)
            if _ends(bare, current) or len(current.lines) >= MAX_TRACEBACK:
                yield current
                current = None
        elif _TRACEBACK in text and (packed := _packed(text)):
            yield Unit(number, packed, traceback=True)
        elif _TRACEBACK in text and (head := _HEAD.match(text)):
            prefix = _shape(head["before"])
            current = Unit(number, [text], traceback=True)
        else:
            yield Unit(number, [text])
    if current is not None:
        yield current


def _shape(before: str) -> re.Pattern[str] | None:
    """What stands before a traceback's head, as a pattern: numbers may differ from line to line."""
    if not before.strip(" +|" + _BOX):
        return None
    return re.compile("^" + re.sub(r"\d+", r"\\d+", re.escape(before.rstrip())) + r" ?")


def _packed(text: str) -> list[str] | None:
    """The lines of a traceback that a JSON log holds in one of its strings."""
    if not text.startswith("{"):
        return None
    try:
        values = json.loads(text).values()
    except (ValueError, RecursionError):
        return None
    return next((v.splitlines() for v in values if isinstance(v, str) and _TRACEBACK in v), None)


def _ends(text: str, unit: Unit) -> bool:
    """Whether ``text`` is the exception line: not indented, after at least one frame."""
    bare = text.strip()
    if not bare or text[0].isspace() or text[0] in _BOX or bare.startswith(_CHAINED):
        return False
    return _TRACEBACK not in text and len(unit.lines) > 1
