#!/usr/bin/env python3
"""Smoke test: does every kind of model still train, end to end, by every method?

Families (base, instruction, hybrid, reasoning) x methods (sft, grpo): each cell is a real run of
two steps of sl_trainer.py or rl_trainer.py, then a sample from what it saved. A cell passes when
the run finished, its metrics are there, its loss is finite, its checkpoint is recorded and
answers. "no signal" is a GRPO cell whose groups all have equal rewards: the machinery works, the
model's samples are too much alike; it counts as no failure.

With a key it runs on the service, for cents (--dry-run says how many); without one on a
rehearsal, in which tiny random models of other architectures stand in under the same names.
Cells that passed are not run again, so the same command does the rest.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkerlab import cli
from tinkerlab.errors import InputError
from tinkerlab.smoke.families import FAMILIES, METHODS, choose, parse_models, served_models

if TYPE_CHECKING:
    from tinkerlab.smoke.cells import Cell
    from tinkerlab.smoke.record import Record

DEFAULT_REPORT = Path("runs/smoke/report.json")
PROBLEMS = ("failed", "no signal", "interrupted", "not run")

EXAMPLES = """\
examples:
  python scripts/live_model_matrix_smoke.py --rehearse
  python scripts/live_model_matrix_smoke.py --dry-run
  python scripts/live_model_matrix_smoke.py --families base reasoning --methods sft \\
      --models reasoning=openai/gpt-oss-120b --output reports/smoke.json

exit codes: 0 all passed, up to --allow-failures; 1 more failed; 2 bad input, nothing was
started; 130 interrupted (the same command goes on).
"""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_argument_group("what is tried").add_argument
    what("--families", nargs="+", choices=tuple(FAMILIES), default=list(FAMILIES), metavar="NAME",
         help=f"default: all of {', '.join(FAMILIES)}")  # fmt: skip
    what("--methods", nargs="+", choices=METHODS, default=list(METHODS), metavar="NAME",
         help=f"default: {', '.join(METHODS)}")  # fmt: skip
    what("--models", nargs="+", action="extend", default=[], metavar="FAMILY=NAME",
         help="another model for a family (default: a small one that the service trains)")  # fmt: skip
    what("--max-tokens", type=int, default=96, metavar="N", help="longest sample (default: 96)")
    what("--lora-rank", type=int, default=8, metavar="N", help="default: 8")
    what("--group-size", type=int, default=4, metavar="N", help="samples a prompt (default: 4)")
    what("--reward", metavar="SPEC", help="of grpo (default: one in which samples differ)")
    how = parser.add_argument_group("how").add_argument
    how("--rehearse", action="store_true", help="on a rehearsal, also where there is a key")
    how("--fault", action="append", default=[], metavar="KIND[:ARGS]",
        help="with a rehearsal: let its service misbehave; see `rehearse.py faults`")  # fmt: skip
    how("--at-once", type=int, default=2, metavar="N", help="cells side by side (default: 2)")
    how("--time-limit", type=float, default=900.0, metavar="SECONDS",
        help="of each command of a cell (default: 900)")  # fmt: skip
    how("--allow-failures", type=int, default=0, metavar="N", help="exit 0 with so many failures")
    how("--again", action="store_true", help="run cells that passed, too")
    how("--output", type=Path, default=DEFAULT_REPORT, metavar="X.json",
        help=f"the report; run folders go beside it (default: {DEFAULT_REPORT})")  # fmt: skip
    how("--dry-run", action="store_true", help="say what would run and its price; start nothing")
    how("--json", action="store_true", help="print the report on stdout")
    args = parser.parse_args(argv)
    check(args)
    return args


def check(args: argparse.Namespace) -> None:
    """Refuse numbers that mean nothing.

    Raises:
        InputError: names the option.
    """
    least = {"max_tokens": 1, "lora_rank": 1, "group_size": 2, "at_once": 1, "allow_failures": 0}
    for name, smallest in least.items():
        if getattr(args, name) < smallest:
            flag = f"--{name.replace('_', '-')}"
            raise InputError(f"{flag} must be at least {smallest}, not {getattr(args, name)}")
    if not 0 < args.time_limit < math.inf:
        raise InputError(f"--time-limit must be above 0 seconds, not {args.time_limit:g}")
    args.families = list(dict.fromkeys(args.families))
    args.methods = list(dict.fromkeys(args.methods))


def plan(args: argparse.Namespace) -> list[Cell]:
    """The cells that are asked for.

    Raises:
        InputError: --models that can't be used, --fault for a service that is not ours.
    """
    from tinkerlab import service
    from tinkerlab.smoke.cells import REWARD, Settings, make_cells

    named = parse_models(args.models)
    left_out = sorted(set(named).difference(args.families))
    if left_out:
        raise InputError(f"--models names {left_out[0]}, which --families leaves out")
    rehearse = args.rehearse or not service.has_credential()
    if args.fault and not rehearse:
        raise InputError("--fault needs a rehearsal: add --rehearse")
    where = "rehearsal" if rehearse else os.environ.get("TINKER_BASE_URL") or "hosted"
    settings = Settings(
        service=where,
        max_tokens=args.max_tokens,
        lora_rank=args.lora_rank,
        group_size=args.group_size,
        reward=args.reward or REWARD,
    )
    served = set() if rehearse or args.dry_run else served_models()
    return make_cells(choose(args.families, named, served), args.methods, settings)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    from tinkerlab.smoke.record import Record, only_one

    cells = plan(args)
    if args.dry_run:
        return announce(cells, Record(args.output), args)
    with only_one(args.output) as record:
        todo = [cell for cell in cells if args.again or not record.passed(cell)]
        if len(todo) < len(cells):
            cli.say(f"{len(cells) - len(todo)} of {len(cells)} cells passed before (--again)")
        interrupted = bool(todo) and run(todo, record, cells, args)
        report = record.write(cells, args.allow_failures)
    if args.json:
        cli.emit_json(report)
    else:
        show(report, args.output)
    if interrupted:
        cli.say("interrupted; the same command goes on")
        return cli.EXIT_INTERRUPTED
    return cli.EXIT_OK if report["ok"] else cli.EXIT_FOUND


def announce(cells: Sequence[Cell], record: Record, args: argparse.Namespace) -> int:
    """What would run, and what it would cost on the hosted service."""
    from tinkerlab.planning.prices import read_prices
    from tinkerlab.smoke.cells import shown

    table = read_prices()
    rows = [
        {
            "cell": cell.name,
            "model": cell.model,
            "passed_before": record.passed(cell) and not args.again,
            "hosted_usd_at_most": cell.price(table),
            "command": shown(cell.training(record.folder, record.folder / cell.name / "1" / "run")),
        }
        for cell in cells
    ]
    prices = [row["hosted_usd_at_most"] for row in rows if not row["passed_before"]]
    total = sum(price for price in prices if price is not None)
    unknown = sum(price is None for price in prices)
    service = cells[0].settings.service
    if args.json:
        cli.emit_json({"service": service, "hosted_usd_at_most": total, "no_price": unknown,
                       "cells": rows})  # fmt: skip
        return cli.EXIT_OK
    print(f"{len(prices)} of {len(cells)} cells would run on: {service}")
    for row in rows:
        price = row["hosted_usd_at_most"]
        told = "no price known" if price is None else f"${price:.4f}"
        done = "  (passed before)" if row["passed_before"] else ""
        print(f"  {row['cell']:<18} {row['model']:<32} {told}{done}")
    free = "; this rehearsal costs nothing" if cells[0].settings.rehearsed else ""
    more = f", and {unknown} without a price" if unknown else ""
    print(f"hosted, at most ${total:.3f}{more}{free}; compare with {table.source}")
    return cli.EXIT_OK


def run(
    todo: Sequence[Cell], record: Record, cells: Sequence[Cell], args: argparse.Namespace
) -> bool:
    """Run the cells; whether it was interrupted."""
    from tinkerlab.smoke.cells import write_inputs
    from tinkerlab.smoke.matrix import Matrix

    write_inputs(record.folder)
    with service_for(todo, record, args.fault) as env:
        matrix = Matrix(record, env, record.folder, args.time_limit, cli.say)
        cli.say(f"{len(todo)} cells, {args.at_once} at once, on: {todo[0].settings.service}")
        matrix.run(todo, args.at_once, lambda: record.write(cells, args.allow_failures))
    return matrix.interrupted


@contextlib.contextmanager
def service_for(
    cells: Sequence[Cell], record: Record, faults: Sequence[str]
) -> Iterator[dict[str, str]]:
    """The environment in which the cells find their service; starts a rehearsal if need be.

    Raises:
        InputError: it can't be started.
    """
    if not cells[0].settings.rehearsed:
        yield dict(os.environ)
        return
    from tinkerlab.rehearsal.service.launch import rehearsal_server

    stand_ins = {cell.model: FAMILIES[cell.family].stand_in for cell in reversed(cells)}
    with rehearsal_server(
        [name for name in stand_ins if name.startswith("tiny:")],
        store=record.folder / "store",
        aliases=[f"{n}={tiny}" for n, tiny in stand_ins.items() if not n.startswith("tiny:")],
        faults=faults,
    ) as server:
        # Everything that a rehearsal needs is here; the hub would only be asked in vain.
        yield {**server.env, "HF_HUB_OFFLINE": "1"}


def show(report: dict[str, Any], output: Path) -> None:
    """The matrix, what did not pass, and where the whole report is."""
    rows = [report["cells"][name] for name in report["asked"] if name in report["cells"]]
    print(f"{'OK' if report['ok'] else 'NOT OK'}: " + ", ".join(
        f"{count} {state}" for state, count in report["counts"].items()
    ) + f", on: {report['service']}")  # fmt: skip
    for row in rows:
        print(f"  {row['family']:<12} {row['method']:<5} {row['model']:<32} {row['status']}")
        if row["status"] in PROBLEMS:
            print(f"      {row['reason']}\n      log: {row['log']}")
    kept = sum(len(row["saved"]) for row in rows)
    if kept and report["service"] != "rehearsal":
        print(f"{kept} checkpoints stay at the service; `tinker checkpoint delete` removes them")
    print(f"report: {output}")


if __name__ == "__main__":
    cli.run(main)
