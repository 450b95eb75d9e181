"""The trace: one JSON line a record, appended and flushed, stacks written once each."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
import threading
import time
from collections import deque
from pathlib import Path
from types import FrameType
from typing import Any

DEPTH = 60  # frames of a stack that are kept, the innermost ones
FORMAT = 1


class Recorder:
    """Collects records from any thread; the watchdog thread writes them.

    A record has a kind ``k``: ``start``, ``frame``, ``stack``, ``sample``, ``late``, ``submit``,
    ``done``, ``http``, ``queue``, ``tasks``, ``note``, ``end``. Times ``t`` are seconds of the
    monotonic clock.
    """

    def __init__(self, folder: str) -> None:
        self._pending: deque[dict[str, Any]] = deque()
        self._frames: dict[tuple[Any, int], int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self._writing = threading.Lock()
        Path(folder).mkdir(parents=True, exist_ok=True)
        # Open for as long as the process lives.
        trace, dumps = (Path(folder, f"{n}-{os.getpid()}") for n in ("trace", "gil"))
        self._file: Any = trace.with_suffix(".jsonl").open("a", encoding="utf-8")
        self.dumps: Any = dumps.with_suffix(".txt").open("w+", encoding="utf-8")
        self.put(
            "start",
            format=FORMAT,
            pid=os.getpid(),
            parent=os.getppid(),
            argv=sys.orig_argv[:20],
            python=sys.version.split()[0],
            stdlib=sysconfig.get_path("stdlib"),
            main=threading.main_thread().ident,
        )
        self.write()

    def put(self, kind: str, **values: Any) -> None:
        """Add a record. Cheap and free of locks: also called on the SDK's loop."""
        self._pending.append({"k": kind, "t": round(time.monotonic(), 4), **values})

    def forget(self) -> None:
        """Write nothing more: this is a forked child."""
        self._file = None

    def write(self) -> None:
        with self._writing:
            if self._file is None:
                return
            lines = []
            while self._pending:
                # A user's task name or path may hold anything: never fail on it.
                lines.append(json.dumps(self._pending.popleft(), default=str))
            if lines:
                self._file.write("\n".join(lines) + "\n")
                self._file.flush()

    def stack(self, frame: FrameType | None) -> int:
        """The number of the stack that ends in ``frame``; new ones are recorded."""
        ids = []
        while frame is not None and len(ids) < DEPTH:
            ids.append(self._frame(frame))
            frame = frame.f_back
        key = tuple(ids)
        number = self._stacks.get(key)
        if number is None:
            number = self._stacks[key] = len(self._stacks)
            self.put("stack", id=number, frames=ids)
        return number

    def _frame(self, frame: FrameType) -> int:
        code, line = frame.f_code, frame.f_lineno or 0
        number = self._frames.get((code, line))
        if number is None:
            number = self._frames[(code, line)] = len(self._frames)
            name = getattr(code, "co_qualname", code.co_name)
            self.put("frame", id=number, at=[code.co_filename, line, name])
        return number
