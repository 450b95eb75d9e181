"""Prints dumps while the command runs, from the trace that it writes.

It runs outside of the watched process, so it also speaks when that process cannot: a held GIL
silences the watchdog, and the silence itself is what is reported.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tinkerlab import cli
from tinkerlab.diagnosis.stalls.stacks import Frame, Stack

SILENT = 3.0
SHOWN_TASKS = 10
SHOWN_FRAMES = 6


class _File:
    """One trace that grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        self.rest = b""
        self.heard = time.monotonic()
        self.said_silent = False
        self.frames: dict[int, Frame] = {}
        self.stacks: dict[int, list[int]] = {}
        self.start = 0.0
        self.sample: dict[str, Any] = {}
        self.ended = False

    def new_records(self) -> list[dict[str, Any]]:
        with self.path.open("rb") as stream:
            stream.seek(self.offset)
            read = stream.read()
        if not read:
            return []
        self.offset += len(read)
        self.heard, self.said_silent = time.monotonic(), False
        *lines, self.rest = (self.rest + read).split(b"\n")
        return [json.loads(line) for line in lines if line.strip()]

    def stack(self, number: int | None) -> Stack:
        ids = self.stacks.get(number, []) if number is not None else []
        return Stack(tuple(self.frames[i] for i in ids))


class Follower:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[Path, _File] = {}

    def print_new(self) -> None:
        """Print the dumps that were written since the last call, on stderr."""
        for path in sorted(self._folder.glob("trace-*.jsonl")):
            file = self._files.setdefault(path, _File(path))
            for record in file.new_records():
                self._take(file, record)
            silent = time.monotonic() - file.heard
            if silent >= SILENT and not file.said_silent and not file.ended:
                file.said_silent = True
                self._say_silent(file, silent)

    def _take(self, file: _File, record: dict[str, Any]) -> None:
        kind = record["k"]
        if kind == "frame":
            file.frames[record["id"]] = Frame(*record["at"])
        elif kind == "stack":
            file.stacks[record["id"]] = record["frames"]
        elif kind == "start":
            file.start = record["t"]
        elif kind in ("sample", "late"):
            file.sample = record
        elif kind == "end":
            file.ended = True
        elif kind == "note" and record["text"].startswith("aiomonitor"):
            cli.say(record["text"])
        elif kind == "stacks":
            self._print_stacks(file, record)
        elif kind == "tasks":
            self._print_tasks(record)

    def _print_stacks(self, file: _File, record: dict[str, Any]) -> None:
        cli.say(f"--- {record['t'] - file.start:.1f} s, {file.path.stem}")
        for name in ("main", "sdk"):
            stack = file.stack(record[name])
            if stack.frames:
                cli.say(f"{name} thread: {_doing(stack)}")
                for frame in stack.frames[:SHOWN_FRAMES]:
                    cli.say(f"    {frame}")

    def _print_tasks(self, record: dict[str, Any]) -> None:
        cli.say(f"{record['loop']} loop: {record['count']} tasks")
        for name, places in record["tasks"][:SHOWN_TASKS]:
            where = Stack(tuple(Frame(*place) for place in reversed(places)))
            cli.say(f"    {name}: {where.place}")

    def _say_silent(self, file: _File, seconds: float) -> None:
        cli.say(
            f"--- {file.path.stem}: no sign of life for {seconds:.0f} s: the GIL is held (or the "
            "process is stopped)"
        )
        dump = self._folder / f"{file.path.stem.replace('trace', 'gil')}.txt"
        if dump.is_file():
            cli.say(dump.read_text(errors="replace").rpartition("Timeout (")[2][-2000:])


def _doing(stack: Stack) -> str:
    if stack.loop_idle:
        return "its event loop waits for events"
    if stack.waits_for_future:
        return f"waits for a future in {stack.blame}"
    return f"runs {stack.place}"
