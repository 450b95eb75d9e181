#!/usr/bin/env python3
"""Watch one or many live runs: steps, loss or reward, held-out evaluation, ETA, warnings.

Reads the folders that runs of this project and of tinker-cookbook leave (SFT, RL, DPO,
distillation); asks nothing of the service, and disturbs nothing. A folder that holds runs, such
as runs/ or a sweep's, shows all of them, and new ones as they appear. On a terminal the table is
refreshed in place; elsewhere each change is a line.

A run is running, finished, stalled (silent for long; it may still live) or stopped before its
end, with the reason where its log tells one. Warnings are those of analyze_run.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tinkerlab import cli
from tinkerlab.errors import InputError

EXAMPLES = """\
examples:
  python scripts/watch_run.py runs/                        # all runs, until Ctrl-C
  python scripts/watch_run.py runs/sft --once --json       # where it stands now
  python scripts/watch_run.py runs/a runs/b --until-done --every 60
  python scripts/watch_run.py runs/rl --until-problem      # until it ends or needs attention

exit codes: 0 nothing is wrong; 1 a run has a serious warning, stalled, or stopped before its
end; 2 no such folder.
"""

LONGEST_PAUSE = 86_400.0  # seconds; no clock can sleep for ever


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("runs", type=Path, nargs="+", metavar="LOG_DIR", help="a run's folder, or one of runs")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--once", action="store_true", help="print where the runs stand, and end")
    how.add_argument("--until-done", action="store_true", help="end when no run goes on any more")
    how.add_argument(
        "--until-problem",
        action="store_true",
        help="end when a run has a serious warning, stalls or stops, or when none goes on",
    )
    add(
        "--every",
        type=float,
        metavar="SECONDS",
        help="how often to look (default: 2 on a terminal, 10 elsewhere)",
    )
    add(
        "--stalled-after",
        type=float,
        metavar="SECONDS",
        help="silence that is a stall (default: 600, or 5 of the run's longest steps)",
    )
    add(
        "--wait",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="without --once: let a run begin that is not there yet, or stopped (default: 30)",
    )
    add("--json", action="store_true", help="one JSON document on stdout, at the end")
    args = parser.parse_args(argv)
    for name in ("every", "stalled_after"):
        value = getattr(args, name)
        if value is not None and not value > 0:
            flag = f"--{name.replace('_', '-')}"
            raise InputError(f"{flag} must be more than 0 seconds, not {value:g}")
    if args.every is not None and args.every > LONGEST_PAUSE:
        raise InputError(f"--every must be at most {LONGEST_PAUSE:g} seconds, not {args.every:g}")
    if not 0 <= args.wait < float("inf"):
        raise InputError(f"--wait must be 0 seconds or more, not {args.wait:g}")
    if args.json and not (args.until_done or args.until_problem):
        args.once = True
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    from tinkerlab.watching.board import Board
    from tinkerlab.watching.follow import (
        Patience,
        all_ended,
        follow,
        never,
        one_needs_attention,
        wait_for,
    )

    if not args.once:
        wait_for(args.runs, args.wait)
    board = Board(args.runs, args.stalled_after)
    if args.once:
        statuses = board.look()
        if not statuses:
            raise InputError(f"{args.runs[0]}: no run in it yet; leave --once out to wait for one")
        if not args.json:
            from rich.console import Console

            from tinkerlab.watching.view import screen

            Console().print(screen(statuses))
    else:
        done = all_ended if args.until_done else never
        done = one_needs_attention if args.until_problem else done
        out = sys.stderr if args.json else sys.stdout
        every = args.every or (2.0 if out.isatty() else 10.0)
        statuses = follow(board, every, Patience(done, args.wait), out)
    ok = not any(status.needs_attention for status in statuses)
    if args.json:
        rows = [status.as_dict() for status in statuses]
        cli.emit_json({"ok": ok, "done": all_ended(statuses), "runs": rows})
    return cli.EXIT_OK if ok else cli.EXIT_FOUND


if __name__ == "__main__":
    cli.run(main)
