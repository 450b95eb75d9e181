"""Make the tasks with Inspect, and look at what they are before anything is sampled."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinkerlab.errors import CheckFailed, InputError
from tinkerlab.evaluation.inspect import needs
from tinkerlab.evaluation.inspect.suites import PACKAGE, SuiteTask
from tinkerlab.runs import provenance

if TYPE_CHECKING:
    from inspect_ai import Task

# Scorers of Inspect's own that ask a model, which is the measured one where nobody names another.
MODEL_GRADERS = ("model_graded_qa", "model_graded_fact")
# Sandboxes that are none: what they run, they run as the user.
NO_SANDBOX = ("local",)


@dataclass(frozen=True)
class Made:
    """A task that is ready to run.

    Attributes:
        samples: that will run, epochs counted.
    """

    entry: SuiteTask
    task: Task
    samples: int


def known_names() -> list[str]:
    """The names of every task that inspect_evals registers."""
    from inspect_ai._util.entrypoints import ensure_entry_points
    from inspect_ai._util.registry import registry_find

    with _quiet():
        ensure_entry_points("inspect_evals")
    found = registry_find(lambda info: info.type == "task")
    return sorted(name for name in map(_name, found) if name.startswith(PACKAGE))


def make(
    entries: Sequence[SuiteTask], args: Mapping[str, Any], judge: str | None, limit: int | None
) -> list[Made]:
    """Make each task, which reads its data, and refuse what can't or must not be run.

    Args:
        args: task arguments of the user's; each goes to the tasks that have it.
        judge: Inspect's name of the judge model, if one was given.

    Raises:
        InputError: a task that can't be made, an argument that no task has, code outside a
            sandbox, a judge that nobody named.
        CheckFailed: its data can't be had.
    """
    unused = set(args)
    made = []
    for entry in entries:
        own = {**entry.args, **(dict.fromkeys(entry.judge, judge) if judge else {}), **args}
        takes = parameters(entry)
        own = {name: value for name, value in own.items() if name in takes}
        unused -= set(own)
        task = _make(entry, own)
        _require_sandbox(entry, task)
        _require_grader(entry, task, judge)
        if entry.file is not None:
            # Inspect identifies a task by its name: another text of the file is another task.
            task.version = f"{task.version}-{provenance.file_sha256(entry.file)[:12]}"
        count = min(len(task.dataset), limit or len(task.dataset))
        made.append(Made(entry, task, count * (task.epochs or 1)))
    if unused:
        raise InputError(f"-T {', '.join(sorted(unused))}: none of the tasks has such an argument")
    return made


def parameters(entry: SuiteTask) -> list[str]:
    """The names of a task's arguments.

    Raises:
        InputError: its file can't be loaded, or has no such task.
    """
    from inspect_ai import list_tasks
    from inspect_ai._eval.loader import load_file_tasks
    from inspect_ai._util.registry import registry_info, registry_lookup

    if entry.file is not None:
        try:
            load_file_tasks(entry.file.absolute())
        except Exception as error:  # the user's file may raise anything
            raise InputError(f"{entry.file}: {type(error).__name__}: {_line(error)}") from None
        names = [found.name for found in list_tasks(entry.file.name, root_dir=entry.file.parent)]
        if entry.short not in names:
            raise InputError(f"{entry.name}: no such @task; it has {', '.join(names) or 'none'}")
    found = registry_lookup("task", entry.short if entry.file else entry.name)
    if found is None:
        raise InputError(f"{entry.name}: Inspect does not register it")
    return list(registry_info(found).metadata["params"])


def _make(entry: SuiteTask, args: dict[str, Any]) -> Task:
    from inspect_ai._eval.loader import load_tasks

    try:
        with _quiet():
            (task,) = load_tasks([entry.name], args)
    except Exception as error:  # each task fetches its data in a way of its own
        line = f"{entry.name}: {type(error).__name__}: {_line(error)}"
        if entry.download:
            raise CheckFailed(
                f"{line}; its data come from {entry.download}: is it to be reached from here, and"
                " are you logged in where it is gated?"
            ) from None
        raise InputError(line) from None
    if not len(task.dataset):
        raise InputError(f"{entry.name}: its data set is empty")
    return task


def _require_sandbox(entry: SuiteTask, task: Task) -> None:
    """Refuse a task whose model-written code would run unisolated, or could not run at all.

    Raises:
        InputError: names the sandbox.
    """
    specs = [task.sandbox, *(sample.sandbox for sample in task.dataset)]
    for kind in sorted({spec.type for spec in specs if spec is not None}):
        if kind in NO_SANDBOX:
            raise InputError(
                f"{entry.name}: its sandbox is {kind!r}, which runs what the model writes on this"
                " machine as you; make it 'docker'"
            )
        fault = needs.docker_fault() if kind == "docker" else None
        if fault is not None:
            raise InputError(f"{entry.name} runs code in a Docker sandbox: {fault}")


def _require_grader(entry: SuiteTask, task: Task, judge: str | None) -> None:
    """Refuse a task in which each measured model would grade itself.

    Raises:
        InputError: asks for a judge.
    """
    from inspect_ai._util.registry import registry_params

    scorers = task.scorer if isinstance(task.scorer, list) else [task.scorer]
    for scorer in scorers:
        if judge or scorer is None:
            continue
        name = _name(scorer).rpartition("/")[2]
        if name in MODEL_GRADERS and not registry_params(scorer).get("model"):
            raise InputError(
                f"{entry.name}: {name} without a model of its own asks the measured model to grade"
                " itself; give --judge-model NAME"
            )


def _name(registered: Any) -> str:
    from inspect_ai._util.registry import registry_info

    return registry_info(registered).name


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what data libraries print while they load from the result on stdout."""
    import sys

    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        logging.disable(before)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
