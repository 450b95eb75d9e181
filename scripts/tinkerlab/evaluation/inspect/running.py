"""Run Inspect's tasks on a base model, a checkpoint or both, and leave results folders of ours.

Inspect's ``eval_set`` runs and resumes: replies are in its logs, and the same command asks only
for samples that are missing or failed. All models and tasks run at once.
"""

from __future__ import annotations

import contextlib
import json
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkerlab.cli import say
from tinkerlab.data.words import counted
from tinkerlab.errors import CheckFailed, InputError
from tinkerlab.evaluation import results, suite_results
from tinkerlab.evaluation.clients import open_clients, require_same_base
from tinkerlab.evaluation.inspect import needs
from tinkerlab.evaluation.inspect import tasks as making
from tinkerlab.evaluation.inspect.records import Choice, Extract, extract
from tinkerlab.evaluation.inspect.suites import SuiteTask, require_known
from tinkerlab.evaluation.offline_run import RunSettings
from tinkerlab.evaluation.sft import check_checkpoint_path
from tinkerlab.evaluation.suite_results import SuiteRun
from tinkerlab.folders import make_folder, require_writable
from tinkerlab.runs import provenance

if TYPE_CHECKING:
    from inspect_ai.log import EvalLog

LOGS = "logs"
JUDGE = "judge"


@dataclass(frozen=True)
class Plan:
    """What is run on what.

    Attributes:
        models: ``base`` and ``trained``, whichever are measured.
        args: task arguments; each goes to the tasks that have it.
        temperature, max_tokens: None leaves them to the task, and where it says nothing to the
            bridge (0 and 2048).
        choice: which score is the result, where the suite's file does not say.
    """

    models: Mapping[str, str]
    tasks: Sequence[SuiteTask]
    output: Path
    limit: int | None = None
    args: Mapping[str, Any] = field(default_factory=dict)
    judge: str | None = None
    renderer: str = "auto"
    include_reasoning: bool = False
    temperature: float | None = None
    max_tokens: int | None = None
    seed: int = 0
    choice: Choice = field(default_factory=Choice)
    in_flight: int = 256
    run: RunSettings | None = None
    overwrite: bool = False


@dataclass(frozen=True)
class Outcome:
    """One task: its summary, or why there is none."""

    task: SuiteTask
    folder: Path
    summary: dict[str, Any] | None
    error: str | None = None


def check(plan: Plan) -> None:
    """Everything that can be wrong before the service or a hub is asked.

    Raises:
        InputError: a missing package, an unknown task, a need that is not met, a bad path.
    """
    needs.require_inspect(plan.tasks)
    if any(task.file is None for task in plan.tasks):
        require_known(plan.tasks, making.known_names())
    if "trained" in plan.models:
        check_checkpoint_path(plan.models["trained"])


def run_all(plan: Plan) -> list[Outcome]:
    """Run what is not there yet; a task whose score can't be read does not stop the others.

    Raises:
        InputError: as ``check``, and for other results in the folder or a model that is not there.
        CheckFailed: data that can't be had, or every sample of every task failed.
    """
    check(plan)
    needs.require(plan.tasks, plan.judge, plan.args)
    settings = {task.name: _settings(plan, task) for task in plan.tasks}
    done = {task.name: _earlier(plan, task, settings[task.name]) for task in plan.tasks}
    open_tasks = [task for task in plan.tasks if done[task.name] is None]
    fresh: dict[str, Outcome] = {}
    if open_tasks:
        for task in open_tasks:
            require_writable(plan.output / task.short)
        _require_whole(plan.output / LOGS)
        fresh = _run(plan, open_tasks, settings)
    else:
        say(f"{plan.output} already holds this evaluation; nothing to do")
    return [
        fresh.get(task.name) or Outcome(task, plan.output / task.short, done[task.name])
        for task in plan.tasks
    ]


def _require_whole(logs: Path) -> None:
    """Refuse a log that was cut short, on which Inspect ends with a traceback.

    Raises:
        InputError: names the file.
    """
    for file in sorted(logs.glob("*.eval")):
        if not zipfile.is_zipfile(file):
            raise InputError(
                f"{file}: no whole log of Inspect's; remove it, and its samples are asked again"
            )


def _run(
    plan: Plan, entries: Sequence[SuiteTask], settings: Mapping[str, dict[str, Any]]
) -> dict[str, Outcome]:
    from tinkerlab.data import load_tokenizer, resolve_renderer
    from tinkerlab.evaluation.inspect import bridge

    judge_name = f"{bridge.PROVIDER}/{JUDGE}/{plan.judge}" if plan.judge else None
    made = making.make(entries, plan.args, judge_name, plan.limit)
    names = {**plan.models, **({JUDGE: plan.judge} if plan.judge else {})}
    clients = open_clients(names, "run_inspect_evals.py")
    judge = clients.pop(JUDGE, None)
    if len(clients) == 2:
        require_same_base(
            clients["base"], clients["trained"], plan.models["base"], plan.models["trained"]
        )
    base_model = next(iter(clients.values())).get_base_model()
    resolved = resolve_renderer(base_model, load_tokenizer(base_model), plan.renderer)
    for warning in resolved.warnings:
        say(f"warning: {warning}")
    if not bridge.declares_tools(resolved.renderer):
        needing = [entry.short for entry in entries if entry.tools]
        if needing:
            raise InputError(f"{', '.join(needing)}: {_no_tools(resolved.name)}")
    offered = {
        key: bridge.offer(plan.models[key], bridge.Endpoint(client, resolved.renderer))
        for key, client in clients.items()
    }
    if judge is not None:
        model = judge.get_base_model()
        renderer = resolve_renderer(model, load_tokenizer(model)).renderer
        bridge.offer(f"{JUDGE}/{plan.judge}", bridge.Endpoint(judge, renderer))
    _announce(plan, made)
    make_folder(plan.output / LOGS)
    with contextlib.redirect_stdout(sys.stderr):  # stdout is for the result
        logs = _evaluate(plan, made, list(offered.values()), resolved.name, judge_name)
    how = SuiteRun(
        suite="",
        models=plan.models,
        base_model=base_model,
        renderer=resolved.name,
        source="",
        settings={},
        seed=plan.seed,
        log_path=str(plan.run.folder) if plan.run else None,
    )
    outcomes = {}
    for one in made:
        own = {key: logs.get((one.task.name, name)) for key, name in offered.items()}
        run = replace(
            how,
            suite=f"inspect:{one.entry.short}",
            source=one.entry.download or one.entry.name,
            settings=settings[one.entry.name],
        )
        outcomes[one.entry.name] = _outcome(plan, one.entry, own, run)
    return outcomes


def _announce(plan: Plan, made: Sequence[making.Made]) -> None:
    from tinkerlab.evaluation.inspect import bridge

    for one in made:
        config = one.task.config
        said = {
            "temperature": (plan.temperature, config.temperature, bridge.TEMPERATURE),
            "max_tokens": (plan.max_tokens, config.max_tokens, bridge.MAX_TOKENS),
        }
        parts = []
        for name, (asked, own, default) in said.items():
            if asked is not None:
                parts.append(f"{name} {asked:g} as asked")
            else:
                parts.append(f"{name} {default:g}" if own is None else f"{name} {own:g} (its own)")
        say(f"{one.entry.short}: {counted(one.samples, 'sample')} a model, {', '.join(parts)}")


def _evaluate(
    plan: Plan,
    made: Sequence[making.Made],
    names: Sequence[str],
    renderer: str,
    judge: str | None,
) -> dict[tuple[str, str], EvalLog]:
    """(task, model) -> its log with samples.

    Raises:
        KeyboardInterrupt: the user stopped it.
    """
    from inspect_ai import eval_set
    from inspect_ai.log import read_eval_log
    from inspect_ai.model import GenerateConfig, get_model

    from tinkerlab.evaluation.inspect import bridge

    # Of a model's config the task's own settings win, those given to eval_set win over both.
    default = GenerateConfig(
        temperature=bridge.TEMPERATURE, max_tokens=bridge.MAX_TOKENS, seed=plan.seed
    )
    models = [
        get_model(
            name,
            config=default,
            memoize=False,
            renderer=renderer,
            include_reasoning=plan.include_reasoning,
        )
        for name in names
    ]
    asked = {"temperature": plan.temperature, "max_tokens": plan.max_tokens}
    roles = {"grader", *(role for one in made for role in one.entry.judge_roles)}
    total = sum(one.samples for one in made) * len(models)
    # Only now, because Inspect prints a banner where it finds a hook when it makes a model.
    from tinkerlab.evaluation.inspect.progress import telling

    with telling(total):
        _, headers = eval_set(
            [one.task for one in made],
            model=models,
            model_roles=dict.fromkeys(roles, judge) if judge else None,
            log_dir=str((plan.output / LOGS).absolute()),
            log_dir_allow_dirty=True,  # logs of other tasks and settings may stay beside these
            limit=plan.limit,
            # A sample that fails does not stop the others; its log is then not complete, and the
            # next eval_set asks for that sample again.
            fail_on_error=True,
            continue_on_fail=True,
            retry_on_error=0,  # the SDK has retried already
            retry_immediate=False,
            retry_attempts=1,
            max_connections=plan.in_flight,
            display="none",
            log_level="error",
            score_display=False,
            ctl_server=False,
            **{name: value for name, value in asked.items() if value is not None},  # type: ignore[arg-type]
        )
        if len(headers) < len(made) * len(models):
            raise KeyboardInterrupt  # which Inspect swallows, leaving the logs of what was finished
    return {
        (header.eval.task, header.eval.model): read_eval_log(header.location) for header in headers
    }


def _outcome(
    plan: Plan, entry: SuiteTask, logs: Mapping[str, EvalLog | None], run: SuiteRun
) -> Outcome:
    folder = plan.output / entry.short
    try:
        found = {key: _extract(plan, entry, log, run.renderer) for key, log in logs.items()}
        told = replace(run, extra={"inspect": {key: one.facts for key, one in found.items()}})
        summary = suite_results.write(folder, told, {key: one.items for key, one in found.items()})
    except (CheckFailed, InputError) as error:
        return Outcome(entry, folder, None, str(error))
    if plan.run:
        results.copy_logs(plan.run.folder, folder, plan.run.name)
    return Outcome(entry, folder, summary)


def _extract(plan: Plan, entry: SuiteTask, log: EvalLog | None, renderer: str) -> Extract:
    from tinkerlab.evaluation.inspect.bridge import ToolsNotSupportedError

    if log is None or not log.samples:
        why = (
            " ".join(log.error.message.split())[:300]
            if log and log.error
            else "Inspect left no samples"
        )
        raise CheckFailed(f"{entry.short}: {why}")
    for sample in log.samples:
        if sample.error and ToolsNotSupportedError.__name__ in sample.error.traceback:
            raise InputError(f"{entry.short}: {_no_tools(renderer)}")
    choice = replace(
        plan.choice,
        value=plan.choice.value or entry.value,
        metric=entry.metric if plan.choice.value in (None, entry.value) else None,
    )
    return extract(log, choice)


def _no_tools(renderer: str) -> str:
    return (
        f"renderer {renderer} can't declare tools, and the task uses them; choose with --renderer"
        " one that can (qwen3, kimi_k2, deepseekv3, gpt_oss_medium_reasoning are some), if the model"
        " knows its format"
    )


def _settings(plan: Plan, task: SuiteTask) -> dict[str, Any]:
    """What decides a task's score; another value of one of these is another evaluation."""
    return {
        "models": dict(plan.models),
        "task": task.name,
        "task_file": provenance.file_sha256(task.file) if task.file else None,
        "args": {**task.args, **plan.args},
        "limit": plan.limit,
        "judge_model": plan.judge if task.wants_judge or task.file else None,
        "renderer": plan.renderer,
        "include_reasoning": plan.include_reasoning,
        "temperature": plan.temperature,
        "max_tokens": plan.max_tokens,
        "seed": plan.seed,
        "score": [plan.choice.scorer, plan.choice.value or task.value, plan.choice.correct_at],
        "inspect": needs.installed(),
    }


def _earlier(plan: Plan, task: SuiteTask, settings: dict[str, Any]) -> dict[str, Any] | None:
    """The summary of this very evaluation, if it is there and complete.

    Raises:
        InputError: the task's folder holds another evaluation.
    """
    folder = plan.output / task.short
    wanted_file = results.SUMMARY_FILE if len(plan.models) == 2 else suite_results.SCORES_FILE
    for file in (results.SUMMARY_FILE, suite_results.SCORES_FILE):
        if not (folder / file).is_file() or plan.overwrite:
            continue
        summary = results.read_json(folder / file)
        found = summary.get("settings") or {}
        wanted = json.loads(results.dump(settings))
        other = [name for name in wanted if found.get(name) != wanted[name]]
        if other or file != wanted_file:
            raise InputError(
                f"{folder} holds another evaluation (other {', '.join(other) or 'models'}); choose"
                " another --output, or replace it with --overwrite (replies that fit are used"
                " again)"
            )
        return None if failed_items(summary) else summary
    return None


def failed_items(summary: Mapping[str, Any]) -> int:
    """Items whose sample failed, which the next start asks again; unscored ones are final."""
    return max(facts["failed_items"] for facts in summary["inspect"].values())
