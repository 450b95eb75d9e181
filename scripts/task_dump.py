#!/usr/bin/env python3
"""Where does the time of a training script go? Watches it, with nothing pasted into it.

run      start a command under a watchdog; when it ends, or on Ctrl-C, say where the time went
report   judge a trace again, also one whose run was killed
attach   look at a process that is already running, through py-spy

Names: waiting on the service, the script's own code with nothing in flight (with the line), a
blocked event loop (the script's or the SDK's), a held GIL, requests sent one at a time.

Exit 0: nothing wrong; 1: a cause was found; 2: bad input. The command's own exit code is in the
notes; --pass-exit-code returns it when it is not 0.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tinkerlab import cli
from tinkerlab.errors import InputError

EPILOG = """examples:
  python scripts/task_dump.py run -- python train.py --steps 20
  python scripts/task_dump.py run --every 5 --trace dump/ -- python train.py
  python scripts/task_dump.py report dump/
  python scripts/task_dump.py attach 12345"""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)

    run = commands.add_parser(
        "run",
        help="run a command under the watchdog",
        epilog="example: python scripts/task_dump.py run --every 5 -- python train.py",
    )
    add = run.add_argument
    add("--every", type=float, metavar="S", help="print tasks and stacks every S seconds")
    add("--trace", type=Path, metavar="DIR", help="folder for the trace (default: a temporary one)")
    add("--interval", type=float, default=0.05, metavar="S", help="between samples (%(default)s)")
    add(
        "--aiomonitor",
        type=int,
        default=0,
        metavar="PORT",
        help="aiomonitor's telnet ports on "
        "127.0.0.1: PORT for the script's loop, PORT+10 for the SDK's; needs aiomonitor",
    )
    add("--profile", action="store_true", help="also write profile.html; needs pyinstrument")
    add("--pass-exit-code", action="store_true", help="return the command's exit code if not 0")
    add(
        "--json",
        action="store_true",
        help="one JSON document on stdout; the command's own stdout goes to stderr",
    )
    add("child", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="python train.py ...")

    report = commands.add_parser("report", help="judge a trace again")
    report.add_argument("folder", type=Path, metavar="DIR", help="the folder that run named")
    report.add_argument("--json", action="store_true", help="print one JSON document on stdout")

    attach = commands.add_parser("attach", help="look at a running process through py-spy")
    attach.add_argument("pid", type=int)
    attach.add_argument("--looks", type=int, default=5, metavar="N", help="default: %(default)s")
    attach.add_argument(
        "--seconds", type=float, default=3.0, metavar="S", help="over this long (%(default)s)"
    )
    attach.add_argument("--json", action="store_true", help="print one JSON document on stdout")

    args = parser.parse_args(argv)
    if args.command == "run":
        if args.interval < 0.005:
            raise InputError("--interval must be at least 0.005 s")
        if args.every is not None and args.every <= 0:
            raise InputError("--every must be above 0 seconds")
    if args.command == "attach" and (args.looks < 2 or args.seconds <= 0):
        raise InputError("--looks must be at least 2 and --seconds above 0: one look shows no time")
    return args


def run(args: argparse.Namespace) -> int:
    from tinkerlab.diagnosis.stalls import launch

    command = launch.complete(args.child)
    folder = args.trace or Path(tempfile.mkdtemp(prefix="task-dump-"))
    if args.aiomonitor:
        launch.check_monitor(command)
    options = launch.Options(
        folder=folder,
        interval=args.interval,
        every=args.every,
        monitor_port=args.aiomonitor,
        profile=args.profile,
        own_stdout=args.json,
    )
    outcome = launch.watched(command, options)
    code = judge(folder, args.json)
    return outcome.code if args.pass_exit_code and outcome.code else code


def judge(folder: Path, as_json: bool) -> int:
    from tinkerlab.diagnosis.reporting import report
    from tinkerlab.diagnosis.stalls.judge import judge
    from tinkerlab.diagnosis.stalls.trace import Outcome, read_folder

    outcome = Outcome.read(folder)
    return report(judge(read_folder(folder, outcome), outcome, folder), as_json)


def attach(args: argparse.Namespace) -> int:
    from tinkerlab.diagnosis.reporting import report
    from tinkerlab.diagnosis.stalls import attach as spy

    looks = spy.observe(args.pid, args.looks, args.seconds)
    return report(spy.judge(looks, args.seconds), args.json)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    if args.command == "run":
        return run(args)
    if args.command == "report":
        return judge(args.folder, args.json)
    return attach(args)


if __name__ == "__main__":
    cli.run(main)
