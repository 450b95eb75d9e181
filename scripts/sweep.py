#!/usr/bin/env python3
"""Try several settings: run a trainer once for each, side by side, and compare what comes out.

key=a,b,c is tried with each value, every combination is a run; key=value holds for all. Each run
has its folder (named by its settings, with what its trainer printed in output.log) below
--output. Every run's settings are checked before the first one starts. Interrupted or killed,
the same command skips what is complete and resumes the rest exactly. One run that fails does not
stop the others. At the end: table.csv, summary.json and sweep.png beside the runs.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tinkerlab import cli
from tinkerlab.errors import InputError

if TYPE_CHECKING:
    from tinkerlab.sweeps.plan import Plan
    from tinkerlab.sweeps.record import Record
    from tinkerlab.sweeps.results import Results

EXAMPLES = """\
examples:
  python scripts/sweep.py --trainer sl_trainer.py --base-config c.yaml --dry-run \\
      learning_rate=1e-4,3e-4 lora_rank=16,32
  python scripts/sweep.py --trainer rl_trainer.py --base-config rl.yaml seed=0,1,2 group_size=8,16
  python scripts/sweep.py --config sweep.yaml --at-once 3
  python scripts/rehearse.py run -- python scripts/sweep.py --config sweep.yaml  # no key needed

sweep.yaml holds what the flags hold, and a grid, or runs, or both combined:
  trainer: sl_trainer.py
  base_config: c.yaml
  output: runs/rates
  settings: {num_steps: 100}
  grid: {learning_rate: [1e-4, 3e-4], seed: [0, 1, 2]}
  runs: [{lora_rank: 16, train_mlp: false}, {lora_rank: 32}]

exit codes: 0 all runs are complete; 1 a run failed; 2 bad input, nothing was started; 130
interrupted, the trainers saved (the same command goes on).
"""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("settings", nargs="*", metavar="key=a,b", help="settings to try, or of every run")
    add("--config", type=Path, metavar="FILE.yaml", help="the sweep; flags and words win over it")
    add("--trainer", metavar="SCRIPT", help="sl_trainer.py, rl_trainer.py, dpo_trainer.py, ...")
    add("--base-config", type=Path, metavar="FILE.yaml", help="the trainer's config for all runs")
    add("--output", type=Path, metavar="DIR", help="default: runs/sweep-<what is tried>")
    add("--at-once", type=int, metavar="N", help="runs side by side (default: 2)")
    add("--max-runs", type=int, metavar="N", help="refuse more runs than this (default: 32)")
    add("--metric", metavar="KEY", help="what decides (default: the trainer's held-out metric)")
    add("--dry-run", action="store_true", help="check and print every run, and start none")
    add("--json", action="store_true", help="print one JSON document on stdout")
    args = parser.parse_intermixed_args(argv)
    for name in ("at_once", "max_runs"):
        value = getattr(args, name)
        if value is not None and value < 1:
            flag = f"--{name.replace('_', '-')}"
            raise InputError(f"{flag} must be at least 1, not {value}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    from tinkerlab.sweeps import spec as specs
    from tinkerlab.sweeps.plan import MAX_RUNS, make_plan

    spec = specs.read_file(args.config) if args.config else specs.Spec()
    specs.add_words(spec, args.settings)
    for name in ("trainer", "base_config", "output", "metric", "at_once", "max_runs"):
        if getattr(args, name) is not None:
            setattr(spec, name, getattr(args, name))
    plan = make_plan(spec, spec.max_runs or MAX_RUNS)
    if args.dry_run:
        return _announce(plan, args.json)
    cli.say(f"{len(plan.members)} runs of {plan.trainer.script} in {plan.output}")

    from tinkerlab.sweeps.record import only_one

    with only_one(plan) as record:
        results, interrupted = _run(plan, record, spec.at_once or 2, spec.metric)
    return _report(results, interrupted, args.json)


def _announce(plan: Plan, as_json: bool) -> int:
    """What would run."""
    commands = [shlex.join(["python", *plan.command(member)]) for member in plan.members]
    if as_json:
        runs = [
            {"name": m.name, "settings": m.settings, "log_path": str(m.folder), "command": command}
            for m, command in zip(plan.members, commands, strict=True)
        ]
        cli.emit_json({"status": "checked", "output": str(plan.output), "runs": runs})
    else:
        print(f"{len(plan.members)} runs, all settings are valid; nothing was started:")
        print(cli.redact("\n".join(commands)))
    return cli.EXIT_OK


def _run(plan: Plan, record: Record, at_once: int, metric: str | None) -> tuple[Results, bool]:
    """Run what is not complete; the results, written down, and whether it was interrupted."""
    from tinkerlab.sweeps import tables
    from tinkerlab.sweeps.progress import shown
    from tinkerlab.sweeps.results import collect
    from tinkerlab.sweeps.runner import Runner

    with shown(sys.stderr) as (show, every):
        runner = Runner(plan, record, at_once, show, every)
        outcomes = runner.run()
    for outcome in outcomes:
        if outcome.status == "failed":
            log = outcome.member.folder / "output.log"
            cli.say(f"failed: {outcome.member.name}: {outcome.reason} (all of it: {log})")
    results = collect(plan, outcomes, metric)
    tables.write(results)
    return results, runner.interrupted


def _report(results: Results, interrupted: bool, as_json: bool) -> int:
    from tinkerlab.sweeps import tables
    from tinkerlab.sweeps.results import as_dict, verdict

    output = results.plan.output
    if as_json:
        cli.emit_json({"output": str(output), "interrupted": interrupted, **as_dict(results)})
    else:
        from rich.console import Console

        console = Console()
        console.print(tables.runs_table(results))
        by_setting = tables.settings_table(results)
        if by_setting is not None:
            console.print()
            console.print(by_setting)
        print()
        print(cli.redact("\n".join(verdict(results))))
        written = [n for n in (tables.CSV, tables.JSON, tables.PLOT) if (output / n).exists()]
        print(f"written: {', '.join(str(output / name) for name in written)}")
    if interrupted:
        cli.say("interrupted; the same command goes on")
        return cli.EXIT_INTERRUPTED
    return cli.EXIT_FOUND if results.failed else cli.EXIT_OK


if __name__ == "__main__":
    cli.run(main)
