"""What a thread is doing, told from its Python stack alone.

The same words for a watched run and for a process that py-spy looked at.
"""

from __future__ import annotations

import linecache
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

# A line that gives the GIL back while it waits, as far as its source says.
_WAITING_LINE = re.compile(r"\b(sleep|wait|join|select|poll|recv|accept|get|acquire|result)\s*\(")
_WATCHDOG = "tinkerlab_watch"
_STDLIB = r"/(lib/python3\.\d+|Python3\d+/Lib)/"


@dataclass(frozen=True)
class Frame:
    file: str
    line: int
    function: str

    @property
    def library(self) -> str:
        """``own`` code, another ``library``, the ``sdk``, or the ``stdlib``."""
        return _library(self.file)

    def __str__(self) -> str:
        return f"{_short(self.file)}:{self.line} in {self.function}"


@lru_cache(maxsize=4096)
def _library(file: str) -> str:
    path = file.replace("\\", "/")
    if path.startswith("<") and not path.startswith("<string"):
        return "stdlib"  # frozen modules
    if re.search(r"/(site|dist)-packages/", path):
        return "sdk" if re.search(r"-packages/tinker/", path) else "library"
    if _WATCHDOG in path or re.search(_STDLIB, path):
        return "stdlib"
    return "own"


@lru_cache(maxsize=4096)
def _short(file: str) -> str:
    """The path as a user would name it: relative to here, or from the package on."""
    _, found, inside = file.replace("\\", "/").rpartition("-packages/")
    if found:
        return inside
    if _library(file) == "stdlib":
        return re.sub(rf".*{_STDLIB}", "", file.replace("\\", "/"))
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative


@dataclass(frozen=True)
class Stack:
    """Frames of one thread, the innermost first."""

    frames: tuple[Frame, ...]

    def _at(self, index: int, file: str, function: str) -> bool:
        if index >= len(self.frames):
            return False
        frame = self.frames[index]
        return frame.file.endswith(file) and frame.function.split(".")[-1] == function

    @property
    def runs_loop(self) -> bool:
        """An asyncio loop runs below; one written in C shows only ``asyncio.run``'s own frame."""
        return any(
            frame.file.endswith(("base_events.py", "asyncio/runners.py"))
            and frame.function.split(".")[-1] in ("run_forever", "_run_once", "run")
            for frame in self.frames
        )

    @property
    def loop_idle(self) -> bool:
        """The loop waits for events: none of its callbacks is running.

        A callback that selects for itself, as ``subprocess`` does, has other callers.
        """
        selects = self._at(0, "selectors.py", "select")
        return (
            (selects and self._at(1, "base_events.py", "_run_once"))
            or self._at(0, "asyncio/runners.py", "run")
            or self._at(0, "base_events.py", "run_forever")
            or self._at(0, "base_events.py", "_run_once")
        )

    @property
    def waits_for_future(self) -> bool:
        """Blocked in ``concurrent.futures``: ``.result()`` of one of the SDK's futures, mostly."""
        return self._at(0, "threading.py", "wait") and any(
            "concurrent/futures" in frame.file for frame in self.frames[:4]
        )

    @property
    def waits_elsewhere(self) -> bool:
        """Blocked in a lock, a queue or a join: another thread is to do something."""
        return not self.waits_for_future and bool(
            self.frames
            and self.frames[0].file.endswith(("threading.py", "queue.py"))
            and self.frames[0].library == "stdlib"
        )

    @property
    def imports(self) -> bool:
        """A library is being imported, which happens once; the user's own modules may do anything."""
        for frame in self.frames:
            if frame.library == "own":
                return False
            if frame.file.startswith("<frozen importlib"):
                return True
        return False

    @property
    def computes_custom_loss(self) -> bool:
        """The SDK runs the user's loss function of ``forward_backward_custom`` on this thread."""
        return any(
            frame.library == "sdk" and frame.function.endswith("_compute_custom_loss")
            for frame in self.frames
        )

    @property
    def blame(self) -> Frame | None:
        """The line to look at: the user's innermost, else a library's, else the SDK's."""
        for kind in ("own", "library", "sdk", "stdlib"):
            for frame in self.frames:
                if frame.library == kind:
                    return frame
        return None

    @property
    def place(self) -> str:
        """``train.py:12 in collate``, and what it was in at that moment if that is elsewhere."""
        blame = self.blame
        if blame is None:
            return "unknown"
        inner = self.frames[0]
        return str(blame) if inner is blame else f"{blame}, in {inner}"

    @property
    def key(self) -> tuple[str, str]:
        """File and function to count by: within a loop the line keeps moving."""
        return (self.blame.file, self.blame.function) if self.blame else ("", "")

    @property
    def source_waits(self) -> bool:
        """The innermost line calls something that waits without the GIL, as its source reads."""
        if not self.frames:
            return True
        frame = self.frames[0]
        if frame.library == "stdlib" and Path(frame.file).name in (
            "threading.py",
            "selectors.py",
            "queue.py",
            "thread.py",
        ):
            return True
        return bool(_WAITING_LINE.search(linecache.getline(frame.file, frame.line)))


_DUMP_THREAD = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]+)", re.MULTILINE)
_DUMP_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$', re.MULTILINE)


def parse_faulthandler(text: str) -> dict[int, Stack]:
    """Thread id -> stack, from what faulthandler wrote; a cut-off last line is left out."""
    starts = list(_DUMP_THREAD.finditer(text))
    stacks: dict[int, Stack] = {}
    for index, start in enumerate(starts):
        end = starts[index + 1].start() if index + 1 < len(starts) else len(text)
        frames = tuple(
            Frame(file, int(line) if line.isdigit() else 0, function)
            for file, line, function in _DUMP_FRAME.findall(text[start.end() : end])
        )
        if frames and _WATCHDOG not in frames[0].file:
            stacks[int(start.group(1), 16)] = Stack(frames)
    return stacks


def holder(stacks: list[Stack]) -> Stack | None:
    """Which of these threads kept the GIL: the first that is not waiting without it."""
    return next((stack for stack in stacks if not stack.source_waits), None)
