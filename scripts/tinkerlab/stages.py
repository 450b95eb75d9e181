"""Run a list of commands one after the other, and go on with the first that is not yet done.

Each stage is another of this project's scripts, started as a user would start it; its command
is shown before it runs. Knows nothing of what the stages do.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinkerlab.cli import EXIT_BAD_INPUT, EXIT_INTERRUPTED, EXIT_OK, say
from tinkerlab.errors import CheckFailed, InputError
from tinkerlab.folders import make_folder
from tinkerlab.runs import jsonl

RECORD = "stages.json"


@dataclass(frozen=True)
class Stage:
    """One command.

    Attributes:
        title: what it does, for people.
        command: makes the arguments after ``python``; called when the stage's turn has come,
            because it may need what an earlier stage left.
        makes: what must exist for the stage to count as done.
        optional: whether the stages after it can do without it.
    """

    name: str
    title: str
    command: Callable[[], Sequence[str]]
    makes: Path
    optional: bool = False


class StageRunner:
    """Runs stages and keeps a record of them in ``folder``.

    Args:
        settings: what the folder's run is about; another run in the same folder is refused.
        env: the environment of the commands.
        quiet: send what the commands print on stdout to stderr.

    Raises:
        InputError: the folder holds something else.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Any],
        *,
        env: Mapping[str, str] | None = None,
        quiet: bool = False,
    ) -> None:
        self._path = folder / RECORD
        self.env = dict(env if env is not None else os.environ)
        self._quiet = quiet
        self._record = self._open(folder, dict(settings))

    def _open(self, folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder}: a file is in the way; choose another --output")
        if folder.is_dir() and any(folder.iterdir()):
            try:
                record = json.loads(self._path.read_text(encoding="utf-8"))
                found, _ = record["settings"], record["stages"]
            except (OSError, ValueError, KeyError, TypeError):
                raise InputError(
                    f"{folder} holds something else; choose another --output, or empty it"
                ) from None
            different = sorted(k for k in {*found, *settings} if found.get(k) != settings.get(k))
            if different:
                raise InputError(
                    f"{folder} holds a run with other settings ({', '.join(different)}); choose"
                    " another --output, or remove it"
                )
            return record
        make_folder(folder)
        record = {"settings": settings, "stages": {}}
        self._write(record)
        return record

    @property
    def seconds(self) -> dict[str, float]:
        """How long each finished stage took, also in an earlier start."""
        return {name: row["seconds"] for name, row in self._record["stages"].items()}

    def run(self, stages: Sequence[Stage]) -> list[str]:
        """Run every stage that is not done, in order; the names of optional ones that failed.

        Once one had to run, the ones after it run again, since they build on it.

        Raises:
            CheckFailed: a stage found a problem.
            InputError: a stage refused its input.
            KeyboardInterrupt: a stage was interrupted.
        """
        fresh = False
        failed = []
        for number, stage in enumerate(stages, start=1):
            head = f"[{number}/{len(stages)}] {stage.title}"
            if not fresh and stage.name in self._record["stages"] and stage.makes.exists():
                say(f"{head}: done before")
                continue
            if not fresh:
                fresh = True
                for later in stages[number - 1 :]:
                    self._record["stages"].pop(later.name, None)
            command = [str(argument) for argument in stage.command()]
            say(f"\n{head}\n$ {shlex.join(['python', *command])}")
            started = time.monotonic()
            code = self._call(command)
            seconds = round(time.monotonic() - started, 1)
            if code != EXIT_OK:
                if not stage.optional or code == EXIT_INTERRUPTED:
                    self._stop(stage, code)
                failed.append(stage.name)
                say(f"({stage.title} failed with exit code {code}; going on without it)")
                continue
            say(f"({seconds:.0f} s)")
            self._record["stages"][stage.name] = {"seconds": seconds, "command": command}
            self._write(self._record)
        return failed

    def _call(self, command: list[str]) -> int:
        """Run to the end; an interrupt reaches the command too, which may have work to save."""
        output = sys.stderr if self._quiet else None
        sys.stdout.flush()
        process = subprocess.Popen([sys.executable, *command], env=self.env, stdout=output)
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue

    def _stop(self, stage: Stage, code: int) -> None:
        if code in (EXIT_INTERRUPTED, -2):
            say("interrupted; the same command goes on here")
            raise KeyboardInterrupt
        line = f"{stage.title} ended with exit code {code} (see above); mended, the same command goes on"
        raise InputError(line) if code == EXIT_BAD_INPUT else CheckFailed(line)

    def _write(self, record: dict[str, Any]) -> None:
        jsonl.write_atomically(self._path, (json.dumps(record, indent=2) + "\n").encode())
