"""Refuse rows that a grader can't grade, by line, before anything is sampled for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tinkerlab.errors import InputError
from tinkerlab.grading.types import Grader

LISTED = 5


class AnsweredRow(Protocol):
    """The parts of a task that decide (``tinkerlab.tasks.Task`` has them)."""

    @property
    def answer(self) -> Any: ...
    @property
    def row(self) -> Any: ...
    @property
    def place(self) -> str: ...


def require_usable(grader: Grader, rows: Sequence[AnsweredRow]) -> None:
    """Check every row against what the grader needs: an answer, of its kind, and its fields.

    A grader says so by ``needs_answer`` and ``refuses(answer, row)``; one without these takes
    every row.

    Raises:
        InputError: the first rows that it can't grade, each with its place, in one line.
    """
    needs_answer = getattr(grader, "needs_answer", False)
    refuses = getattr(grader, "refuses", None)
    found = []
    for row in rows:
        if needs_answer and _is_missing(row.answer):
            found.append(f"{row.place}: no answer, which {grader.name} compares with")
        elif refuses is not None and (reason := refuses(row.answer, row.row)):
            found.append(f"{row.place}: {reason}")
    if found:
        more = f"; and {len(found) - LISTED} more" if len(found) > LISTED else ""
        raise InputError(
            f"{len(found)} of {len(rows)} prompts can't be graded by {grader.name}:"
            f" {'; '.join(found[:LISTED])}{more}; mend the rows or choose another grader"
        )


def _is_missing(answer: Any) -> bool:
    return answer is None or answer == [] or (isinstance(answer, str) and not answer.strip())
