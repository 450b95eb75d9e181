#!/usr/bin/env python3
"""Is a merged model the base plus the adapter? If not, which mistake made it?

Compares every number of every tensor with a float32 merge of its own (base + B A * scale), made
by code that shares nothing with tinker-cookbook's or PEFT's. Where they differ, the known
mistakes are tried until one explains the difference to rounding: gate and up exchanged,
interleaved taken for concatenated, rows of a split projection misplaced, experts transposed or
permuted, a wrong scale, added twice, subtracted or not at all, only some layers or experts, the
output layer's change in the embedding, another base, coarse rounding. Norms prove nothing here:
permuted experts have the right norms.

Takes Tinker's own adapters and PEFT's, and merged models made by anything. Reads a block at a
time: a model much larger than memory is fine. Without --merged it only says which of the
adapter's names match which tensors of the base.

Exit 0: right; 1: a problem was found; 2: not a model or adapter folder.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tinkerlab import cli
from tinkerlab.diagnosis.reporting import report


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Is a merged model the base plus the adapter? If not, which mistake made it?",
        epilog="example: python scripts/merge_check.py --base models/Qwen3-8B "
        "--adapter export/adapter --merged merged",
    )
    add = parser.add_argument
    add("--base", type=Path, required=True, metavar="DIR", help="the model that was trained on")
    add(
        "--adapter",
        type=Path,
        required=True,
        metavar="DIR",
        help="the LoRA adapter, as downloaded from the service or in PEFT's form",
    )
    add("--merged", type=Path, metavar="DIR", help="the merged model to check")
    add("--json", action="store_true", help="print one JSON document on stdout")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    from tinkerlab.diagnosis.merges.check import check_merge

    return report(check_merge(args.base, args.adapter, args.merged, cli.say), args.json)


if __name__ == "__main__":
    cli.run(main)
