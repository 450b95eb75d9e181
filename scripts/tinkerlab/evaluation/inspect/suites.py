"""Which tasks a suite runs and what each is like: ``templates/inspect-suites.yaml``, checked."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tinkerlab.errors import InputError

DEFAULT_FILE = Path(__file__).resolve().parents[4] / "templates" / "inspect-suites.yaml"
PACKAGE = "inspect_evals/"
UNKNOWN_PROMPT_TOKENS = 300


@dataclass(frozen=True)
class SuiteTask:
    """One Inspect task.

    Attributes:
        name: as Inspect takes it: ``inspect_evals/NAME`` or ``FILE.py@NAME``.
        samples: of its default setting; None when unknown.
        epochs: how often it repeats each sample.
        requests, prompt_tokens: of the model for one sample; rough.
        max_tokens: of a reply, where the task itself sets it.
        download: what it fetches on first use.
        packages: module -> how to install it.
        docker: replies are run as code, in Inspect's Docker sandbox.
        tools: the model is given tools, so the renderer must know how to declare them.
        judge: task arguments that take the name of the model that judges.
        judge_roles: Inspect's roles that the judge model plays.
        args: task arguments that are always given.
        value: which of several values of the scorer is the result.
        metric: Inspect's own mean of that value.
    """

    name: str
    about: str = ""
    samples: int | None = None
    epochs: int = 1
    requests: int = 1
    prompt_tokens: int = UNKNOWN_PROMPT_TOKENS
    max_tokens: int | None = None
    download: str | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    docker: bool = False
    tools: bool = False
    judge: tuple[str, ...] = ()
    judge_roles: tuple[str, ...] = ()
    args: Mapping[str, Any] = field(default_factory=dict)
    value: str | None = None
    metric: str | None = None

    @property
    def short(self) -> str:
        """The task's own name, which also names its folder."""
        return self.name.rpartition("@" if self.file else "/")[2]

    @property
    def file(self) -> Path | None:
        """The user's file that defines it, if it is none of the package's."""
        path, at, _ = self.name.rpartition("@")
        return Path(path).expanduser() if at and path.endswith(".py") else None

    @property
    def wants_judge(self) -> bool:
        return bool(self.judge or self.judge_roles)


@dataclass(frozen=True)
class Suites:
    """The file: suites by name, and what is known of each task."""

    suites: Mapping[str, tuple[str, ...]]
    tasks: Mapping[str, SuiteTask]


def read(file: Path = DEFAULT_FILE) -> Suites:
    """Read a file of suites.

    Raises:
        InputError: not such a file, an unknown key, a value of the wrong type, or a suite with a task that it lacks.
    """
    from tinkerlab.training.config import read_yaml

    document = read_yaml(file)
    rows, named = document.get("tasks"), document.get("suites")
    if not isinstance(rows, dict) or not isinstance(named, dict):
        raise InputError(f"{file}: needs suites and tasks; copy templates/inspect-suites.yaml")
    tasks = {str(name): _task(file, str(name), row) for name, row in rows.items()}
    suites = {}
    for suite, names in named.items():
        if not isinstance(names, list):
            raise InputError(f"{file}: suite {suite}: must be a list of tasks, not {names!r}")
        missing = [name for name in names if name not in tasks]
        if not names or missing:
            raise InputError(f"{file}: suite {suite}: {missing or 'it'} has no entry under tasks")
        suites[str(suite)] = tuple(names)
    return Suites(suites, tasks)


def _task(file: Path, name: str, row: Any) -> SuiteTask:
    from pydantic import TypeAdapter, ValidationError

    known = {entry.name for entry in fields(SuiteTask)} - {"name"}
    row = {} if row is None else row
    if not isinstance(row, dict):
        raise InputError(f"{file}: task {name}: must be 'key: value' lines, not {row!r}")
    for key in row:
        if key not in known:
            raise InputError(f"{file}: task {name}: no key {key!r}{_nearest(str(key), known)}")
    full = name if "/" in name or "@" in name else PACKAGE + name
    try:
        return TypeAdapter(SuiteTask).validate_python({"name": full, **row})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise InputError(
            f"{file}: task {name}: {key}: {first['msg']}, not {first['input']!r}"
        ) from None


def choose(suites: Suites, suite: str | None, names: Sequence[str]) -> list[SuiteTask]:
    """The tasks of a suite and those that are named besides; each once.

    Raises:
        InputError: nothing is named, no such suite, no such file, or two with one name.
    """
    if suite is not None and suite not in suites.suites:
        raise InputError(f"no suite {suite!r}{_nearest(suite, suites.suites)}; --list shows them")
    chosen = [suites.tasks[name] for name in (suites.suites[suite] if suite else ())]
    chosen += [_named(suites, name) for name in names]
    if not chosen:
        raise InputError("say what is run: --suite NAME, --task NAME, or both; --list shows them")
    once = list({task.name: task for task in chosen}.values())
    by_folder: dict[str, str] = {}
    for task in once:
        other = by_folder.setdefault(task.short, task.name)
        if other != task.name:
            raise InputError(
                f"{other} and {task.name} would both be written to {task.short}/; run one of them"
                " with an --output of its own"
            )
    return once


def _named(suites: Suites, name: str) -> SuiteTask:
    short = name.removeprefix(PACKAGE)
    if short in suites.tasks:
        return suites.tasks[short]
    if name.endswith(".py"):
        raise InputError(f"--task {name}: say which of its tasks: {name}@NAME")
    task = SuiteTask(name=name if "/" in name or "@" in name else PACKAGE + name)
    if task.file is not None and not task.file.is_file():
        raise InputError(f"--task {name}: no file {task.file}")
    return replace(task, name=f"{task.file}@{task.short}") if task.file else task


def require_known(tasks: Sequence[SuiteTask], known: Sequence[str]) -> None:
    """Refuse names that the installed packages do not register.

    Raises:
        InputError: names the nearest.
    """
    for task in tasks:
        if task.file is None and task.name not in known:
            names = [name.removeprefix(PACKAGE) for name in known]
            near = _nearest(task.name.removeprefix(PACKAGE), names)
            raise InputError(f"no Inspect task {task.name!r}{near}")


def _nearest(name: str, known: Any) -> str:
    found = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    if found:
        return f"; did you mean {' or '.join(found)}?"
    return f"; known: {', '.join(sorted(known))}" if len(known) < 30 else ""
