#!/usr/bin/env python3
"""What a fine-tune will cost before it is started: tokens, steps, price, wall time.

Prices come from templates/prices.yaml (dated; --prices FILE takes your own). Tokens are counted
from --data, or given. Wall time is known only from an earlier run of yours: --like RUN.
Exit 0: estimated; 2: bad input, or no price for the model.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tinkerlab import cli
from tinkerlab.errors import InputError
from tinkerlab.planning import cost, prices

EXAMPLES = """\
examples:
  python scripts/estimate_cost.py Qwen/Qwen3-8B --data chats.jsonl --epochs 3
  python scripts/estimate_cost.py Qwen/Qwen3-8B --method rl --steps 100 --groups 128 \\
      --group-size 16 --prompt-tokens 200 --completion-tokens 800
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("model", help="base model, as the service names it")
    add("--method", choices=("sft", "dpo", "rl", "distill"), default="sft", help="default: sft")
    add("--prices", type=Path, default=prices.DEFAULT_FILE, metavar="FILE", help="your own table")
    add("--rank", type=int, default=32, help="of the adapter, for checkpoint sizes (default: 32)")
    add("--like", type=Path, metavar="RUN", help="run folder whose seconds per step to assume")
    add("--json", action="store_true", help="print one JSON document on stdout")
    rows = parser.add_argument_group("sft, dpo")
    add = rows.add_argument
    add("--data", type=Path, metavar="FILE", help="training rows, counted with --tokenizer")
    add("--tokenizer", metavar="DIR|NAME", help="default: the model's")
    add("--tokens", type=int, metavar="N", help="of one epoch (dpo: both sides of each pair)")
    add("--rows", type=int, metavar="N", help="rows of one epoch, instead of --data")
    add("--epochs", type=float, default=1.0, help="default: 1")
    add("--batch", type=int, default=128, help="rows in one update (default: 128)")
    add("--held-out-tokens", type=int, default=0, metavar="N", help="scored at each evaluation")
    add("--eval-every", type=int, default=0, metavar="STEPS", help="0: never")
    rollouts = parser.add_argument_group("rl, distill")
    add = rollouts.add_argument
    add("--steps", type=int, metavar="N", help="updates")
    add("--groups", type=int, default=128, metavar="N", help="prompts in one update (default: 128)")
    add("--group-size", type=int, default=16, metavar="N", help="rollouts of each (default: 16)")
    add("--prompt-tokens", type=int, metavar="N", help="mean length of a prompt")
    add("--completion-tokens", type=int, metavar="N", help="mean length of a reply")
    add("--teacher", metavar="NAME", help="distill: the model that scores (default: the same)")
    return parser


def usage_of(args: argparse.Namespace) -> cost.Usage:
    """The tokens of the whole run.

    Raises:
        InputError: something that the method needs is missing, or not positive.
    """
    if args.method in ("rl", "distill"):
        needed = ("steps", "groups", "group_size", "prompt_tokens", "completion_tokens")
        require_positive(args, needed)
        numbers = {name: getattr(args, name) for name in needed}
        return cost.rl_usage(**numbers, teacher=args.method == "distill")
    if args.data and args.method == "dpo":
        raise InputError("--method dpo: --data counts conversations only; give --tokens and --rows")
    if args.data:
        from tinkerlab.planning.counting import count_rows

        counted = count_rows(args.data, args.model, args.tokenizer)
        args.tokens, args.rows = counted.tokens, counted.rows
        if counted.left_out:
            cli.say(f"{counted.left_out} rows of {args.data} can't be used and are left out")
    require_positive(args, ("tokens", "rows", "epochs", "batch"), "; or give --data FILE")
    steps = max(int(args.rows * args.epochs / args.batch), 1)
    if args.method == "dpo":
        return cost.preference_usage(args.tokens, args.epochs, steps)
    evaluations = steps // args.eval_every + 1 if args.eval_every > 0 else 0
    return cost.supervised_usage(
        args.tokens,
        args.epochs,
        steps,
        held_out_tokens=args.held_out_tokens,
        evals=evaluations,
    )


def require_positive(args: argparse.Namespace, names: Sequence[str], hint: str = "") -> None:
    for name in names:
        value = getattr(args, name)
        if value is None or value <= 0:
            flag = name.replace("_", "-")
            raise InputError(f"--method {args.method} needs a --{flag} above 0{hint}")


def seconds_per_step(run: Path) -> float:
    """Median wall time of a step in an earlier run.

    Raises:
        InputError: the folder has no such times.
    """
    import statistics

    from tinkerlab.runs import jsonl

    times = [
        row["time/total"]
        for row in jsonl.read(run / "metrics.jsonl")
        if isinstance(row.get("time/total"), (int, float))
    ]
    if not times:
        raise InputError(f"--like {run}: no time/total in its metrics.jsonl; give a run's log_path")
    return statistics.median(times)


def dollars(amount: float) -> str:
    """Two decimals, or as many as a small amount needs to be seen."""
    return f"${amount:,.2f}" if amount >= 1 or amount == 0 else f"${amount:.2g}"


def show(found: cost.Estimate, seconds: float | None) -> None:
    used, price = found.usage, found.price
    print(f"about {dollars(found.total_usd)} for {used.steps:,} steps on {found.model}")
    rows = (
        ("train", used.train, price.train, found.train_usd),
        ("prefill", used.prefill + used.cached, price.prefill, found.prefill_usd),
        ("sample", used.sample, price.sample, found.sample_usd),
        ("scored", used.scored, found.scorer_price.prefill, found.scored_usd),
    )
    for name, tokens, per_million, usd in rows:
        if tokens:
            print(
                f"  {name:<8}{tokens:>15,} tokens at ${per_million:g} per million: {dollars(usd)}"
            )
    if used.cached:
        print(
            f"  (of the prefill {used.cached:,} repeat a prompt and are billed at the cached rate)"
        )
    if found.checkpoint_bytes is not None and found.storage_usd_month is not None:
        print(
            f"  each checkpoint pair about {found.checkpoint_bytes / 1e6:,.0f} MB if stored in"
            f" float32: ${found.storage_usd_month:.3f} a month"
        )
    if seconds is None:
        print("  wall time: unknown; --like RUN takes the seconds per step of an earlier run")
    else:
        print(f"  wall time: {used.steps * seconds / 60:,.0f} minutes at {seconds:.1f} s a step")
    print(f"  prices read {price.read}; compare with {found.price_source}")


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    table = prices.read_prices(args.prices)
    for name in filter(None, (args.model, args.teacher)):
        table.of(name)  # refused, if it must be, before anything is counted

    from tinkerlab.planning.hyperparams import lora_parameters

    if args.rank < 1:
        raise InputError(f"--rank must be at least 1, got {args.rank}")
    found = cost.estimate(
        args.model,
        usage_of(args),
        table,
        scorer=args.teacher,
        lora_parameters=lora_parameters(args.model, args.rank),
    )
    seconds = seconds_per_step(args.like) if args.like else None
    if args.json:
        wall = None if seconds is None else found.usage.steps * seconds
        cli.emit_json({**found.as_dict(), "wall_seconds": wall})
    else:
        show(found, seconds)
    return cli.EXIT_OK


if __name__ == "__main__":
    cli.run(main)
