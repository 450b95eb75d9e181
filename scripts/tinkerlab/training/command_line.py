"""The command line that every trainer has: a config file, overrides, a dry run, one summary."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from pathlib import Path


def build_parser(description: str | None, examples: str, dry_run: str) -> argparse.ArgumentParser:
    """The parser of a trainer's script; use its ``parse_intermixed_args``.

    Args:
        dry_run: what ``--dry-run`` does before it stops, for the help.
    """
    parser = argparse.ArgumentParser(
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="FILE.yaml", help="the run's settings")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="settings that win over the file's"
    )
    parser.add_argument("--dry-run", action="store_true", help=f"{dry_run}, then stop")
    parser.add_argument(
        "--until-step",
        type=_positive,
        metavar="N",
        help="save and pause after N steps of the whole run; without it, the same command goes on",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the summary as one JSON document"
    )
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def this_command(script: str, argv: Sequence[str] | None) -> str:
    """The command that goes on with the run: the one that was given, without a pause."""
    pause = argparse.ArgumentParser(add_help=False)
    pause.add_argument("--until-step")
    _, arguments = pause.parse_known_args(argv)
    return shlex.join(["python", os.path.relpath(script), *arguments])
