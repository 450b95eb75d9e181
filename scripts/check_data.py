#!/usr/bin/env python3
"""Check training data as a supervised run would, without training: verdict, evidence, fixes.

Reads JSON lines of {"messages": [...]}, {"prompt", "completion"}, {"instruction", "input",
"output"} or {"input", "output"}, and of preference pairs {"prompt", "chosen", "rejected"}; lists every bad line; splits; renders with the model's
renderer; counts tokens; looks for rows that train nothing, for evaluation rows that stand in
the training data, and for markup that the model will misread. Needs only a tokenizer.

Exit 0: ready to train on; 1: a problem was found; 2: no such file, tokenizer or renderer.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from tinkerlab import cli
from tinkerlab.data.messages import TrainOnWhat
from tinkerlab.data.splits import MAX_TRAIN_ROWS, MAX_VAL_ROWS, VAL_FRACTION
from tinkerlab.errors import InputError

if TYPE_CHECKING:
    from tinkerlab.data.files import FilesReport

LISTED = 50  # bad rows that the text output lists; --json lists all


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Check training data as a supervised run would, without training.",
        epilog="example: python scripts/check_data.py --data chats.jsonl --model Qwen/Qwen3-8B "
        "--tokenizer ~/tokenizers/qwen3 --max-seq-len 4096",
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="FILE", help="training data, JSON lines")
    add("--val", type=Path, metavar="FILE", help="evaluation data; default: a part of --data")
    add("--model", metavar="NAME", help="base model (default: the embedded rehearsal model)")
    add("--tokenizer", metavar="DIR|NAME", help="its tokenizer, when not under the model's name")
    add("--renderer", default="auto", metavar="NAME", help="a cookbook renderer (default: auto)")
    add(
        "--train-on-what",
        default="all_assistant_messages",
        choices=get_args(TrainOnWhat),
        metavar="WHAT",
        help="which messages are trained: %(choices)s (default: %(default)s)",
    )
    add("--max-seq-len", type=int, default=2048, metavar="N", help="tokens of a row that are kept")
    add(
        "--val-fraction",
        type=float,
        default=VAL_FRACTION,
        metavar="F",
        help="evaluation rows per training row, without --val (default: %(default)s)",
    )
    add("--max-train-rows", type=int, default=MAX_TRAIN_ROWS, metavar="N", help="training limit")
    add("--max-val-rows", type=int, default=MAX_VAL_ROWS, metavar="N", help="evaluation limit")
    add("--seed", type=int, default=0, help="of the split")
    add("--skip-bad-rows", action="store_true", help="leave bad rows out (counted), don't refuse")
    add(
        "--allow-contamination",
        action="store_true",
        help="only warn of evaluation rows that stand in the training data",
    )
    add("--json", action="store_true", help="print one JSON document on stdout")
    args = parser.parse_args(argv)
    if args.max_seq_len < 2:
        raise InputError("--max-seq-len must be at least 2: one token predicts the next")
    if not 0 <= args.val_fraction < 1:
        raise InputError(f"--val-fraction must be in [0, 1), not {args.val_fraction}")
    if min(args.max_train_rows, args.max_val_rows) < 1:
        raise InputError("--max-train-rows and --max-val-rows must be at least 1")
    return args


def check(args: argparse.Namespace) -> FilesReport:
    from tinkerlab.data.files import CheckPlan, check_files
    from tinkerlab.rehearsal.models.registry import DEFAULT_MODEL

    return check_files(
        CheckPlan(
            train_file=args.data,
            val_file=args.val,
            base_model=args.model or DEFAULT_MODEL,
            tokenizer=args.tokenizer,
            renderer=args.renderer,
            train_on_what=args.train_on_what,
            max_seq_len=args.max_seq_len,
            val_fraction=args.val_fraction,
            max_train_rows=args.max_train_rows,
            max_val_rows=args.max_val_rows,
            seed=args.seed,
            skip_bad_rows=args.skip_bad_rows,
            allow_contamination=args.allow_contamination,
        ),
        progress=cli.say,
    )


def describe(result: FilesReport, coloured: bool) -> Iterator[str]:
    """The report for people, verdict first."""
    from tinkerlab.data.report import statistics_lines

    report = result.report
    yield report.verdict
    yield ""
    for data in result.files:
        yield data.summary
        yield from (f"  {note}" for note in data.notes)
    yield from report.notes
    if report.renderer:
        yield f"renderer {report.renderer}: {report.renderer_reason}"
    yield from statistics_lines(report)
    for name, findings in (("problem", report.problems), ("warning", report.warnings)):
        for finding in findings:
            yield ""
            limit = LISTED if finding.kind == "bad_rows" else None
            lines = list(finding.lines(limit) if limit else finding.lines())
            yield f"{name} [{finding.kind}]: {lines[0]}"
            yield from lines[1:]
    if report.dropped:
        yield f"\nleft out: {len(report.dropped)} rows"
        yield from (f"    {row}" for row in report.dropped[:LISTED])
    for preview in report.preview:
        yield f"\n--- {preview.place} ({preview.label}), trained tokens marked:"
        yield preview.coloured() if coloured else preview.plain()


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    result = check(args)
    if args.json:
        cli.emit_json(result.to_json())
    else:
        coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        for line in describe(result, coloured):
            print(cli.redact(line))
    return cli.EXIT_OK if result.report.ok else cli.EXIT_FOUND


if __name__ == "__main__":
    cli.run(main)
