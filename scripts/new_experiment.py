#!/usr/bin/env python3
"""Begin an experiment: a dated folder with a plan to fill in, a config and notes.

Notes record the git commit, and whether anything was uncommitted: an experiment whose code
cannot be found again proves nothing. Nothing that exists is overwritten.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tinkerlab import cli, experiments

EXAMPLES = """\
examples:
  python scripts/new_experiment.py shorter-replies --method dpo
  python scripts/new_experiment.py lr-3e-4 --question "Does a threefold learning rate hold?"

exit codes: 0 made (uncommitted changes are warned of); 2 bad name, or the folder exists.
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("name", metavar="NAME", help="a few words joined by '-'; the date goes before it")
    add("--method", choices=experiments.METHODS, default="sft", help="default: sft")
    add("--question", metavar="TEXT", help="what the experiment is to answer")
    add(
        "--output",
        type=Path,
        default=Path("experiments"),
        metavar="DIR",
        help="where experiments lie (default: experiments)",
    )
    add("--json", action="store_true", help="print one JSON document on stdout")
    args = parser.parse_args(argv)

    made = experiments.create(args.output, args.name, args.method, args.question)
    tree = made.tree
    if tree is None:
        cli.say("warning: not in a git repository: the notes cannot say which code ran")
    elif tree.is_dirty:
        cli.say(
            f"warning: commit before each experiment; uncommitted: {tree.told()}. Commit, then put"
            f" the new commit into {made.folder / 'notes.md'}"
        )
    if args.json:
        cli.emit_json(
            {
                "folder": str(made.folder),
                "run_name": made.run_name,
                "log_path": str(made.log_path),
                "command": made.command,
                "git_commit": tree.commit if tree else None,
                "dirty": tree.is_dirty if tree else None,
                "diff_sha256": tree.diff_sha256 if tree else None,
                "next": [{"what": what, "command": command} for what, command in made.next_steps()],
            }
        )
        return cli.EXIT_OK
    print(f"made {made.folder}: plan.md, config.yaml, notes.md\n\nnext:")
    for number, (what, command) in enumerate(made.next_steps(), start=1):
        print(f"  {number}. {what}" + (f"\n     {command}" if command else ""))
    return cli.EXIT_OK


if __name__ == "__main__":
    cli.run(main)
