"""Which of a teacher's replies become training rows, and why the others do not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tinkerlab.data.duplicates import exact_key
from tinkerlab.data.messages import RowError, check_text
from tinkerlab.data.reading import Row
from tinkerlab.evaluation.attempts import Graded, Reply
from tinkerlab.evaluation.offline_records import value_of
from tinkerlab.grading.types import Grade
from tinkerlab.tasks import Task
from tinkerlab.teacher.prompts import without_system

Keep = Literal["right", "all"]

# A quotation of so many words of the system prompt in a row is hardly chance.
QUOTED_WORDS = 8
_THINKING = re.compile(r"</?think(ing)?>")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Filters:
    """What a reply must be to become a row.

    Attributes:
        keep: ``right`` needs a full grade; ``all`` lets the grader only write its score down.
        correct_at: scores from here on are right; None leaves it to the grader.
        per_prompt: at most so many rows of one prompt, the first that pass; None for any number.
        min_chars, max_chars: length of the reply's text; None for no limit.
        keep_truncated: replies that ``max_tokens`` ended are kept, too.
        drop_system_prompt: the rows are without the system messages that the teacher had.
    """

    keep: Keep = "all"
    correct_at: float | None = None
    per_prompt: int | None = None
    min_chars: int | None = None
    max_chars: int | None = None
    keep_truncated: bool = False
    drop_system_prompt: bool = False


@dataclass
class Selected:
    """The rows, and what became of the rest.

    Attributes:
        rows: ``{"messages", "teacher"}``, in the order of the prompts.
        refused: ``{"prompt", "reply", "reason", "place", "sample"}`` of every other reply.
        without_row: prompts of which no reply was kept.
        quoting: places of kept replies that quote a system prompt which their row lacks.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    refused: list[dict[str, Any]] = field(default_factory=list)
    without_row: int = 0
    quoting: list[str] = field(default_factory=list)

    @property
    def dropped(self) -> dict[str, int]:
        """How many replies were refused for each reason, the commonest first."""
        return dict(Counter(row["reason"] for row in self.refused).most_common())


def select(
    tasks: Sequence[Task],
    graded: Sequence[Graded],
    filters: Filters,
    teacher: str,
    *,
    has_grader: bool,
) -> Selected:
    """Go through every reply in the order of the prompts; the first reason against it counts.

    Args:
        tasks: as the teacher was asked them, system prompt included.
        teacher: the model's name, for the rows.
        has_grader: whether the grades mean anything.

    Raises:
        CheckFailed: ``keep`` is right and a score is not in 0..1, without ``correct_at``.
    """
    found = Selected()
    seen: set[str] = set()
    for task, item in zip(tasks, graded, strict=True):
        kept = 0
        system = " ".join(str(m["content"]) for m in task.prompt if m["role"] == "system")
        for sample, (reply, grade) in enumerate(zip(item.replies, item.grades, strict=True)):
            messages = _messages(task, reply, filters)
            key = exact_key(Row(0, 0, messages))
            reason = _against(reply, grade, filters, task.place) or (
                "duplicate" if key in seen else None
            )
            if reason is None and filters.per_prompt is not None and kept >= filters.per_prompt:
                reason = f"more than {filters.per_prompt} of one prompt"
            if reason is not None:
                refusal = {"prompt": task.question, "reply": reply.text, "reason": reason}
                found.refused.append({**refusal, "place": task.place, "sample": sample})
                continue
            seen.add(key)
            kept += 1
            about = {"model": teacher, "prompt": task.place, "sample": sample}
            if has_grader:
                about["score"] = grade.score
            found.rows.append({"messages": messages, "teacher": about})
            if filters.drop_system_prompt and quotes(system, reply.text):
                found.quoting.append(f"{task.place} sample {sample}")
        found.without_row += not kept
    return found


def _messages(task: Task, reply: Reply, filters: Filters) -> list[dict[str, Any]]:
    asked = without_system(task.prompt) if filters.drop_system_prompt else task.prompt
    return [*map(dict, asked), {"role": "assistant", "content": reply.text}]


def _against(reply: Reply, grade: Grade, filters: Filters, place: str) -> str | None:
    """Why this reply, by itself, is no row."""
    if reply.truncated and not filters.keep_truncated:
        return "truncated"
    if not reply.text.strip():
        return "empty"
    if not _is_usable(reply.text):
        return "characters that the trainer refuses"
    if _THINKING.search(reply.text):
        return "thinking tags in the text"
    if grade.error is not None:
        return "the grader failed"
    if filters.keep == "right" and float(value_of(grade, filters.correct_at, place)) < 1:
        return "wrong"
    if filters.min_chars is not None and len(reply.text) < filters.min_chars:
        return f"under {filters.min_chars} characters"
    if filters.max_chars is not None and len(reply.text) > filters.max_chars:
        return f"over {filters.max_chars} characters"
    return None


def _is_usable(text: str) -> bool:
    try:
        check_text(text, "reply")
    except RowError:
        return False
    return True


def quotes(system_prompt: str, reply: str) -> bool:
    """Whether a reply repeats ``QUOTED_WORDS`` words of the system prompt in a row."""
    told, said = (_WORD.findall(text.casefold()) for text in (system_prompt, reply))
    runs = set(_runs(told))
    return any(run in runs for run in _runs(said))


def _runs(words: list[str]) -> list[tuple[str, ...]]:
    return list(zip(*(words[start:] for start in range(QUOTED_WORDS)), strict=False))
