#!/usr/bin/env python3
"""Turn a results folder into one self-contained HTML page.

The page needs no network: styles and pictures are inside it, and whatever a user or a model
wrote is escaped. Exit 0: written; 2: the folder cannot be shown.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tinkerlab import cli


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Write one self-contained HTML page about a finished fine-tune.",
        epilog="example: python scripts/report.py results/ "
        "--export-report export/report.json --output report.html",
    )
    parser.add_argument("results", type=Path, help="folder that evaluate.py wrote")
    parser.add_argument(
        "--output", type=Path, help="HTML file to write (default: report.html in the folder)"
    )
    parser.add_argument(
        "--export-report", type=Path, help="verification report that export_model.py wrote"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    from tinkerlab.evaluation import results
    from tinkerlab.report import collect, page

    data = collect.collect(args.results, args.export_report)
    output = args.output or args.results / "report.html"
    html = page.render(data).encode("utf-8", "backslashreplace")
    results.write_whole(output, html)
    if args.json:
        cli.emit_json({"output": str(output), "bytes": len(html), "results_ok": data.verdict.ok})
    else:
        cli.say(f"report: {output} ({len(html) / 1000:.0f} kB)")
        if not data.verdict.ok:
            cli.say("the results break rules of the contract; the page says so at its top")
    return cli.EXIT_OK


if __name__ == "__main__":
    cli.run(main)
