"""``rollouts.jsonl``: what the model said and what it got for it, a few completions a step.

Bounded on purpose: whole groups first to last until the number of completions of a step is
reached, each text cut. All of them are in the averages of metrics.jsonl.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tinkerlab.runs import jsonl
from tinkerlab.training.rl.rollouts import Completion, Group

FILE_NAME = "rollouts.jsonl"
MAX_CHARACTERS = 4000


class RolloutLog:
    """Appends to a run's ``rollouts.jsonl``.

    Args:
        per_step: completions kept of each step and each evaluation; 0 keeps none.
    """

    def __init__(self, folder: Path, per_step: int) -> None:
        self._path = folder / FILE_NAME
        self._per_step = per_step

    def write(self, step: int, split: str, groups: Sequence[Group]) -> None:
        """Keep some of the groups of ``step``.

        Args:
            split: ``train``, or ``test`` for an evaluation.
        """
        for row in self._rows(step, split, groups):
            jsonl.append(self._path, row)

    def _rows(self, step: int, split: str, groups: Sequence[Group]) -> Iterator[dict[str, Any]]:
        kept = 0
        for group_index, group in enumerate(groups):
            for index, completion in enumerate(group.completions):
                if kept >= self._per_step:
                    return
                kept += 1
                yield {
                    "step": step,
                    "split": split,
                    "group": group_index,
                    "sample": index,
                    "place": group.task.place,
                    **document(group, completion),
                }

    def keep_before(self, step: int) -> None:
        """Drop what belongs to ``step`` and later, which will be done again."""
        if not self._path.exists():
            return
        jsonl.repair_tail(self._path)
        rows = jsonl.read(self._path)
        kept = [row for row in rows if row.get("step", -1) < step]
        if len(kept) != len(rows):
            jsonl.rewrite(self._path, kept)


def document(group: Group, completion: Completion) -> dict[str, Any]:
    """One completion with its grade, as JSON."""
    grade = completion.grade
    return {
        "prompt": cut(str(group.task.prompt[-1]["content"])),
        "answer": None if group.task.answer is None else cut(str(group.task.answer)),
        "completion": cut(completion.text),
        "reward": grade.score,
        "correct": grade.correct,
        "extracted": None if grade.extracted is None else cut(grade.extracted),
        "error": grade.error,
        "truncated": completion.truncated,
        "tokens": len(completion.tokens),
    }


def cut(text: str, limit: int = MAX_CHARACTERS) -> str:
    """``text``, or its beginning and how much was left out."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]} [... {len(text) - limit} characters more]"


def quoted(text: str) -> str:
    """``text`` for the middle of a one-line message."""
    return repr(cut(text, 200))
