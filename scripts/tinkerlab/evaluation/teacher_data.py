"""Training rows from a teacher's replies: sampled, filtered, and counted.

The replies are kept in a log beside the output as they come, so that an interrupted command
samples nothing twice and other filters cost nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinkerlab.errors import CheckFailed, InputError
from tinkerlab.evaluation import attempts, hashing
from tinkerlab.evaluation.attempts import Graded, Sampling
from tinkerlab.evaluation.clients import open_clients
from tinkerlab.evaluation.sft import check_checkpoint_path
from tinkerlab.folders import require_writable
from tinkerlab.grading import Grader
from tinkerlab.grading.types import Attempt, Grade
from tinkerlab.runs import jsonl
from tinkerlab.tasks import Task


@dataclass(frozen=True)
class Filters:
    """Which replies become rows.

    Attributes:
        per_prompt: at most so many of one prompt, the first that pass.
        keep_at: grades from here on pass; None keeps all (there is no grader).
        keep_cut: also replies that ``max_tokens`` ended.
    """

    per_prompt: int = 1
    keep_at: float | None = None
    keep_cut: bool = False


@dataclass(frozen=True)
class TeacherData:
    """Rows, and why other replies are not among them."""

    rows: list[dict[str, Any]]
    sampled: int
    dropped: dict[str, int]
    prompts_without_row: int
    mean_tokens: float


class Ungraded:
    """Passes everything: for when no grader was asked for."""

    name = "none"

    def grade(self, attempts: Sequence[Attempt]) -> list[Grade]:
        return [Grade(1.0) for _ in attempts]

    def close(self) -> None:
        """Nothing was started."""


def sample(
    teacher: str,
    tasks: Sequence[Task],
    sampling: Sampling,
    log_file: Path,
    *,
    system_prompt: str | None,
    renderer: str,
    grader: Grader,
    grader_key: str,
    in_flight: int,
    progress: Callable[[int, int], None],
) -> list[Graded]:
    """The teacher's graded replies, in the order of ``tasks``.

    Args:
        teacher: a base model, or a sampler checkpoint's path.

    Raises:
        InputError: an unusable model, service, or request.
        CheckFailed: the service failed; what was sampled is in ``log_file``.
    """
    import tinker

    from tinkerlab import service
    from tinkerlab.data import load_tokenizer, resolve_renderer

    if teacher.startswith("tinker://"):
        check_checkpoint_path(teacher)
    require_writable(log_file.parent)
    client = open_clients({"teacher": teacher}, "sample_teacher.py")["teacher"]
    model = client.get_base_model()
    tokenizer = load_tokenizer(model)
    resolved = resolve_renderer(model, tokenizer, renderer)
    items = attempts.make_items(tasks, resolved.renderer, sampling, system_prompt)
    log = attempts.AttemptLog(log_file)
    try:
        found = attempts.run(
            {teacher: client},
            items,
            grader,
            hashing.value_sha256(grader_key),
            log,
            renderer=resolved.renderer,
            tokenizer=tokenizer,
            sampling=sampling,
            in_flight=in_flight,
            progress=lambda sampled, graded, total: progress(sampled, total),
        )
    except (tinker.BadRequestError, tinker.UnprocessableEntityError) as error:
        raise InputError(f"the service refused a request: {service.brief(error)}") from None
    except service.service_errors() as error:
        raise CheckFailed(
            f"the service failed: {service.brief(error)}; what was sampled is in {log_file}, and"
            " the same command goes on from there"
        ) from None
    finally:
        log.close()
    return found[teacher]


def rows_of(
    tasks: Sequence[Task], graded: Sequence[Graded], filters: Filters, system_prompt: str | None
) -> TeacherData:
    """Keep the replies that pass, as conversations.

    Args:
        system_prompt: put into the rows; None leaves the teacher's out of them, which is what
            distils it.
    """
    rows: list[dict[str, Any]] = []
    dropped: Counter[str] = Counter()
    lengths = []
    without = 0
    for task, item in zip(tasks, graded, strict=True):
        kept: list[str] = []
        for number, (reply, grade) in enumerate(zip(item.replies, item.grades, strict=True)):
            lengths.append(reply.tokens)
            reason = _refusal(reply, grade, filters, kept)
            if reason is not None:
                dropped[reason] += 1
                continue
            kept.append(reply.text)
            rows.append(_row(task, reply.text, number, grade, filters, system_prompt))
        without += not kept
    return TeacherData(
        rows=rows,
        sampled=len(lengths),
        dropped=dict(dropped),
        prompts_without_row=without,
        mean_tokens=sum(lengths) / len(lengths) if lengths else 0.0,
    )


def _refusal(
    reply: attempts.Reply, grade: Grade, filters: Filters, kept: Sequence[str]
) -> str | None:
    if not reply.text:
        return "empty"
    if reply.truncated and not filters.keep_cut:
        return "cut at max_tokens"
    if grade.error is not None:
        return f"the grader failed ({grade.error[:80]})"
    if filters.keep_at is not None and grade.score < filters.keep_at:
        return "graded too low"
    if reply.text in kept:
        return "the same reply again"
    if len(kept) >= filters.per_prompt:
        return f"more than {filters.per_prompt} of one prompt"
    return None


def _row(
    task: Task,
    text: str,
    number: int,
    grade: Grade,
    filters: Filters,
    system_prompt: str | None,
) -> dict[str, Any]:
    messages = [dict(message) for message in task.prompt]
    if system_prompt and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system_prompt})
    row: dict[str, Any] = {
        "messages": [*messages, {"role": "assistant", "content": text}],
        "place": task.place,
        "sample": number,
    }
    if filters.keep_at is not None:
        row["score"] = grade.score
    return row


def without_excluded(tasks: Sequence[Task], excluded: Sequence[Task]) -> tuple[list[Task], int]:
    """``tasks`` without prompts that stand in ``excluded``, and how many that were."""
    keys = {task.key for task in excluded}
    kept = [task for task in tasks if task.key not in keys]
    return kept, len(tasks) - len(kept)


def write(path: Path, data: TeacherData) -> None:
    """Write the rows, whole or not at all."""
    jsonl.rewrite(path, data.rows)
