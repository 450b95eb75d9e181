"""What the teacher is asked: the prompts without the held-out ones, under a system prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tinkerlab.data.duplicates import Pair, find_near
from tinkerlab.data.reading import Row
from tinkerlab.errors import InputError
from tinkerlab.tasks import Task

Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class WithoutHeldOut:
    """The prompts that may be trained on.

    Attributes:
        tasks: those that stand in no held-out file.
        same: left out, because a held-out prompt is the same but for white space and case.
        near: pairs of a prompt and the held-out prompt that it nearly repeats.
        near_left_out: whether those are left out, too.
    """

    tasks: list[Task]
    same: list[Task]
    near: list[Pair]
    near_left_out: bool = False


def without_held_out(
    tasks: Sequence[Task], held_out: Sequence[Task], *, drop_near: bool = False
) -> WithoutHeldOut:
    """Leave out the prompts that ``held_out`` has; system messages are not compared.

    Near repeats (``data.duplicates.find_near``) are found, and kept unless ``drop_near``:
    prompts that are made from one template are near one another without being the same
    question.
    """
    forbidden = {_spoken(task).key for task in held_out}
    same = [task for task in tasks if _spoken(task).key in forbidden]
    rest = [task for task in tasks if _spoken(task).key not in forbidden]
    near = find_near(_rows(held_out), _rows(rest))
    if drop_near:
        dropped = {pair.val.index for pair in near}
        rest = [task for index, task in enumerate(rest) if index not in dropped]
    return WithoutHeldOut(rest, same, near, drop_near)


def _spoken(task: Task) -> Task:
    return replace(task, prompt=without_system(task.prompt))


def _rows(tasks: Sequence[Task]) -> list[Row]:
    return [
        Row(index, 0, without_system(task.prompt), file=task.place)
        for index, task in enumerate(tasks)
    ]


def without_system(messages: Sequence[Any]) -> Messages:
    """The messages without those of the system."""
    return [dict(message) for message in messages if message["role"] != "system"]


def under(system_prompt: str | None, tasks: Sequence[Task]) -> list[Task]:
    """The tasks as the teacher is asked them: ``system_prompt`` before each.

    Raises:
        InputError: a prompt has a system message of its own, so the teacher would not see
            ``system_prompt`` there.
    """
    if system_prompt is None:
        return list(tasks)
    own = [task for task in tasks if any(m["role"] == "system" for m in task.prompt)]
    if own:
        raise InputError(
            f"{own[0].place}: has a system message of its own ({len(own)} of {len(tasks)} prompts"
            " have), so the system prompt can't be put before it; remove them from the prompts,"
            " or give no system prompt"
        )
    system = {"role": "system", "content": system_prompt}
    return [replace(task, prompt=[system, *task.prompt]) for task in tasks]


def require_system(tasks: Sequence[Task]) -> None:
    """Refuse to drop a system prompt that nobody gave: the rows would distil nothing.

    Raises:
        InputError: no prompt has a system message.
    """
    if not any(message["role"] == "system" for task in tasks for message in task.prompt):
        raise InputError(
            "--drop-system-prompt: the teacher has no system prompt to drop; give it with"
            " --system-prompt or --system-prompt-file"
        )
