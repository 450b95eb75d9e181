"""What a command would run, what each task needs, and roughly the price. Asks no service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tinkerlab.evaluation.inspect import needs
from tinkerlab.evaluation.inspect.running import Plan
from tinkerlab.evaluation.inspect.suites import Suites, SuiteTask
from tinkerlab.planning import suites as pricing

DEFAULT_MAX_TOKENS = 2048  # the bridge's
JUDGE_REPLY = 512  # tokens: a few sentences and a grade


def document(plan: Plan) -> dict[str, Any]:
    """The plan as data; ``samples`` is of one model, epochs counted, None when unknown."""
    priced = plan.models.get("base") or (plan.run.base_model if plan.run else "")
    rows = []
    for task in plan.tasks:
        samples = _samples(task, plan.limit)
        longest = plan.max_tokens or task.max_tokens or DEFAULT_MAX_TOKENS
        rows.append(
            {
                "task": task.name,
                "about": task.about,
                "samples": samples,
                "max_tokens": longest,
                "needs": [
                    {"what": need.what, "here": need.here, "remedy": need.remedy}
                    for need in needs.of(task, plan.judge, plan.args)
                ],
                "price": _price(task, plan, samples, priced, longest),
            }
        )
    return {"models": dict(plan.models), "judge_model": plan.judge, "tasks": rows}


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The plan for people."""
    for key, model in found["models"].items():
        yield f"{key}: {model}"
    for row in found["tasks"]:
        count = "unknown number of" if row["samples"] is None else f"{row['samples']:,}"
        yield ""
        yield f"{row['task']}: {count} samples for each model, replies to {row['max_tokens']} tokens"
        for need in row["needs"]:
            state = {True: "here", False: f"MISSING: {need['remedy']}", None: "not tried"}
            yield f"  needs {need['what']} ({state[need['here']]})"
        for line in row["price"]:
            yield f"  {line}"


def listing(suites: Suites) -> list[dict[str, Any]]:
    """Every suite with its tasks and what each needs, whatever is here."""
    return [
        {
            "suite": suite,
            "tasks": [
                {
                    "task": suites.tasks[name].name,
                    "about": suites.tasks[name].about,
                    "samples": suites.tasks[name].samples,
                    "needs": _in_short(suites.tasks[name]),
                }
                for name in names
            ],
        }
        for suite, names in suites.suites.items()
    ]


def _in_short(task: SuiteTask) -> list[str]:
    found = []
    if task.download:
        found.append(task.download if "//" in task.download else f"hub: {task.download}")
    found += [f"package {name}" for name in task.packages]
    found += ["docker"] if task.docker else []
    found += ["a renderer with tools"] if task.tools else []
    found += ["--judge-model"] if task.wants_judge else []
    return found


def _samples(task: SuiteTask, limit: int | None) -> int | None:
    known = limit if task.samples is None else min(task.samples, limit or task.samples)
    return None if known is None else known * task.epochs


def _price(task: SuiteTask, plan: Plan, samples: int | None, model: str, longest: int) -> list[str]:
    if samples is None:
        return ["price unknown: nobody has counted this task's samples; try --limit"]
    count = samples * len(plan.models)
    found = pricing.price_range(
        model,
        requests=count * task.requests,
        prompt_tokens=task.prompt_tokens,
        max_tokens=longest,
    )
    told = [pricing.in_words(found, model or "the model")]
    if plan.judge and task.wants_judge:
        # A judge reads prompt and reply once; one that plays a user answers each turn.
        judged = pricing.price_range(
            plan.judge,
            requests=count * (task.requests if task.judge_roles else 1),
            prompt_tokens=task.prompt_tokens + pricing.SHORT_REPLY,
            max_tokens=JUDGE_REPLY,
        )
        told.append(f"judge: {pricing.in_words(judged, plan.judge)}")
    return told
