#!/usr/bin/env python3
"""Check that a results folder shows what it claims: same items, true numbers, logs there.

Verdict first, then every broken rule with its place and its fix.
Exit 0: the folder holds; 1: a rule is broken; 2: there is no such folder.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tinkerlab import cli
from tinkerlab.evaluation.checking import Verdict, check_results

SHOWN = 40


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Validate a results folder (written by evaluate.py) against its contract.",
        epilog="example: python scripts/check_results.py results/",
    )
    parser.add_argument("results", type=Path, help="folder with summary.json and the two records")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    return parser.parse_args(argv)


def print_verdict(verdict: Verdict) -> None:
    if verdict.ok:
        print(f"OK: {verdict.folder} holds ({verdict.task_type}, {verdict.items} items)")
        print(f"    {verdict.summary['scores']['verdict']}")
    else:
        count = len(verdict.findings)
        print(f"NOT OK: {verdict.folder} breaks {count} rule{'s' if count != 1 else ''}")
    for finding in verdict.findings[:SHOWN]:
        print(f"  [{finding.rule}] {finding.where}: {finding.what}\n      fix: {finding.fix}")
    if len(verdict.findings) > SHOWN:
        print(f"  ... and {len(verdict.findings) - SHOWN} more (--json lists all)")
    for note in verdict.notes:
        print(f"  note: {note}")


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    verdict = check_results(args.results)
    if args.json:
        cli.emit_json(verdict.as_dict())
    else:
        print_verdict(verdict)
    return cli.EXIT_OK if verdict.ok else cli.EXIT_FOUND


if __name__ == "__main__":
    cli.run(main)
