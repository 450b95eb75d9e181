"""The folder of one experiment: a plan, a config and notes, tied to the state of the code."""

from __future__ import annotations

import datetime
import hashlib
import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from tinkerlab.errors import InputError
from tinkerlab.folders import make_folder
from tinkerlab.runs import jsonl

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = ROOT / "templates"
Method = Literal["sft", "rl", "dpo", "distill"]
METHODS: tuple[Method, ...] = get_args(Method)
_TRAINERS: dict[Method, tuple[str, str]] = {
    "sft": ("sl_trainer.py", "training-config.yaml"),
    "rl": ("rl_trainer.py", "rl-config.yaml"),
    "dpo": ("dpo_trainer.py", "dpo-config.yaml"),
    "distill": ("distill_trainer.py", "distill-config.yaml"),
}
_LONGEST_NAME = 80  # with the date it is a run_name, which has 100 at most


@dataclass(frozen=True)
class WorkingTree:
    """The code's state in a git repository.

    Attributes:
        commit: None before the first one.
        changed, untracked: numbers of files.
        diff_sha256: of what ``git diff HEAD`` prints, to recognise the changes again; None
            without any. Untracked files are not part of it.
    """

    commit: str | None
    changed: int
    untracked: int
    diff_sha256: str | None

    @property
    def is_dirty(self) -> bool:
        return bool(self.changed or self.untracked)

    def told(self) -> str:
        """The uncommitted changes in one line."""
        if not self.is_dirty:
            return "none"
        parts = [f"{self.changed} changed and {self.untracked} untracked files"]
        if self.diff_sha256:
            parts.append(f"SHA-256 of git diff HEAD: {self.diff_sha256}")
        return "; ".join(parts)


@dataclass(frozen=True)
class Experiment:
    """A folder that was made."""

    folder: Path
    method: Method
    run_name: str
    tree: WorkingTree | None

    @property
    def log_path(self) -> Path:
        return Path("runs") / self.run_name

    @property
    def command(self) -> str:
        """What trains it."""
        return _call(_TRAINERS[self.method][0], "--config", str(self.folder / "config.yaml"))

    def next_steps(self) -> list[tuple[str, str]]:
        """(what to do, its command) in order; "" where it is no command."""
        rehearsed = f"{_call('rehearse.py', 'run', '--')} {self.command}"
        add = shlex.join(["git", "add", str(self.folder)])
        watch = _call("watch_run.py", str(self.log_path), "--until-problem")
        return [
            (f"fill in {self.folder / 'plan.md'}, and the hypothesis in notes.md", ""),
            ("set data and model in config.yaml, then check them", f"{self.command} --dry-run"),
            ("rehearse a few steps without a key", f"{rehearsed} num_steps=4 run_name=rehearsal"),
            ("commit", f"{add} && git commit -m 'Experiment {self.run_name}'"),
            ("train", self.command),
            ("watch it meanwhile", watch),
            ("write result and decision into notes.md", ""),
        ]


def _call(script: str, *arguments: str) -> str:
    """A command of this project, its path short where the project is at hand."""
    path = ROOT / "scripts" / script
    here = Path.cwd()
    shown = path.relative_to(here) if path.is_relative_to(here) else path
    return shlex.join(["python", str(shown), *arguments])


def create(parent: Path, name: str, method: Method, question: str | None) -> Experiment:
    """Make ``<parent>/<date>-<name>/`` with plan.md, config.yaml and notes.md.

    Raises:
        InputError: a name that is no folder's name, or the folder exists.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) or len(name) > _LONGEST_NAME:
        raise InputError(
            f"NAME {name!r}: letters, digits, '.', '_' and '-' only, {_LONGEST_NAME} at most"
        )
    tree = working_tree(Path.cwd())
    run_name = f"{datetime.date.today().isoformat()}-{name}"
    folder = parent / run_name
    if folder.exists():
        raise InputError(f"{folder} exists; nothing was changed, choose another NAME")
    make_folder(folder, "--output")
    experiment = Experiment(folder, method, run_name, tree)
    values = {
        "name": run_name,
        "date": datetime.date.today().isoformat(),
        "method": method,
        "question": question or "*The question that this answers, in one sentence.*",
        "commit": _commit(tree),
        "changes": tree.told() if tree else "unknown",
        "config": "config.yaml",
        "log_path": str(experiment.log_path),
        "command": experiment.command,
    }
    config = _config(method, run_name)
    texts = {
        "plan.md": fill(TEMPLATES / "plan.md", values),
        "config.yaml": config,
        "notes.md": fill(TEMPLATES / "experiment.md", values),
    }
    for file, text in texts.items():
        jsonl.write_atomically(folder / file, text.encode())
    return experiment


def fill(template: Path, values: Mapping[str, str]) -> str:
    """The page with a value for each ``{{ name }}``; a question may hold anything, once.

    Raises:
        KeyError: the template asks for a value that is not there.
    """
    text = template.read_text(encoding="utf-8")
    return re.sub(r"\{\{ (\w+) \}\}", lambda found: values[found[1]], text)


def _config(method: Method, run_name: str) -> str:
    """The method's template, whose run is named after the experiment."""
    template = TEMPLATES / _TRAINERS[method][1]
    text = template.read_text(encoding="utf-8")
    text, count = re.subn(
        r"^run_name: *\S+ *(?=#|$)", f"run_name: {run_name} ", text, flags=re.MULTILINE
    )
    assert count == 1, f"{template}: no run_name"
    return text


def _commit(tree: WorkingTree | None) -> str:
    if tree is None:
        return "not in a git repository"
    return tree.commit or "none yet"


def working_tree(folder: Path) -> WorkingTree | None:
    """The state of the repository around ``folder``; None outside one, or without git."""
    try:
        status = _git(folder, "status", "--porcelain").decode("utf-8", "replace")
    except (OSError, subprocess.SubprocessError):
        return None
    lines = status.splitlines()
    untracked = sum(line.startswith("??") for line in lines)
    try:
        commit = _git(folder, "rev-parse", "--verify", "HEAD").decode().strip()
        diff = _git(folder, "diff", "HEAD")
    except (OSError, subprocess.SubprocessError):
        commit, diff = None, b""
    return WorkingTree(
        commit=commit,
        changed=len(lines) - untracked,
        untracked=untracked,
        diff_sha256=hashlib.sha256(diff).hexdigest() if diff else None,
    )


def _git(folder: Path, *arguments: str) -> bytes:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, check=True, timeout=30
    )
    return done.stdout
