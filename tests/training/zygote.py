"""Runs sl_trainer in forked children that end themselves at a chosen point.

Importing what a trainer needs takes seconds, and a kill test wants dozens of trainers; so this
process imports once and forks for each line that it reads:

    {"argv": [...], "point": 7, "signal": 9, "log": "file"}  ->  {"status": -9, "points": 7}

A point is an event at which a death could hurt: before, in the middle of and after each write
to the run's folder, and between a step's gradients and its optimizer step.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import tinker
import tinker_cookbook.renderers
import tinker_cookbook.supervised.common  # noqa: F401
import torch
import transformers.models.auto.tokenization_auto  # noqa: F401

import sl_trainer
from tinkerlab.cli import say
from tinkerlab.errors import CheckFailed, InputError
from tinkerlab.runs import jsonl


class Points:
    """Counts the points and raises the signal at the chosen one."""

    def __init__(self, chosen: int | None, signal_number: int) -> None:
        self.chosen, self.signal_number, self.count = chosen, signal_number, 0
        self._append, self._write = jsonl.append, jsonl.write_atomically
        self._optim_step = tinker.TrainingClient.optim_step
        jsonl.append = self.append
        jsonl.write_atomically = self.write
        points = self

        def optim_step(client: Any, *args: Any, **kwargs: Any) -> Any:
            points.pass_point()
            return points._optim_step(client, *args, **kwargs)

        tinker.TrainingClient.optim_step = optim_step  # type: ignore[method-assign]

    def pass_point(self) -> None:
        self.count += 1
        if self.count == self.chosen:
            os.kill(os.getpid(), self.signal_number)

    def append(self, path: Path, row: Any) -> None:
        self.pass_point()
        before = path.read_bytes() if path.exists() else b""
        self._append(path, row)
        if self.count + 1 == self.chosen:
            whole = path.read_bytes()
            path.write_bytes(whole[: (len(before) + len(whole)) // 2])
            self.pass_point()
            path.write_bytes(whole)  # the signal was one that this process survives
        else:
            self.pass_point()
        self.pass_point()

    def write(self, path: Path, content: bytes) -> None:
        self.pass_point()
        self._write(path, content)
        self.pass_point()


def child(order: dict[str, Any]) -> int:
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    points = Points(order["point"], order["signal"])
    try:
        code = sl_trainer.main(order["argv"])
    except (CheckFailed, InputError) as error:
        say(f"failed: {error}")
        code = 1
    say(f"points: {points.count}")
    return code


def main() -> None:
    torch.set_num_threads(1)
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                code = child(order)
            finally:
                os._exit(code)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(json.dumps({"status": status}), flush=True)


if __name__ == "__main__":
    main()
