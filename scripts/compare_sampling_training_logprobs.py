#!/usr/bin/env python3
"""Do sampler and trainer give the same tokens the same logprobs? Verdict per model.

Samples tokens with their logprobs, then has the sampler (compute_logprobs) and the trainer
(forward, no step) score the same tokens: mean and largest difference, KL estimates, worst
tokens, share of logprobs that are exactly 0.0. With --checkpoint the noise floor is measured in
the same run on the base model, and twice that floor passes.

Exit 0: they agree; 1: a problem was found; 2: no service, no such model or checkpoint.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tinkerlab import cli
from tinkerlab.diagnosis.reporting import report
from tinkerlab.errors import InputError


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Hold the sampler's logprobs against the trainer's on the same tokens.",
        epilog="examples:\n"
        "  python scripts/compare_sampling_training_logprobs.py --model Qwen/Qwen3-8B\n"
        "  python scripts/rehearse.py run --model tiny:llama -- \\\n"
        "      python scripts/compare_sampling_training_logprobs.py --model tiny:llama",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", action="append", required=True, metavar="NAME", help="base model; repeatable")
    add(
        "--checkpoint", metavar="tinker://", help="training weights to score with (.../weights/...)"
    )
    add("--sampler", metavar="tinker://", help="sampler weights to sample from; default: the same")
    add("--prompts", type=Path, metavar="FILE", help="prompts, one a line (default: eight of ours)")
    add("--tokenizer", metavar="DIR|NAME", help="its tokenizer, when not under the model's name")
    add("--n", type=int, default=8, help="prompts to use (default: 8)")
    add("--max-tokens", type=int, default=32, metavar="N", help="sampled tokens of each")
    add("--temperature", type=float, default=1.0, metavar="T", help="of sampling (default: 1)")
    add("--json", action="store_true", help="print one JSON document on stdout")
    args = parser.parse_args(argv)
    if args.n < 1 or args.max_tokens < 1:
        raise InputError("--n and --max-tokens must be at least 1")
    if not 0 <= args.temperature < float("inf"):  # nan, too
        raise InputError("--temperature must be finite and not negative")
    if (args.checkpoint or args.sampler) and len(args.model) > 1:
        raise InputError("--checkpoint and --sampler belong to one --model")
    for flag, path in (("--checkpoint", args.checkpoint), ("--sampler", args.sampler)):
        if path and not path.startswith("tinker://"):
            raise InputError(f"{flag} {path}: must be a tinker:// path")
    if args.checkpoint and "/sampler_weights/" in args.checkpoint:
        raise InputError(
            "--checkpoint: sampler weights can't be trained on; give them as --sampler"
        )
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    from tinkerlab.diagnosis.logprob_gap.check import Request, check

    request = Request(
        models=args.model,
        prompts=args.prompts,
        checkpoint=args.checkpoint,
        sampler=args.sampler,
        tokenizer=args.tokenizer,
        n=args.n,
        max_tokens=args.max_tokens,
        temperature=args.temperature,
    )
    return report(check(request), args.json)


if __name__ == "__main__":
    cli.run(main)
