"""What a task needs besides a model, and whether it is here. Asks no service and no hub."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import Any

from tinkerlab.errors import InputError
from tinkerlab.evaluation.inspect.suites import PACKAGE, SuiteTask

INSPECT = "inspect-ai==0.3.285"
INSPECT_EVALS = "inspect-evals==0.26.0"
DOCKER_SECONDS = 20


@dataclass(frozen=True)
class Need:
    """One thing that a task needs.

    Attributes:
        here: None where only trying can tell.
        remedy: what to do when it is not here.
    """

    what: str
    here: bool | None
    remedy: str = ""


def require_inspect(tasks: Sequence[SuiteTask] = ()) -> None:
    """Refuse to go on without Inspect, and without its suites where one of them is asked for.

    Raises:
        InputError: says what to install.
    """
    wanted = [("inspect_ai", INSPECT)]
    if any(task.name.startswith(PACKAGE) for task in tasks):
        wanted.append(("inspect_evals", INSPECT_EVALS))
    missing = [package for module, package in wanted if not _importable(module)]
    if missing:
        raise InputError(
            f"this needs {' and '.join(missing)}, which the other scripts do not: python -m pip"
            f" install {' '.join(missing)}"
        )


def installed() -> dict[str, str]:
    """Versions of Inspect's packages that are here."""
    found = {}
    for pin in (INSPECT, INSPECT_EVALS):
        name = pin.partition("==")[0]
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def of(task: SuiteTask, judge: str | None, args: Mapping[str, Any]) -> Iterator[Need]:
    """Everything that ``task`` needs.

    Args:
        judge: the judge model, if one was given.
        args: task arguments of the user's, among which another judge may be.
    """
    if task.download:
        kind = "" if "//" in task.download else " from the Hugging Face Hub"
        yield Need(f"download of {task.download}{kind}", None)
    for module, install in task.packages.items():
        yield Need(f"package {module}", _importable(module), install)
    if task.docker:
        yield docker_need()
    if task.wants_judge and not (task.judge and all(name in args for name in task.judge)):
        role = f" as {', '.join(task.judge_roles)}" if task.judge_roles else ""
        yield Need(f"judge model{role}", bool(judge), "give --judge-model NAME")


def docker_need() -> Need:
    why = docker_fault()
    return Need("docker, to run code that the model wrote", why is None, why or "")


def require(tasks: Sequence[SuiteTask], judge: str | None, args: Mapping[str, Any]) -> None:
    """Refuse tasks that lack something, all of it in one line.

    Raises:
        InputError: what is missing, and how to get it.
    """
    missing = [
        f"{task.short} needs {need.what} ({need.remedy})"
        for task in tasks
        for need in of(task, judge, args)
        if need.here is False
    ]
    if missing:
        raise InputError(
            f"{'; '.join(missing)}. Or name the tasks that you can run, each with --task"
        )


@cache
def docker_fault() -> str | None:
    """Why Inspect could not start a Docker sandbox here; None if it could."""
    docker = shutil.which("docker")
    if docker is None:
        return "install Docker"
    for arguments, why in (
        (["info"], "start the Docker daemon, or get the right to use it"),
        (["compose", "version"], "install Docker Compose"),
    ):
        try:
            done = subprocess.run(
                [docker, *arguments], capture_output=True, timeout=DOCKER_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return why
        if done.returncode:
            return why
    return None


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
