#!/usr/bin/env python3
"""Score a base and a trained model on the same held-out items, and write a results folder.

nll    mean negative log-likelihood per completion token (supervised fine-tunes)

Exit 0: evaluated; 1: the service gave broken numbers; 2: bad input. Interrupted, the same
command goes on where it stopped.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tinkerlab import cli
from tinkerlab.errors import InputError

if TYPE_CHECKING:
    from tinkerlab.evaluation.sft import Plan

EXAMPLES = """\
examples:
  python scripts/evaluate.py nll --run runs/sft --output results/
  python scripts/evaluate.py nll --base-model Qwen/Qwen3-8B --data held_out.jsonl \\
      --checkpoint tinker://RUN/sampler_weights/final --output results/

--run takes everything from the run's folder: the rows it held out, how it rendered them, its
newest checkpoint, its logs. Other options win over it. Only a folder made with --run holds the
logs that check_results.py wants.
"""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    nll = kinds.add_parser(
        "nll",
        help="mean NLL per completion token",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = nll.add_argument_group("what is scored")
    what.add_argument("--run", type=Path, metavar="LOG_PATH", help="folder of a training run")
    what.add_argument("--base-model", metavar="NAME", help="the untrained model")
    what.add_argument("--checkpoint", metavar="PATH", help="tinker://.../sampler_weights/...")
    what.add_argument("--data", type=Path, metavar="FILE", help="JSONL, every row is scored")
    how = nll.add_argument_group("how it is rendered (must be as in training)")
    how.add_argument("--renderer", metavar="NAME", help="renderer (default: the run's, or auto)")
    how.add_argument("--train-on-what", metavar="WHAT", help="which turns are scored")
    how.add_argument("--max-seq-len", type=int, metavar="N", help="longer items are truncated")
    nll.add_argument("--output", type=Path, required=True, metavar="DIR", help="results folder")
    nll.add_argument("--overwrite", action="store_true", help="replace other results in it")
    nll.add_argument("--examples", type=int, default=5, metavar="N", help="answers to sample")
    nll.add_argument("--max-tokens", type=int, default=128, metavar="N", help="longest answer")
    nll.add_argument("--seed", type=int, metavar="N", help="seed of the bootstrap")
    nll.add_argument("--in-flight", type=int, default=256, metavar="N", help="requests at a time")
    nll.add_argument("--json", action="store_true", help="print the summary as one JSON document")
    return parser.parse_args(argv)


def make_plan(args: argparse.Namespace) -> Plan:
    """The options, completed from the run's folder.

    Raises:
        InputError: something is neither given nor in the run.
    """
    from tinkerlab.evaluation.items import Rendering, read_run
    from tinkerlab.evaluation.sft import Plan

    if args.in_flight < 1 or args.max_tokens < 1 or args.examples < 0:
        raise InputError("--in-flight and --max-tokens must be at least 1, --examples at least 0")
    run = read_run(args.run) if args.run else None
    base_model = args.base_model or (run.base_model if run else None)
    checkpoint = args.checkpoint or (run.sampler_path if run else None)
    data_file = args.data or (run.held_out_file if run else None)
    if base_model is None or checkpoint is None or data_file is None:
        raise InputError("give --run LOG_PATH, or all of --base-model, --checkpoint and --data")
    as_trained = run.rendering if run else Rendering("auto", "all_assistant_messages", 2048)
    return Plan(
        base_model=base_model,
        checkpoint=checkpoint,
        data_file=data_file,
        output=args.output,
        rendering=Rendering(
            args.renderer or as_trained.renderer,
            args.train_on_what or as_trained.train_on_what,
            args.max_seq_len or as_trained.max_seq_len,
        ),
        run=run,
        seed=args.seed if args.seed is not None else (run.seed if run else 0),
        num_examples=args.examples,
        max_tokens=args.max_tokens,
        in_flight=args.in_flight,
        overwrite=args.overwrite,
    )


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    plan = make_plan(args)

    from tinkerlab.evaluation.sft import evaluate

    summary = evaluate(plan)
    if args.json:
        cli.emit_json(summary)
    else:
        print(f"held-out NLL {summary['baseline_nll']:.4f} -> {summary['trained_nll']:.4f}")
        print(summary["scores"]["verdict"])
        print(f"results: {plan.output}")
    return cli.EXIT_OK


if __name__ == "__main__":
    cli.run(main)
