#!/usr/bin/env python3
"""Settings to start a fine-tune from: learning rate, rank, batch and steps, each with its reason.

Uses tinker-cookbook's formula where it has one and says so where it has none. With --data the
rank and the number of steps follow from the rows. Needs no service and no key.
Exit 0: suggested; 2: bad input.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from tinkerlab import cli
from tinkerlab.planning.hyperparams import Method, Plan, suggest


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Suggest settings to start from, with their reasons and sources.",
        epilog="example: python scripts/hyperparams.py Qwen/Qwen3-8B --data chats.jsonl"
        " --tokenizer HuggingFaceTB/SmolLM2-135M-Instruct",
    )
    parser.add_argument("model", help="base model, as the service names it")
    parser.add_argument("--method", choices=get_args(Method), default="sft", help="default: sft")
    parser.add_argument("--data", type=Path, metavar="FILE", help="training rows, to be counted")
    parser.add_argument(
        "--tokenizer", metavar="DIR|NAME", help="to count with; default: the model's"
    )
    parser.add_argument("--examples", type=int, metavar="N", help="instead of --data")
    parser.add_argument("--completion-tokens", type=int, metavar="N", help="instead of --data")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    return parser.parse_args(argv)


def show(plan: Plan) -> None:
    print(f"{plan.model}, {plan.method}: start from")
    for row in plan.suggestions:
        print(f"  {row.setting}={row.value:g}\n      {row.why}\n      source: {row.source}")
    for note in plan.notes:
        print(f"note: {note}")


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    examples, tokens = args.examples, args.completion_tokens
    if args.data:
        from tinkerlab.planning.counting import count_rows

        counted = count_rows(args.data, args.model, args.tokenizer)
        examples, tokens = counted.rows, counted.trained_tokens
    plan = suggest(args.model, args.method, examples=examples, completion_tokens=tokens)
    if args.json:
        cli.emit_json(plan.as_dict())
    else:
        show(plan)
    return cli.EXIT_OK


if __name__ == "__main__":
    cli.run(main)
