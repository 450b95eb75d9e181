#!/usr/bin/env python3
"""Read a training script without running it and name what makes it slow, stale or lose work.

Follows the script's calls of the Tinker SDK and of tinker-cookbook in the order of execution:
waits between two submits, coroutines taken for futures, samples one at a time, sampling clients
that are older than the weights, wrong checkpoint paths, timeouts and retries of one's own,
missing saves, and more. Each finding names the line, the reason and the rewrite.
A comment `# tinker: ignore[cause]` on the line silences a finding.

Exit 0: nothing, or warnings only; 1: a problem was found; 2: no such file, or not Python.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tinkerlab import cli
from tinkerlab.diagnosis.lint.check import check
from tinkerlab.diagnosis.reporting import report


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Read a training script without running it: what waits too early, samples "
        "from stale weights or loses work, with line, reason and rewrite.",
        epilog="example: python scripts/check_pipelining.py train.py",
    )
    add = parser.add_argument
    add("paths", type=Path, nargs="+", metavar="FILE", help=".py, .ipynb, or a folder of them")
    add("--json", action="store_true", help="print one JSON document on stdout")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    return report(check(args.paths), args.json)


if __name__ == "__main__":
    cli.run(main)
