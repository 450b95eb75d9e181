#!/usr/bin/env python3
"""Let a headless coding agent do a whole fine-tune in a fresh folder, with this plugin.

The agent (Claude Code, or Codex) gets a recipe of templates/recipes/, or your own --prompt, as
its task. Of your environment it gets everything except what looks like a secret; secrets are
passed by name, and blanked in every log. Without TINKER_API_KEY among them it works on a
rehearsal. Its steps are shown as it works; the raw log goes to .agent/ in the folder. At the end
results/ is checked, as check_results.py does.

The agent may run any command as you, in a folder of its own but in no sandbox: use --modal, a
container or another user where that matters.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from tinkerlab import cli
from tinkerlab.agents import modal_run, secrets, setup
from tinkerlab.agents.clis import AGENTS
from tinkerlab.agents.job import TINKER_KEY, Job
from tinkerlab.agents.outcome import Outcome
from tinkerlab.errors import InputError

SHOWN_FINDINGS = 10

EXAMPLES = """\
examples:
  python scripts/run_agent.py --workdir try --recipe arithmetic --test-only
  python scripts/run_agent.py --workdir try --recipe arithmetic --secret ANTHROPIC_API_KEY
  python scripts/run_agent.py --workdir try --recipe gsm8k --model Qwen/Qwen3-8B \\
      --secret ANTHROPIC_API_KEY --secret TINKER_API_KEY --time-limit 14400 -- --model opus
  python scripts/run_agent.py --workdir try --prompt task.md --agent codex

What stands after -- goes to the agent's own command line.

exit codes: 0 the agent is done and results/ holds; 1 it failed, ran out of time, or results/ does
not hold (--test-only: something is missing); 2 bad input, nothing was started; 130 interrupted
(the folder stays).
"""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_argument_group("the task")
    one = what.add_mutually_exclusive_group(required=True)
    one.add_argument("--recipe", metavar="NAME", help="of templates/recipes/, such as arithmetic")
    one.add_argument("--prompt", type=Path, metavar="FILE", help="a task of your own")
    what.add_argument("--model", metavar="BASE_MODEL", help="to train (default: the task's own)")
    how = parser.add_argument_group("the agent").add_argument
    how("--workdir", type=Path, required=True, metavar="DIR", help="a new or empty folder")
    how("--agent", choices=tuple(AGENTS), default="claude", help="default: claude")
    how("--secret", action="append", default=[], metavar="NAME",
        help="a variable of your environment that it needs; may be repeated")  # fmt: skip
    how("--time-limit", type=float, default=7200.0, metavar="SECONDS", help="default: 7200")
    how("--max-turns", type=int, metavar="N", help="of the agent (claude only)")
    how("--modal", action="store_true", help="in a Modal sandbox; needs `pip install modal`")
    how("--test-only", action="store_true", help="check the set-up, show the command, start none")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    parser.add_argument("options", nargs="*", metavar="-- OPTION", help="for the agent's CLI")
    args = parser.parse_args(argv)
    if not 0 < args.time_limit < math.inf:
        raise InputError(f"--time-limit must be above 0 seconds, not {args.time_limit:g}")
    if args.max_turns is not None and args.max_turns < 1:
        raise InputError(f"--max-turns must be at least 1, not {args.max_turns}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    job = Job(
        workdir=args.workdir,
        agent_name=args.agent,
        recipe=args.recipe,
        prompt=args.prompt,
        model=args.model,
        secrets=tuple(dict.fromkeys(args.secret)),
        time_limit=args.time_limit,
        max_turns=args.max_turns,
        options=tuple(args.options),
    )
    job.command()  # refused, if it must be, before anything is looked at
    if args.modal:
        modal_run.require_modal()
    if args.test_only:
        return test_only(job, args.modal, args.json)
    values = job.require_ready()
    outcome = modal_run.work(job, values) if args.modal else job.work(values)
    if args.json:
        cli.emit_json(outcome.document())
    else:
        show(outcome)
    if outcome.how == "interrupted":
        return cli.EXIT_INTERRUPTED
    return cli.EXIT_OK if outcome.ok else cli.EXIT_FOUND


def test_only(job: Job, modal: bool, as_json: bool) -> int:
    """Say what is there, what is missing, and what would run."""
    parts = job.parts()
    if modal:
        parts += modal_run.parts()
        command = shlex.join(modal_run.inner_command(job))
    else:
        there = {name: os.environ[name] for name in job.secrets if name in os.environ}
        parts += setup.cli(job.agent, secrets.agent_environment(there))
        command = job.shown()
    ok = all(part.ok for part in parts)
    service = "the Tinker service" if job.hosted else f"a rehearsal (no --secret {TINKER_KEY})"
    kept_back = secrets.left_out(job.secrets)
    if as_json:
        cli.emit_json({
            "ok": ok, "parts": [vars(part) for part in parts], "service": service,
            "kept_back": kept_back, "command": command,
        })  # fmt: skip
    else:
        print("OK: ready" if ok else "NOT OK: something is missing")
        for part in parts:
            print(cli.redact(f"  {'ok' if part.ok else 'MISSING':<8}{part.name}: {part.detail}"))
        print(f"  trains on {service}")
        if kept_back:
            print(f"  kept from the agent: {', '.join(kept_back)}")
        where = "in the sandbox" if modal else f"in {job.workdir}"
        print(cli.redact(f"would run, {where}:\n  {command}"))
    return cli.EXIT_OK if ok else cli.EXIT_FOUND


def show(outcome: Outcome) -> None:
    """The verdict for people."""
    print(f"{'OK' if outcome.ok else 'NOT OK'}: {outcome.problem or 'the agent is done'}")
    cost = "" if outcome.cost_usd is None else f", ${outcome.cost_usd:.2f} by its own count"
    turns = "?" if outcome.turns is None else outcome.turns
    print(f"  {outcome.seconds:.0f} s, {turns} turns{cost}")
    if outcome.plugin_loaded is False:
        print("  warning: the agent did not load this plugin")
    if outcome.results_valid:
        print(f"  results/ holds: {outcome.results_verdict}")
    else:
        print("  results/ does not hold:")
        for line in outcome.findings[:SHOWN_FINDINGS]:
            print(f"    {line}")
    print(f"  folder: {outcome.workdir}; raw log: {outcome.logs}/stream.jsonl")


if __name__ == "__main__":
    cli.run(main)
