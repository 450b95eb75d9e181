#!/usr/bin/env python3
"""Take rows of a Hugging Face dataset into a JSON Lines file that the trainers read.

Streamed, and no more rows than asked for. The file is what a run trains on: it can be read,
checked, hashed and kept, which a name on the Hub cannot.

Exit 0: written; 1: rows were left out as unusable (they are counted and shown); 2: bad input.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tinkerlab import cli
from tinkerlab.errors import InputError
from tinkerlab.folders import require_writable

EXAMPLES = """\
examples:
  python scripts/fetch_data.py HuggingFaceH4/no_robots@train --output train.jsonl
  python scripts/fetch_data.py HuggingFaceH4/no_robots@test --limit 500 --output val.jsonl
  python scripts/fetch_data.py some/alpaca --columns instruction=question,output=answer \\
      --output data.jsonl
"""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "dataset", metavar="NAME[:CONFIG][@SPLIT]", help="split: train if not named"
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FILE.jsonl")
    parser.add_argument(
        "--limit", type=int, default=20_000, metavar="N", help="at most so many (default: 20000)"
    )
    parser.add_argument(
        "--columns", default="", metavar="NEW=OLD,...", help="rename columns to what trainers read"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace FILE.jsonl")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    if args.limit < 1:
        raise InputError(f"--limit must be at least 1, not {args.limit}")
    if args.output.is_dir():
        raise InputError(f"--output {args.output} is a folder; name a file")
    if args.output.exists() and not args.overwrite:
        raise InputError(f"--output {args.output} exists; choose another, or add --overwrite")
    require_writable(args.output.parent)
    columns = read_columns(args.columns)

    from tinkerlab.tasks.fetching import fetch

    fetched = fetch(args.dataset.removeprefix("hf:"), args.output, args.limit, columns, cli.say)
    document = fetched.document()
    if args.json:
        cli.emit_json(document)
    else:
        print(f"{fetched.rows} rows of {args.dataset} in {args.output}; format {fetched.format}")
        for reason, count in fetched.left_out.items():
            print(f"left out: {count} rows: {reason}")
        print(f"next: python scripts/check_data.py --data {args.output}")
    return cli.EXIT_FOUND if fetched.left_out else cli.EXIT_OK


def read_columns(text: str) -> dict[str, str]:
    """``new=old,...`` as a mapping from new to old names.

    Raises:
        InputError: it is written otherwise.
    """
    found = {}
    for part in filter(None, text.split(",")):
        new, equals, old = part.partition("=")
        if not (new and equals and old):
            raise InputError(f"--columns {part!r}: write NEW=OLD, as in output=answer")
        found[new.strip()] = old.strip()
    return found


if __name__ == "__main__":
    cli.run(main)
