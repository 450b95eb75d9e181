"""Sample a teacher, select its replies, and write the rows that ``sl_trainer.py`` trains on.

Beside ``teacher.jsonl`` stand ``teacher.attempts.jsonl`` (every reply and grade, appended as they
come: an interrupted command goes on there, and other filters cost nothing),
``teacher.dropped.jsonl`` (what was refused, and why) and ``teacher.summary.json``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkerlab.cli import say
from tinkerlab.data.words import counted
from tinkerlab.errors import CheckFailed, InputError
from tinkerlab.evaluation import attempts, hashing, results
from tinkerlab.evaluation.attempts import Graded, Sampling
from tinkerlab.evaluation.clients import open_clients
from tinkerlab.evaluation.offline import grader_file, progress_lines
from tinkerlab.folders import make_folder, require_writable
from tinkerlab.grading import Grader, load_grader, require_usable
from tinkerlab.runs import provenance
from tinkerlab.teacher.prompts import WithoutHeldOut, require_system, under, without_system
from tinkerlab.teacher.selection import Filters, Selected, select

if TYPE_CHECKING:
    import tinker

    from tinkerlab.tasks import Task


@dataclass(frozen=True)
class Plan:
    """Who is asked what, and what is kept.

    Attributes:
        teacher: a base model, or a ``tinker://`` path of sampler weights.
        prompts: what may be trained on.
        source: what the prompts came from, for the summary.
        grader: a spec of ``grading.load_grader``; None grades nothing.
    """

    teacher: str
    prompts: WithoutHeldOut
    source: str
    output: Path
    sampling: Sampling = field(default_factory=Sampling)
    filters: Filters = field(default_factory=Filters)
    system_prompt: str | None = None
    grader: str | None = None
    grader_timeout: float = 10.0
    renderer: str = "auto"
    in_flight: int = attempts.IN_FLIGHT
    overwrite: bool = False

    def beside(self, kind: str) -> Path:
        """``teacher.attempts.jsonl`` for ``teacher.jsonl``."""
        return self.output.with_name(f"{self.output.stem}.{kind}")

    @property
    def log_file(self) -> Path:
        return self.beside("attempts.jsonl")

    @property
    def summary_file(self) -> Path:
        return self.beside("summary.json")


def make(plan: Plan) -> dict[str, Any]:
    """Sample and select; returns the summary, which is also in ``summary_file``.

    Raises:
        InputError: unusable prompts, grader, model or service; or ``output`` holds other rows.
        CheckFailed: the service failed, the grader failed on everything, or nothing was kept.
    """
    tasks = asked(plan)
    grader = _grader(plan)
    try:
        require_usable(grader, tasks)
        settings = _settings(plan, tasks)
        done = _earlier(plan, settings)
        if done is not None:
            say(f"{plan.output} already holds these rows; nothing to do")
            return done
        require_writable(plan.output.parent)
        client = open_clients({"teacher": plan.teacher}, "sample_teacher.py")["teacher"]
        make_folder(plan.output.parent)
        graded, renderer = _sample(plan, client, tasks, grader)
    finally:
        grader.close()
    _require_grades(plan, graded)
    selected = select(tasks, graded, plan.filters, plan.teacher, has_grader=plan.grader is not None)
    return _write(plan, selected, _summary(plan, client, graded, selected, settings, renderer))


def asked(plan: Plan) -> list[Task]:
    """The prompts as the teacher gets them.

    Raises:
        InputError: nothing is left, or the system prompt can't be put before one or dropped.
    """
    if not plan.prompts.tasks:
        raise InputError(f"{plan.source}: every prompt stands in the held-out file; none is left")
    tasks = under(plan.system_prompt, plan.prompts.tasks)
    if plan.filters.drop_system_prompt:
        require_system(tasks)
        if bare := next((t for t in tasks if not without_system(t.prompt)), None):
            raise InputError(f"{bare.place}: holds nothing but a system message")
    return tasks


def _grader(plan: Plan) -> Grader:
    if plan.grader is not None:
        return load_grader(plan.grader, timeout=plan.grader_timeout)
    from tinkerlab.training.distill.data import NoReward

    return NoReward()


def _settings(plan: Plan, tasks: Sequence[Task]) -> dict[str, Any]:
    """What decides the rows, besides the service."""
    grader: dict[str, Any] = {"spec": plan.grader, "timeout": plan.grader_timeout}
    if plan.grader is not None and (file := grader_file(plan.grader)) is not None:
        grader |= {"path": str(file), "sha256": provenance.file_sha256(file)}
    return {
        "teacher": plan.teacher,
        "prompts": hashing.value_sha256([[t.prompt, t.answer] for t in tasks]),
        "system_prompt": plan.system_prompt,
        "sampling": asdict(plan.sampling),
        "renderer": plan.renderer,
        "grader": grader,
        "filters": asdict(plan.filters),
    }


def _earlier(plan: Plan, settings: dict[str, Any]) -> dict[str, Any] | None:
    """The summary of these very rows, if they are there.

    Raises:
        InputError: other rows are.
    """
    if plan.overwrite or not plan.output.exists():
        return None
    if not plan.summary_file.exists():
        raise InputError(f"--output {plan.output} exists; choose another, or replace: --overwrite")
    summary = results.read_json(plan.summary_file)
    # Through JSON, as the stored ones went: tuples become lists.
    wanted = json.loads(results.dump(settings))
    found = summary.get("settings") or {}
    different = [name.replace("_", " ") for name in wanted if found.get(name) != wanted[name]]
    if provenance.file_sha256(plan.output) != summary.get("sha256"):
        different.append("content, which was edited since")
    if different:
        raise InputError(
            f"--output {plan.output} holds other rows (other {', '.join(different)}); choose"
            " another, or replace them with --overwrite (replies that fit are used again)"
        )
    return summary


def _sample(
    plan: Plan, client: tinker.SamplingClient, tasks: Sequence[Task], grader: Grader
) -> tuple[list[Graded], str]:
    """Replies and grades in the order of the prompts, and the renderer's name.

    Raises:
        InputError: no tokenizer; the service refuses a request, such as one over the context.
        CheckFailed: the service failed; what was sampled is kept.
    """

    from tinkerlab.data import load_tokenizer, resolve_renderer

    model = client.get_base_model()
    tokenizer = load_tokenizer(model)
    resolved = resolve_renderer(model, tokenizer, plan.renderer)
    for warning in resolved.warnings:
        say(f"warning: {warning}")
    items = attempts.make_items(tasks, resolved.renderer, plan.sampling)
    log = attempts.AttemptLog(plan.log_file)
    grader_key = hashing.value_sha256(_settings(plan, tasks)["grader"])
    replies = "one reply" if plan.sampling.samples == 1 else f"{plan.sampling.samples} replies"
    say(f"{counted(len(items), 'prompt')}, {replies} to each from {plan.teacher}")
    with (
        contextlib.closing(log),
        attempts.failures_told(
            f"what was sampled is in {log.path}, and the same command goes on from there"
        ),
    ):
        found = attempts.run(
            {plan.teacher: client},
            items,
            grader,
            grader_key,
            log,
            renderer=resolved.renderer,
            tokenizer=tokenizer,
            sampling=plan.sampling,
            in_flight=plan.in_flight,
            progress=progress_lines(),
        )
    return found[plan.teacher], resolved.name


def _require_grades(plan: Plan, graded: Sequence[Graded]) -> None:
    """Raises:
    CheckFailed: the grader failed on every reply, so that what it keeps says nothing.
    """
    grades = [grade for item in graded for grade in item.grades]
    if all(grade.error is not None for grade in grades):
        raise CheckFailed(
            f"the grader failed on every reply: {grades[0].error}; mend it and give the same"
            f" command (the replies are kept in {plan.log_file})"
        )


def _summary(
    plan: Plan,
    client: tinker.SamplingClient,
    graded: Sequence[Graded],
    selected: Selected,
    settings: dict[str, Any],
    renderer: str,
) -> dict[str, Any]:
    tokens = [reply.tokens for item in graded for reply in item.replies]
    prompts = plan.prompts
    return {
        "output": str(plan.output),
        "teacher": plan.teacher,
        "base_model": client.get_base_model(),
        "renderer": renderer,
        "source": plan.source,
        "prompts": len(prompts.tasks),
        "held_out_prompts_left_out": len(prompts.same),
        "prompts_near_held_out": [f"{p.val.file} and {p.train.file}" for p in prompts.near],
        "near_prompts_left_out": prompts.near_left_out,
        "replies": len(tokens),
        "sampled_tokens": sum(tokens),
        "kept": len(selected.rows),
        "dropped": selected.dropped,
        "prompts_without_row": selected.without_row,
        "rows_that_quote_the_system_prompt": selected.quoting,
        "settings": settings,
        "versions": provenance.versions(),
    }


def _write(plan: Plan, selected: Selected, summary: dict[str, Any]) -> dict[str, Any]:
    results.write_jsonl(plan.beside("dropped.jsonl"), selected.refused)
    if not selected.rows:
        why = ", ".join(f"{count} {reason}" for reason, count in selected.dropped.items())
        raise CheckFailed(
            f"none of {summary['replies']} replies was kept: {why}; read them in"
            f" {plan.beside('dropped.jsonl')}"
        )
    content = b"".join(results.dump(row) + b"\n" for row in selected.rows)
    # The rows last: a kill before that leaves no output, and the same command writes both again.
    summary = {**summary, "sha256": hashlib.sha256(content).hexdigest()}
    results.write_json(plan.summary_file, summary)
    results.write_whole(plan.output, content)
    return results.read_json(plan.summary_file)
