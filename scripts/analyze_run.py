#!/usr/bin/env python3
"""Say what is wrong with a training run, from the files that it left or is leaving.

Reads a run's folder (metrics.jsonl, config.json, checkpoints.jsonl, attempts.jsonl, rollout
summaries, logtree files, evaluation results) of tinker-cookbook, of this project's trainers, or
a metrics file alone. Half a last line is normal in a live run. Nothing is asked of the service.

Exit 0: nothing wrong; 1: a problem was found; 2: no such run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tinkerlab import cli
from tinkerlab.diagnosis.findings import Diagnosis
from tinkerlab.diagnosis.reporting import report
from tinkerlab.errors import InputError

if TYPE_CHECKING:
    from tinkerlab.diagnosis.run_analysis.run import Run


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Say what is wrong with a training run: losses, learning rate, resumes,"
        " checkpoints, RL signal, evaluations, time.",
        epilog="example: python scripts/analyze_run.py runs/sft --html run.html",
    )
    add = parser.add_argument
    add("run", type=Path, metavar="LOG_DIR", help="a run's folder, or a metrics.jsonl")
    add(
        "--watch",
        type=float,
        nargs="?",
        const=30.0,
        metavar="SECONDS",
        help="follow a live run: look again every so often (default: 30) and print what is new,"
        " until its final checkpoint, --until-step or Ctrl-C",
    )
    add("--until-step", type=int, metavar="N", help="with --watch: end when step N is logged")
    add(
        "--against",
        type=Path,
        metavar="LOG_DIR",
        help="another run: also say whether the losses of the two may be compared",
    )
    add("--html", type=Path, metavar="FILE", help="also write a page with plots and findings")
    add("--json", action="store_true", help="print one JSON document on stdout")
    args = parser.parse_args(argv)
    if args.watch is not None and not args.watch > 0:
        raise InputError(f"--watch must be more than 0 seconds, not {args.watch:g}")
    if args.until_step is not None and args.watch is None:
        raise InputError("--until-step needs --watch: without it the run is read once")
    if args.html is not None and not args.html.resolve().parent.is_dir():
        raise InputError(f"--html {args.html}: no such folder; make it first")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    from tinkerlab.diagnosis.run_analysis.analysis import analyze
    from tinkerlab.diagnosis.run_analysis.run import open_run

    run = open_run(args.run)
    other = open_run(args.against) if args.against else None
    if args.watch is not None:
        from tinkerlab.diagnosis.run_analysis.watch import watch

        diagnosis = watch(run, args.watch, args.until_step, quiet=args.json)
    else:
        run.read()
        if run.is_empty:
            raise InputError(f"{args.run}: nothing is logged yet; follow it with --watch")
        if run.is_foreign:
            raise InputError(
                f"{args.run}: none of its metrics is known"
                f" ({', '.join(run.metrics.keys[:6]) or 'no numbers at all'}); use the cookbook's"
                " names, such as step, learning_rate and train_mean_nll"
            )
        diagnosis = analyze(run)
    if other is not None:
        from tinkerlab.diagnosis.run_analysis.comparing import against

        other.read()
        diagnosis.findings += against(run, other)
    if args.html is not None:
        _write_page(args.html, run, diagnosis)
    return report(diagnosis, args.json)


def _write_page(file: Path, run: Run, diagnosis: Diagnosis) -> None:
    from tinkerlab.diagnosis.run_analysis.page import render

    diagnosis.require_checked()
    try:
        file.write_text(render(run, diagnosis), encoding="utf-8")
    except OSError as error:
        raise InputError(f"--html {file}: {error.strerror}; choose another place") from None
    cli.say(f"wrote {file}")


if __name__ == "__main__":
    cli.run(main)
