"""From graded replies to the records and figures of a results folder. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tinkerlab.errors import CheckFailed
from tinkerlab.evaluation import passk, statistics
from tinkerlab.evaluation.attempts import Graded
from tinkerlab.grading.types import Grade

if TYPE_CHECKING:
    from tinkerlab.tasks import Task


def items(tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """The tasks as rows that ``load_tasks`` reads again, in the order of the records."""
    return [
        {
            "index": index,
            "prompt": [dict(message) for message in task.prompt],
            "answer": task.answer,
            "place": task.place,
            **{
                k: v for k, v in task.row.items() if k not in ("index", "prompt", "answer", "place")
            },
        }
        for index, task in enumerate(tasks)
    ]


def records(
    tasks: Sequence[Task],
    graded: Sequence[Graded],
    correct_at: float | None,
    sliced: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """The lines of base_model.jsonl or trained_model.jsonl.

    With several samples ``correct`` is their mean, ``completion`` the first of them, and
    ``samples`` holds all.

    Raises:
        CheckFailed: a score outside 0..1 without ``correct_at``.
    """
    made = []
    for index, (task, found) in enumerate(zip(tasks, graded, strict=True)):
        values = [value_of(grade, correct_at, task.place) for grade in found.grades]
        first, grade = found.replies[0], found.grades[0]
        record: dict[str, Any] = {
            "index": index,
            "question": task.question,
            "ground_truth": as_ground_truth(task.answer),
            "completion": first.text,
            "extracted_answer": grade.extracted,
            "correct": values[0] if len(values) == 1 else sum(map(float, values)) / len(values),
            "score": grade.score,
            "truncated": first.truncated,
            "place": task.place,
        }
        for name in ("error", "detail"):
            if getattr(grade, name) is not None:
                record[name] = getattr(grade, name)
        if sliced is not None:
            record["slice"] = sliced[index]
        if len(values) > 1:
            record["samples"] = [
                {
                    "completion": reply.text,
                    "extracted_answer": mark.extracted,
                    "correct": value,
                    "truncated": reply.truncated,
                    **({"error": mark.error} if mark.error else {}),
                }
                for reply, mark, value in zip(found.replies, found.grades, values, strict=True)
            ]
        made.append(record)
    return made


def value_of(grade: Grade, correct_at: float | None, place: str) -> bool | float:
    """What a grade counts as: right or wrong, or a share of right in 0..1.

    A grade that failed counts as wrong, whatever score the grader gives to failures.

    Raises:
        CheckFailed: the score is outside 0..1 and nothing says what of it is right.
    """
    if grade.error is not None:
        return False
    if correct_at is not None:
        return grade.score >= correct_at
    if grade.correct is not None:
        return grade.correct
    if not 0 <= grade.score <= 1:
        raise CheckFailed(
            f"{place}: the score {grade.score:g} is not in 0..1, so it can't be averaged to a share"
            " of right answers; say with --correct-at which scores count as correct (the replies"
            " are kept)"
        )
    return grade.score


def as_ground_truth(answer: Any) -> str | int | float:
    """A reference answer as the results contract stores it; "" where there is none."""
    if isinstance(answer, str | int | float) and not isinstance(answer, bool):
        return answer
    return "" if answer is None else json.dumps(answer, ensure_ascii=False, default=str)


def pass_at_k(
    graded: Mapping[str, Sequence[Graded]], correct_at: float | None, ks: Sequence[int]
) -> dict[str, dict[str, float]]:
    """pass@k of each model; a reply passes with a full score."""
    found = {}
    for key, items_ in graded.items():
        counts = [
            (
                len(item.grades),
                sum(float(value_of(grade, correct_at, "")) >= 1 for grade in item.grades),
            )
            for item in items_
        ]
        found[key] = passk.mean_pass_at_k(counts, ks)
    return found


def facts(graded: Mapping[str, Sequence[Graded]]) -> dict[str, dict[str, Any]]:
    """What must be known before a score is believed: replies cut off, graders that failed."""
    told = {}
    for key, found in graded.items():
        replies = [reply for item in found for reply in item.replies]
        errors = [grade.error for item in found for grade in item.grades if grade.error]
        told[key] = {
            "replies": len(replies),
            "truncated": sum(reply.truncated for reply in replies),
            "empty": sum(not reply.text for reply in replies),
            "mean_tokens": sum(reply.tokens for reply in replies) / len(replies),
            "grader_errors": len(errors),
            "first_error": errors[0] if errors else None,
        }
    return told


def single_score(found: Sequence[dict[str, Any]], seed: int) -> dict[str, Any]:
    """One model's mean score with its bootstrap interval over items."""
    values = [float(record["correct"]) for record in found]
    difference = statistics.paired_difference([0.0] * len(values), values, seed=seed)
    return {
        "score": difference.mean,
        "interval": {
            "low": difference.low,
            "high": difference.high,
            "confidence": difference.confidence,
            "method": "percentile bootstrap over items",
        },
    }
