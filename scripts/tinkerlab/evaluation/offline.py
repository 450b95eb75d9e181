"""An application's own evaluation: sample replies to tasks, grade them, write the results.

With a base model and a checkpoint, both reply to the same tasks and the results folder obeys
the contract that ``checking`` checks. With one model, ``scores.json`` takes the summary's place.
Interrupted, the same command goes on; complete, it changes nothing; asked for something else in
the same folder, it refuses.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkerlab.cli import say
from tinkerlab.data.words import counted
from tinkerlab.errors import CheckFailed, InputError
from tinkerlab.evaluation import (
    attempts,
    hashing,
    judge,
    offline_records,
    results,
    slices,
)
from tinkerlab.evaluation.attempts import Sampling
from tinkerlab.evaluation.clients import open_clients, require_same_base
from tinkerlab.evaluation.offline_run import RunSettings
from tinkerlab.evaluation.sft import check_checkpoint_path
from tinkerlab.folders import make_folder, require_writable
from tinkerlab.grading import Grader, load_grader, require_usable
from tinkerlab.runs import provenance

if TYPE_CHECKING:
    import tinker

    from tinkerlab.tasks import Task

ITEMS_FILE = "items.jsonl"
LOG_FILE = "attempts.jsonl"
SCORES_FILE = "scores.json"
PROGRESS_SECONDS = 5.0


@dataclass(frozen=True)
class Plan:
    """What to evaluate, on what, how it is graded, and where the results go.

    Attributes:
        base_model, checkpoint: one of them, or both to be compared.
        source: what the tasks came from, for the summary.
        grader: a spec of ``grading.load_grader``, or ``judge[:TEMPLATE]`` with a judge_model.
        correct_at: scores from here on are correct; for graders whose scores are not in 0..1.
        ks: for pass@k.
        run: the run whose logs belong to the results, if any.
    """

    base_model: str | None
    checkpoint: str | None
    tasks: Sequence[Task]
    source: str
    split: str
    grader: str
    output: Path
    sampling: Sampling = field(default_factory=Sampling)
    grader_timeout: float = 10.0
    grader_memory_mb: int | None = None
    judge_model: str | None = None
    judge_max_tokens: int = judge.MAX_TOKENS
    correct_at: float | None = None
    ks: tuple[int, ...] = (1,)
    slice_by: str | None = None
    renderer: str = "auto"
    system_prompt: str | None = None
    run: RunSettings | None = None
    in_flight: int = attempts.IN_FLIGHT
    overwrite: bool = False

    @property
    def models(self) -> dict[str, str]:
        """``base`` and ``trained``, whichever are evaluated."""
        named = {"base": self.base_model, "trained": self.checkpoint}
        return {key: name for key, name in named.items() if name}

    @property
    def summary_file(self) -> Path:
        return self.output / (results.SUMMARY_FILE if len(self.models) == 2 else SCORES_FILE)


def evaluate(plan: Plan) -> dict[str, Any]:
    """Sample, grade, and write the results folder.

    Returns:
        The summary, which is also in ``summary.json`` (of one model: ``scores.json``).

    Raises:
        InputError: unusable tasks, grader, model or service; or the folder holds other results.
        CheckFailed: the service failed, the grader failed on everything, or its scores are out
            of range.
    """
    if plan.checkpoint:
        check_checkpoint_path(plan.checkpoint)
    asks_judge = plan.grader.partition(":")[0] == "judge"
    if asks_judge and not plan.judge_model:
        raise InputError(f"--grader {plan.grader} needs --judge-model NAME, the model that judges")
    template = judge.read_template(plan.grader.partition(":")[2]) if asks_judge else ""
    # Everything that can be wrong with the input is looked at before the service is asked.
    grader = (
        None
        if asks_judge
        else load_grader(plan.grader, timeout=plan.grader_timeout, memory_mb=plan.grader_memory_mb)
    )
    try:
        if grader is not None:
            require_usable(grader, plan.tasks)
        sliced = slices.slice_values(plan.tasks, plan.slice_by) if plan.slice_by else None
        settings = _settings(plan, template)
        done = _earlier_results(plan, settings)
        if done is not None:
            say(f"{plan.output} already holds this evaluation; nothing to do")
            return done
        require_writable(plan.output)
        names = {**plan.models, **({"judge": str(plan.judge_model)} if asks_judge else {})}
        clients = open_clients(names, "eval_offline.py")
        if len(plan.models) == 2:
            require_same_base(
                clients["base"], clients["trained"], str(plan.base_model), str(plan.checkpoint)
            )
        if grader is None:
            grader = _make_judge(plan, clients.pop("judge"), template)
            require_usable(grader, plan.tasks)
        return _evaluate(plan, clients, grader, settings, sliced)
    finally:
        if grader is not None:
            grader.close()


def _evaluate(
    plan: Plan,
    clients: Mapping[str, tinker.SamplingClient],
    grader: Grader,
    settings: dict[str, Any],
    sliced: list[str] | None,
) -> dict[str, Any]:
    from tinkerlab.data import load_tokenizer, resolve_renderer

    started = time.monotonic()
    model = plan.base_model or next(iter(clients.values())).get_base_model()
    tokenizer = load_tokenizer(model)
    resolved = resolve_renderer(model, tokenizer, plan.renderer)
    for warning in resolved.warnings:
        say(f"warning: {warning}")
    items = attempts.make_items(plan.tasks, resolved.renderer, plan.sampling, plan.system_prompt)
    make_folder(plan.output)
    results.write_jsonl(plan.output / ITEMS_FILE, offline_records.items(plan.tasks))
    graded = _run(plan, clients, items, grader, settings, resolved.renderer, tokenizer)

    records = {
        key: offline_records.records(plan.tasks, graded[key], plan.correct_at, sliced)
        for key in clients
    }
    facts = offline_records.facts(graded)
    _require_grades(plan, facts)
    summary = _summarise(plan, records, settings, model, resolved.name, len(items))
    summary |= {
        "grader": settings["grader"],
        "sampling": settings["sampling"],
        "settings": settings,
        "pass_at_k": offline_records.pass_at_k(graded, plan.correct_at, plan.ks),
        "facts": facts,
        "seconds": round(time.monotonic() - started, 1),
    }
    if sliced is not None:
        scored = {key: [float(r["correct"]) for r in found] for key, found in records.items()}
        rows = slices.table(sliced, scored, seed=plan.sampling.seed)
        summary["slices"] = {"by": plan.slice_by, "rows": rows}
    if plan.run:
        results.copy_logs(plan.run.folder, plan.output, plan.run.name)
    files = {"base": results.BASE_FILE, "trained": results.TRAINED_FILE}
    for key, found in records.items():
        results.write_jsonl(plan.output / files[key], found)
    # The summary last: where it stands, everything that it speaks of is there.
    results.write_json(plan.summary_file, summary)
    return summary


def _run(
    plan: Plan,
    clients: Mapping[str, tinker.SamplingClient],
    items: Sequence[attempts.Item],
    grader: Grader,
    settings: dict[str, Any],
    renderer: Any,
    tokenizer: Any,
) -> dict[str, list[attempts.Graded]]:
    """Replies and grades by "base" and "trained".

    Raises:
        InputError: the service refuses a request, such as one over the context window.
        CheckFailed: the service failed; what was sampled is kept.
    """

    log = attempts.AttemptLog(plan.output / LOG_FILE)
    replies = "one reply" if plan.sampling.samples == 1 else f"{plan.sampling.samples} replies"
    say(
        f"{counted(len(items), 'item')}, {replies} to each from {' and '.join(plan.models.values())}"
    )
    with (
        contextlib.closing(log),
        attempts.failures_told(
            f"what was sampled is in {log.path}, and the same command goes on from there"
        ),
    ):
        found = attempts.run(
            {plan.models[key]: client for key, client in clients.items()},
            items,
            grader,
            hashing.value_sha256([settings["grader"], settings["scoring_code"]]),
            log,
            renderer=renderer,
            tokenizer=tokenizer,
            sampling=plan.sampling,
            in_flight=plan.in_flight,
            progress=progress_lines(),
        )
    return {key: found[name] for key, name in plan.models.items()}


def _summarise(
    plan: Plan,
    records: Mapping[str, list[dict[str, Any]]],
    settings: dict[str, Any],
    base_model: str,
    renderer: str,
    count: int,
) -> dict[str, Any]:
    dataset = {
        "path": ITEMS_FILE,
        "source": plan.source,
        "split": plan.split,
        "sha256": provenance.file_sha256(plan.output / ITEMS_FILE),
    }
    seed = plan.sampling.seed
    if len(records) == 2:
        return results.summarise(
            "rl",
            records["base"],
            records["trained"],
            seed=seed,
            models={**plan.models, "renderer": renderer},
            dataset=dataset,
            log_path=str(plan.run.folder) if plan.run else None,
            wandb_url=plan.run.wandb_url if plan.run else None,
        )
    ((key, found),) = records.items()
    return {
        "task_type": "rl",
        "model": plan.models[key],
        "base_model": base_model,
        "renderer": renderer,
        **offline_records.single_score(found, seed),
        "dataset": {**dataset, "items": count},
        "seed": seed,
        "scoring_code_sha256": hashing.code_sha256(),
        "versions": provenance.versions(),
        "git_commit": provenance.git_commit(Path(__file__).parent),
    }


def _settings(plan: Plan, template: str) -> dict[str, Any]:
    """What makes this evaluation this one; the grader's part also keys its grades."""
    grader: dict[str, Any] = {"spec": plan.grader, "timeout": plan.grader_timeout}
    if template:
        grader |= {
            "judge_model": plan.judge_model,
            "judge_max_tokens": plan.judge_max_tokens,
            "sha256": hashing.value_sha256(template),
        }
    file = grader_file(plan.grader)
    if file is not None:
        grader |= {"path": str(file), "sha256": provenance.file_sha256(file)}
    return {
        "models": plan.models,
        "items": hashing.value_sha256(offline_records.items(plan.tasks)),
        "grader": grader,
        "sampling": asdict(plan.sampling),
        "system_prompt": plan.system_prompt,
        "renderer": plan.renderer,
        "correct_at": plan.correct_at,
        "pass_at_k": list(plan.ks),
        "slice_by": plan.slice_by,
        "scoring_code": hashing.code_sha256(),
    }


def grader_file(grader: str) -> Path | None:
    """The user's file in a grader's spec, whose content belongs to the results' identity."""
    kind, _, argument = grader.partition(":")
    name = argument if kind == "json_schema" else grader.rpartition(":")[0]
    path = Path(name).expanduser()
    return path if name and kind not in ("regex", "judge") and path.is_file() else None


def _earlier_results(plan: Plan, settings: dict[str, Any]) -> dict[str, Any] | None:
    """The summary that is already there, if it is of this very evaluation.

    Raises:
        InputError: the folder holds results of another one.
    """
    there = [
        path
        for path in (plan.output / results.SUMMARY_FILE, plan.output / SCORES_FILE)
        if path.exists()
    ]
    if not there or plan.overwrite:
        return None
    summary = results.read_json(there[0])
    # Through JSON, as the stored ones went: tuples become lists.
    wanted = json.loads(results.dump(settings))
    found = summary.get("settings") or {}
    different = [name.replace("_", " ") for name in wanted if found.get(name) != wanted[name]]
    if different or there[0] != plan.summary_file:
        raise InputError(
            f"{plan.output} holds results of another evaluation"
            f" (other {', '.join(different) or 'models'}); choose another --output, or replace"
            " them with --overwrite (replies in it that fit are used again)"
        )
    return summary


def _make_judge(plan: Plan, client: tinker.SamplingClient, template: str) -> Grader:
    from tinkerlab.data import load_tokenizer, resolve_renderer

    name = client.get_base_model()
    tokenizer = load_tokenizer(name)
    renderer = resolve_renderer(name, tokenizer).renderer
    return judge.Judge(
        plan.grader, client, renderer, tokenizer, template, max_tokens=plan.judge_max_tokens
    )


def _require_grades(plan: Plan, facts: dict[str, dict[str, Any]]) -> None:
    """Refuse to report a score that only says that the grader is broken.

    Raises:
        CheckFailed: it failed on every reply.
    """
    if all(found["grader_errors"] == found["replies"] for found in facts.values()):
        first = next(iter(facts.values()))["first_error"]
        raise CheckFailed(
            f"the grader failed on every reply: {first}; mend it and give the same command (the"
            f" replies are kept in {plan.output / LOG_FILE})"
        )


def progress_lines() -> Callable[[int, int, int], None]:
    """Says how far it is, at most every few seconds, and at the end."""
    last = time.monotonic()

    def tell(sampled: int, graded: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if graded == total or now - last >= PROGRESS_SECONDS:
            last = now
            say(f"sampled {sampled} of {total}, graded {graded}")

    return tell
