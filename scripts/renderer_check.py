#!/usr/bin/env python3
"""Does this renderer teach the model what it will be asked for? Verdict, evidence, fix.

First oracle: the prompt that is sampled from begins the example that is trained on, the loss
starts where the prompt ends, the end of the answer is trained, and parse_response gives back
what was written. Second: token for token what the model's own chat template writes, apart from
differences that are meant (each with its reason). With --data the same for your own rows.
Needs only a tokenizer; no weights, no service.

Exit 0: fine; 1: a problem was found; 2: no such tokenizer, renderer or file.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tinkerlab import cli
from tinkerlab.diagnosis.reporting import report
from tinkerlab.errors import InputError


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Hold a renderer against itself, the chat template, and your data.",
        epilog="example: python scripts/renderer_check.py Qwen/Qwen3-8B --data chats.jsonl",
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="base model: its name, a folder, or tiny:llama")
    add("--renderer", default="auto", metavar="NAME", help="a cookbook renderer (default: auto)")
    add("--tokenizer", metavar="DIR|NAME", help="its tokenizer, when not under the model's name")
    add("--data", type=Path, metavar="FILE", help="conversations to check as well, JSON lines")
    add("--max-rows", type=int, default=2000, metavar="N", help="rows of --data (default: 2000)")
    add("--json", action="store_true", help="print one JSON document on stdout")
    args = parser.parse_args(argv)
    if args.max_rows < 1:
        raise InputError("--max-rows must be at least 1")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    from tinkerlab.diagnosis.rendering.check import Request, check

    diagnosis, previews = check(
        Request(args.model, args.renderer, args.tokenizer, args.data, args.max_rows)
    )
    diagnosis.details["masks"] = [preview.to_json() for preview in previews]
    code = report(diagnosis, args.json)
    if not args.json:
        coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        for preview in previews:
            print(f"\n--- {preview.place} ({preview.label}), trained tokens marked:")
            print(cli.redact(preview.coloured() if coloured else preview.plain()))
    return code


if __name__ == "__main__":
    cli.run(main)
