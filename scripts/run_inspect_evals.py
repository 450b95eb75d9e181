#!/usr/bin/env python3
"""Public suites of Inspect (inspect_evals) on a base model, a checkpoint, or one against the other.

Suites are lists of tasks in templates/inspect-suites.yaml; --task adds any other of inspect_evals,
or FILE.py@NAME of yours. Each task gets a folder below the output, as eval_offline.py leaves it;
check_results.py validates it when made with --run. Inspect's own logs are in OUTPUT/logs.
Interrupted, the same command goes on; samples that failed are asked again, and until then left out
and counted, as are those that a scorer gave no score. Code that a model writes runs in Docker or
not at all.

Exit 0: all tasks ran; 1: one has no score, or samples failed; 2: bad input.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkerlab import cli
from tinkerlab.errors import InputError

if TYPE_CHECKING:
    from tinkerlab.evaluation.inspect.running import Outcome, Plan
    from tinkerlab.evaluation.inspect.suites import Suites

EXAMPLES = """\
examples:
  scripts/run_inspect_evals.sh --list
  python scripts/run_inspect_evals.py --run runs/first --suite chat --limit 100 \\
      --output results-inspect/ --dry-run
  scripts/run_inspect_evals.sh --model Qwen/Qwen3-8B --checkpoint tinker://RUN/sampler_weights/final \\
      --task gsm8k --task my_tasks.py@support --max-tokens 4096 --output results-inspect/

Scores of different --limit, temperature or max_tokens do not compare, nor do these with published
ones before the settings are the same.
"""
MANY_TRUNCATED = 0.1


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_argument_group("what is measured").add_argument
    what("--model", metavar="NAME", help="the base model")
    what("--checkpoint", metavar="PATH", help="tinker://.../sampler_weights/...")
    what("--run", type=Path, metavar="LOG_PATH", help="folder of a training run: both of it")
    on = parser.add_argument_group("on what").add_argument
    on("--suite", metavar="NAME", help="a list of tasks; --list shows them")
    on("--task", action="append", default=[], metavar="NAME", help="besides; may be repeated")
    on("--limit", type=int, metavar="N", help="the first so many samples of each task")
    on("-T", action="append", default=[], metavar="NAME=VALUE", help="a task's argument")
    on("--suites", type=Path, metavar="FILE", help="instead of templates/inspect-suites.yaml")
    how = parser.add_argument_group("how").add_argument
    how("--temperature", type=float, metavar="T", help="default: the task's own, else 0")
    how("--max-tokens", type=int, metavar="N", help="default: the task's own, else 2048")
    how("--seed", type=int, default=0, metavar="N", help="of samples and bootstrap (default: 0)")
    how("--renderer", metavar="NAME", help="default: the run's, else the one that fits")
    how("--include-reasoning", action="store_true", help="scorers and later turns see thinking")
    how("--judge-model", metavar="NAME", help="grades, or plays the user, where a task wants it")
    how("--score", metavar="NAME", help="SCORER, VALUE or SCORER/VALUE of a task with several")
    how("--correct-at", type=float, metavar="X", help="a score of X or more is correct")
    how("--in-flight", type=int, default=256, metavar="N", help="requests at a time")
    parser.add_argument("--output", type=Path, metavar="DIR", help="a folder for each task")
    parser.add_argument("--overwrite", action="store_true", help="replace other results in it")
    parser.add_argument("--list", action="store_true", help="the suites, and what each task needs")
    parser.add_argument("--dry-run", action="store_true", help="what would run; a rough price")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    return parser


def make_plan(args: argparse.Namespace, suites: Suites) -> Plan:
    """The options, completed from the run's folder.

    Raises:
        InputError: something is missing, unknown or out of range.
    """
    from tinkerlab.evaluation import offline_run
    from tinkerlab.evaluation.inspect.running import Plan
    from tinkerlab.evaluation.inspect.suites import choose

    run = offline_run.read(args.run) if args.run else None
    named = {
        "base": args.model or (run.base_model if run else None),
        "trained": args.checkpoint or (run.sampler_path if run else None),
    }
    models = {key: name for key, name in named.items() if name}
    if not models:
        raise InputError("name what is measured: --model, --checkpoint, both, or --run")
    if args.output is None and not args.dry_run:
        raise InputError("say with --output DIR where the results go")
    for name in ("limit", "max_tokens", "in_flight"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise InputError(f"--{name.replace('_', '-')} must be at least 1, not {value}")
    if args.seed < 0 or not 0 <= (args.temperature or 0.0) < math.inf:
        raise InputError("--seed and --temperature must be finite and not negative")
    tasks = choose(suites, args.suite, args.task)
    if args.score and len(tasks) > 1:
        raise InputError("--score is for one task: give it with that --task alone")
    return Plan(
        models=models,
        tasks=tasks,
        output=args.output or Path(),
        limit=args.limit,
        args=task_arguments(args.T),
        judge=args.judge_model,
        renderer=args.renderer or (run and run.renderer) or "auto",
        include_reasoning=args.include_reasoning,
        temperature=args.temperature,
        max_tokens=args.max_tokens,
        seed=args.seed,
        choice=chosen_score(args),
        in_flight=args.in_flight,
        run=run,
        overwrite=args.overwrite,
    )


def task_arguments(pairs: Sequence[str]) -> dict[str, Any]:
    """``-T NAME=VALUE``, the values read as YAML, as Inspect's own command does.

    Raises:
        InputError: not such a pair.
    """
    import yaml

    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        try:
            found[name] = yaml.safe_load(value)
        except yaml.YAMLError:
            equals = ""
        if not name or not equals:
            raise InputError(f"-T {pair}: write NAME=VALUE, the value as in YAML")
    return found


def chosen_score(args: argparse.Namespace) -> Any:
    from tinkerlab.evaluation.inspect.records import Choice

    scorer, slash, value = (args.score or "").partition("/")
    return Choice(
        scorer=scorer if slash else None,
        value=value if slash else scorer or None,
        correct_at=args.correct_at,
    )


def list_suites(suites: Suites, as_json: bool) -> int:
    from tinkerlab.evaluation.inspect import planned

    found = planned.listing(suites)
    if as_json:
        cli.emit_json(found)
        return cli.EXIT_OK
    for suite in found:
        print(f"{suite['suite']}")
        for task in suite["tasks"]:
            size = "size unknown" if task["samples"] is None else f"{task['samples']:,} samples"
            print(f"  {task['task']} ({size}): {task['about']}")
            print(f"    needs {', '.join(task['needs']) or 'nothing else'}")
    return cli.EXIT_OK


def dry_run(plan: Plan, as_json: bool) -> int:
    from tinkerlab.evaluation.inspect import planned, running

    running.check(plan)
    found = planned.document(plan)
    if as_json:
        cli.emit_json(found)
    else:
        for line in planned.lines(found):
            print(cli.redact(line))
    return cli.EXIT_OK


def describe(outcome: Outcome) -> Iterator[str]:
    """One task for people, the score first."""
    name, summary = outcome.task.short, outcome.summary
    if summary is None:
        yield f"{name} failed: {outcome.error}"
        return
    items = summary["dataset"]["items"]
    if "trained_score" in summary:
        before, after = summary["baseline_score"], summary["trained_score"]
        yield f"{name}: {before:.4f} -> {after:.4f} ({items} items)"
        yield f"  {summary['scores']['verdict']}"
    else:
        low, high = summary["interval"]["low"], summary["interval"]["high"]
        yield (
            f"{name}: {summary['score']:.4f} (95% interval {low:.4f} to {high:.4f}, {items} items):"
            f" {summary['model']}"
        )
    for warning in warnings(summary):
        yield f"  warning: {warning}"
    yield f"  results: {outcome.folder}"


def warnings(summary: dict[str, Any]) -> Iterator[str]:
    """What makes the score mean less than it seems."""
    from tinkerlab.data.words import counted
    from tinkerlab.evaluation.inspect.running import failed_items

    left = summary["left_out"]
    if left["items"]:
        again = "; the same command asks the failed ones again" if failed_items(summary) else ""
        reason = next(iter(left["reasons"]))
        yield f"{counted(left['items'], 'item')} left out ({reason}){again}"
    for key, facts in summary["inspect"].items():
        cut, replies = facts["truncated_replies"], facts["replies"]
        if cut > MANY_TRUNCATED * replies:
            longest = ", ".join(map(str, facts["max_tokens"]))
            yield (
                f"{cut} of {replies} replies ({key}) were cut off at max_tokens={longest}; raise"
                " --max-tokens"
            )
        if facts["requests_passed_over"]:
            yield (
                f"{counted(facts['requests_passed_over'], 'request')} failed ({key}), and the task"
                " went on without the reply: the score is too low"
            )
        if facts["agrees"] is False:
            yield (
                f"Inspect's own mean ({facts['metrics']}) is not the mean of the items"
                f" ({facts['mean_of_items']:.4f}): the task weighs them otherwise"
            )
    for key, facts in summary["facts"].items():
        if facts["items"] and facts["empty"] == facts["items"]:
            yield f"every reply of {key} is empty: a wrong renderer?"


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)

    from tinkerlab.evaluation.inspect import suites as presets

    suites = presets.read(args.suites or presets.DEFAULT_FILE)
    if args.list:
        return list_suites(suites, args.json)
    plan = make_plan(args, suites)
    if args.dry_run:
        return dry_run(plan, args.json)

    from tinkerlab.evaluation.inspect.running import failed_items, run_all

    outcomes = run_all(plan)
    if args.json:
        cli.emit_json(
            [{"task": o.task.name, "error": o.error, "summary": o.summary} for o in outcomes]
        )
    else:
        for outcome in outcomes:
            for line in describe(outcome):
                print(cli.redact(line))
    whole = all(o.summary is not None and not failed_items(o.summary) for o in outcomes)
    return cli.EXIT_OK if whole else cli.EXIT_FOUND


if __name__ == "__main__":
    cli.run(main)
