"""Sessions on the disk: what began, with which settings, how far it is.

tinker-sessions/<id>/
    session.json      what init was told; saved names; state
    config.yaml       the trainer's config, as it would be used without this server
    reward.py         reward sessions: the function, and reward_validation.json its trial
    run/              the trainer's folder: metrics.jsonl, checkpoints.jsonl, ...
    *.log             init, training, sampling, reward, evaluation
    heartbeat.json    time, step and what is going on; written while something is
    processes.json    pids that the server started last
    results/ report.html exported/   what finish and export leave
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from tinkerlab.mcp.errors import Refusal
from tinkerlab.mcp.workspace import SESSIONS
from tinkerlab.runs import checkpoints, jsonl, metrics

Method = Literal["sft", "grpo"]
TRAINERS: dict[str, str] = {"sft": "sl_trainer.py", "grpo": "rl_trainer.py"}
SESSION_FILE = "session.json"
HEARTBEAT_FILE = "heartbeat.json"
PROCESSES_FILE = "processes.json"


@dataclass
class Session:
    """One fine-tune.

    Attributes:
        rehearse: whether it trains on the server's rehearsal.
        saved: names that ``save`` gave -> checkpoint (step, state_path, sampler_path).
        finished: ``finish`` wrote its results.
        kept: the checkpoint that was kept because the reward had passed the threshold.
    """

    id: str
    folder: Path
    method: Method
    base_model: str
    rehearse: bool
    created: str
    total_steps: int
    saved: dict[str, dict[str, Any]] = field(default_factory=dict)
    kept: dict[str, Any] | None = None
    finished: bool = False

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def config(self) -> Path:
        return self.folder / "config.yaml"

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def write(self) -> None:
        """Save what this object holds."""
        row = {k: v for k, v in asdict(self).items() if k != "folder"}
        content = json.dumps(row, indent=2).encode() + b"\n"
        jsonl.write_atomically(self.folder / SESSION_FILE, content)

    def beat(self, doing: str) -> None:
        """Tell those who look from outside that the session lives, and what it does."""
        row = {"time": time.time(), "doing": doing, "step": self.steps}
        jsonl.write_atomically(self.folder / HEARTBEAT_FILE, json.dumps(row).encode() + b"\n")

    def note_processes(self, pids: list[int]) -> None:
        """Keep for the next server which processes work on the session."""
        jsonl.write_atomically(self.folder / PROCESSES_FILE, json.dumps(pids).encode() + b"\n")

    @property
    def processes(self) -> list[int]:
        """What ``note_processes`` kept last; they may have ended."""
        try:
            found = json.loads((self.folder / PROCESSES_FILE).read_text(encoding="utf-8"))
            return [pid for pid in found if type(pid) is int and pid > 0]
        except (OSError, ValueError, TypeError):
            return []

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The run's metrics; empty before its first step."""
        return metrics.read(self.run) if self.run.is_dir() else []

    @property
    def checkpoints(self) -> list[dict[str, Any]]:
        return checkpoints.read_rows(self.run) if self.run.is_dir() else []

    @property
    def steps(self) -> int:
        """Steps that the newest checkpoint holds: where training would go on."""
        found = self.checkpoints
        return int(found[-1]["step"]) if found else 0


class Sessions:
    """The sessions of one workspace."""

    def __init__(self, workspace: Path) -> None:
        self.folder = workspace / SESSIONS

    def __iter__(self) -> Iterator[Session]:
        for file in sorted(self.folder.glob(f"*/{SESSION_FILE}")):
            yield _read(file)

    def get(self, session_id: str) -> Session:
        """The session of this id.

        Raises:
            Refusal: there is none.
        """
        file = self.folder / session_id / SESSION_FILE
        if not re.fullmatch(r"[\w-]{1,100}", session_id) or not file.is_file():
            known = ", ".join(session.id for session in self) or "none yet"
            raise Refusal(
                "unknown_session", f"there is no session {session_id!r}", f"sessions: {known}"
            )
        return _read(file)

    def new_folder(self, name: str) -> tuple[str, Path]:
        """An id made of ``name`` and the time, and its empty folder."""
        words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "session"
        stamp = time.strftime("%Y%m%d-%H%M%S")
        for extra in ("", *(f"-{n}" for n in range(2, 1000))):
            session_id = f"{words}-{stamp}{extra}"
            folder = self.folder / session_id
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                continue
            return session_id, folder
        raise AssertionError("a thousand sessions in one second")


def _read(file: Path) -> Session:
    try:
        row = json.loads(file.read_text(encoding="utf-8"))
        return Session(folder=file.parent, **row)
    except (ValueError, TypeError) as error:
        raise Refusal(
            "bad_input", f"{file} is damaged ({error})", "move its folder away; its run is intact"
        ) from None
