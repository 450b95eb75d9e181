#!/usr/bin/env python3
"""What does a training step cost to serialize, here and now?

Times what the SDK does with a batch, with the SDK's own functions and without a service:
building the datums, conversion to protobuf, SerializeToString, zstd; and the JSON of a sample
request. Prints the verdict, the thresholds and the medians.

Measures a made-up batch (--batch, --length, --form, --top-k), rows of a data file (--data), or
what a function of yours builds (--builder train.py:make_batch).

Exit 0: within the limits; 1: a cause was found; 2: bad input.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tinkerlab import cli
from tinkerlab.errors import InputError

FORMS = ("numpy", "torch", "lists", "scalars", "token-chunks")  # described in sources.py


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n"
        "  python scripts/serialization_test.py\n"
        "  python scripts/serialization_test.py --builder train.py:make_batch",
    )
    add = parser.add_argument
    add("--batch", type=int, default=4, help="datums in the batch (default: %(default)s)")
    add("--length", type=int, default=8192, help="tokens of each, at most (default: %(default)s)")
    add(
        "--form",
        choices=FORMS,
        default="numpy",
        help="what the loss inputs are made from (default: %(default)s); the last two are slow on "
        "purpose",
    )
    add("--top-k", type=int, default=0, metavar="K", help="soft targets: K for each token")
    add("--data", type=Path, metavar="FILE", help="JSON lines of conversations; needs --model")
    add("--model", metavar="NAME", help="model whose renderer and tokenizer --data gets")
    add("--renderer", default="auto", metavar="NAME", help="a cookbook renderer (default: auto)")
    add("--builder", metavar="FILE.py:FUNCTION", help="a function that returns the datums; is run")
    add(
        "--prompt-length", type=int, default=32768, metavar="N", help="tokens of the sample request"
    )
    add("--repeats", type=int, default=5, metavar="N", help="of each stage (default: %(default)s)")
    add("--json", action="store_true", help="print one JSON document on stdout")
    args = parser.parse_args(argv)
    if min(args.batch, args.length, args.prompt_length, args.repeats) < 1 or args.top_k < 0:
        raise InputError("--batch, --length, --prompt-length and --repeats must be at least 1")
    if args.data and args.builder:
        raise InputError("--data or --builder, not both")
    if args.data and not args.model:
        raise InputError("--data needs --model, whose renderer and tokenizer turn it into tokens")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    from tinkerlab.diagnosis.reporting import report
    from tinkerlab.diagnosis.serialization import sources
    from tinkerlab.diagnosis.serialization.judge import BUILD_LIMIT_MS, judge
    from tinkerlab.diagnosis.serialization.measure import measure, profile

    if args.builder:
        source = sources.from_function(args.builder)
    elif args.data:
        source = sources.from_file(args.data, args.model, args.renderer, args.batch, args.length)
    else:
        source = sources.made(args.batch, args.length, args.form, args.top_k)
    costs = measure(source.build, args.repeats, args.prompt_length)
    if costs.build > BUILD_LIMIT_MS and not source.renders:
        costs.slowest = profile(source.build)
    return report(judge(costs, source), args.json)


if __name__ == "__main__":
    cli.run(main)
