#!/usr/bin/env python3
"""From an error message, a traceback or a log to its cause, its fix and the next script to run.

Knows the errors of the tinker SDK, the Tinker service, tinker-cookbook and the libraries below
them, and reads a log's times: what had stopped before the run stood still.
Exit 0: nothing known in it, or only things to wait for; 1: a cause was found; 2: bad input.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from tinkerlab import cli
from tinkerlab.diagnosis.errors import log_text
from tinkerlab.diagnosis.errors.explain import explain
from tinkerlab.diagnosis.reporting import report
from tinkerlab.errors import InputError

QUIET_SECONDS = 300.0  # as long as a pause in the log must be to be told, diagnosis/errors/stalls

EXAMPLES = """\
examples:
  python scripts/explain_error.py train.log
  python scripts/explain_error.py "tinker.ConflictError: Error code: 409 - ..."
  python train.py 2>&1 | python scripts/explain_error.py -
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what", nargs="?", metavar="LOG|MESSAGE|-", help="a log file, a message, or - for stdin"
    )
    parser.add_argument(
        "--write-reference", action="store_true", help="write skills/debug/references/errors.md"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    return parser


def source(what: str | None) -> tuple[Iterable[str], str]:
    """The lines to look at, and what they are called.

    Raises:
        InputError: nothing was given, or a file that can't be read.
    """
    if what == "-" or (what is None and not sys.stdin.isatty()):
        binary = getattr(sys.stdin, "buffer", None)
        lines = list(log_text.decoded(binary) if binary else sys.stdin)
        if not any(line.strip() for line in lines):
            raise InputError(
                "standard input is empty; give a log file, a message, or text on stdin"
            )
        return lines, "stdin"
    if what is None:
        raise InputError("give a log file, a message in quotes, or - for standard input")
    if not what.strip():
        raise InputError("the message is empty; give a log file, a message, or - for stdin")
    path = Path(what)
    if len(what) < 4096 and "\n" not in what and _exists(path):
        return log_text.read_lines(path), path.name
    if _looks_like_a_path(what):
        raise InputError(f"{what}: No such file or directory; give a log file, a message, or -")
    return what.splitlines(), "message"


def quiet_for(log: Path) -> list[str]:
    """Since when nothing was written to a log that names no error; for those who wait for it."""
    seconds = time.time() - log.stat().st_mtime
    if not QUIET_SECONDS < seconds < 86400:
        return []
    return [
        f"nothing was written to it for {seconds / 60:.0f} minutes: if its process still lives,"
        " `python scripts/task_dump.py attach PID` shows where it stands"
    ]


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a message longer than a file's name may be
        return False


def _looks_like_a_path(text: str) -> bool:
    suffixes = (".log", ".txt", ".out", ".err", ".jsonl", ".json")
    return " " not in text and ("/" in text or text.endswith(suffixes)) and "://" not in text


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    if args.write_reference:
        from tinkerlab.diagnosis.errors import reference

        reference.PAGE.parent.mkdir(parents=True, exist_ok=True)
        reference.PAGE.write_text(reference.render(), encoding="utf-8")
        cli.say(f"wrote {reference.PAGE}")
        return cli.EXIT_OK
    lines, name = source(args.what)
    diagnosis = explain(lines, name)
    if name == "message" and not diagnosis.findings and len(args.what.split()) == 1:
        raise InputError(
            f"{args.what}: no such file, and no error's name; give a log file, a message, or -"
        )
    if not diagnosis.findings and name not in ("message", "stdin"):
        diagnosis.notes += quiet_for(Path(args.what))
    return report(diagnosis, args.json)


if __name__ == "__main__":
    cli.run(main)
