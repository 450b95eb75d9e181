"""Which tasks train and which are held out: decided by a prompt's content and the seed alone.

Equal prompts are one task, so no prompt is ever on both sides, and the side does not change
with the order of a file, with the number of tasks that are asked for, or with the machine.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, get_args

from tinkerlab.data.splits import MAX_TRAIN_ROWS, MAX_VAL_ROWS, VAL_FRACTION
from tinkerlab.data.words import counted, of_rows
from tinkerlab.errors import InputError
from tinkerlab.tasks.types import Task

Split = Literal["train", "test", "all"]
Say = Callable[[str], None]

# A generator never runs out, so a larger part may be held out, which is found sooner.
GENERATED_TEST_SHARE = 0.2
GENERATED_LIMITS = {"train": 2_000, "test": 200, "all": 200}
LIMITS = {"train": MAX_TRAIN_ROWS, "test": MAX_VAL_ROWS, "all": MAX_VAL_ROWS}
# So many repeats in a row mean that a source has nothing new to give.
EXHAUSTED = 2_000


def require_split(split: str) -> None:
    """Raises:
    InputError: no such split.
    """
    if split not in get_args(Split):
        raise InputError(f"no split {split!r} (known: {', '.join(get_args(Split))})")


def of_known(
    tasks: Sequence[Task], split: str, limit: int | None, seed: int, say: Say
) -> list[Task]:
    """The tasks of one side of a finite source, in the source's order.

    ``test`` is a tenth of ``train`` (at least one task, at most 2,000).

    Raises:
        InputError: too few tasks to give both sides one.
    """
    unique = _unique(tasks, say)
    if split != "all":
        ordered = sorted(unique, key=lambda task: _rank(task, seed))
        held_out = max(1, math.floor(len(unique) * VAL_FRACTION / (1 + VAL_FRACTION)))
        held_out = min(held_out, MAX_VAL_ROWS)
        if len(unique) < 2:
            raise InputError(
                f"{counted(len(unique), 'different prompt')} can't be split into training and"
                " evaluation: give more, or a file for each"
            )
        chosen = ordered[:held_out] if split == "test" else ordered[held_out:]
    else:
        chosen = sorted(unique, key=lambda task: _rank(task, seed))
    most = LIMITS[split] if limit is None else limit
    if len(chosen) > most:
        what = "the limit, raise it explicitly" if limit is None else "as asked for"
        say(f"{of_rows(most, len(chosen))} of split {split} used ({what})")
    kept = {id(task) for task in chosen[:most]}
    return [task for task in unique if id(task) in kept]


def of_stream(
    tasks: Iterable[Task], split: str, limit: int, test_share: float, seed: int, say: Say
) -> list[Task]:
    """The first ``limit`` different tasks of one side of a source that is read as it comes.

    Args:
        test_share: the part of all prompts that is held out.
    """
    found: list[Task] = []
    seen: set[str] = set()
    repeats = 0
    for task in tasks:
        if task.key in seen:
            repeats += 1
            if repeats >= EXHAUSTED:
                break
            continue
        repeats = 0
        seen.add(task.key)
        if split == "all" or (_share(task, seed) < test_share) == (split == "test"):
            found.append(task)
            if len(found) >= limit:
                return found
    say(f"the source has only {counted(len(found), 'different prompt')} for split {split}")
    return found


def without_shared(
    train: Sequence[Task], held_out: Sequence[Task], say: Say = lambda note: None
) -> list[Task]:
    """``train`` without the prompts that ``held_out`` has, for two sources of the user's own."""
    forbidden = {task.key for task in held_out}
    kept = [task for task in train if task.key not in forbidden]
    if len(kept) < len(train):
        say(f"{of_rows(len(train) - len(kept), len(train))} left out: they are held out")
    return kept


def _unique(tasks: Sequence[Task], say: Say) -> list[Task]:
    first: dict[str, Task] = {}
    contradicting = []
    for task in tasks:
        twin = first.setdefault(task.key, task)
        if twin.answer != task.answer:
            contradicting.append(f"{task.place} (first {twin.place})")
    if len(first) < len(tasks):
        say(f"{of_rows(len(tasks) - len(first), len(tasks))} left out: their prompts are repeated")
    if contradicting:
        say(
            f"{counted(len(contradicting), 'repeated prompt')} with another answer, of which the"
            f" first is kept: {', '.join(contradicting[:5])}"
        )
    return list(first.values())


def _rank(task: Task, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}:{task.key}".encode()).digest()


def _share(task: Task, seed: int) -> float:
    """A number in [0, 1) that is as good as random, and always the same for this prompt."""
    return int.from_bytes(_rank(task, seed)[:8], "big") / 2**64
