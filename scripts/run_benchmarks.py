#!/usr/bin/env python3
"""tinker-cookbook's public benchmarks on a base model, a checkpoint, or both on the same items.

Settings come from a config file and key=value words. Each benchmark gets a folder below the
output, as eval_offline.py leaves it; check_results.py validates it where both models were run.
Interrupted, the same command goes on. Items whose request failed are asked again then; until
then they are left out and counted.

Exit 0: all benchmarks ran; 1: one could not be run, or items failed; 2: bad input.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkerlab import cli

if TYPE_CHECKING:
    from tinkerlab.evaluation.benchmarks.config import BenchmarksConfig
    from tinkerlab.evaluation.benchmarks.running import Outcome
    from tinkerlab.evaluation.offline_run import RunSettings

EXAMPLES = """\
examples:
  python scripts/run_benchmarks.py --list
  python scripts/run_benchmarks.py --config templates/benchmarks-config.yaml run=runs/first
  python scripts/run_benchmarks.py benchmarks=gsm8k base_model=Qwen/Qwen3-8B max_examples=200 \\
      checkpoint=tinker://RUN/sampler_weights/final --dry-run
"""
MANY_TRUNCATED = 0.1


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, metavar="FILE.yaml", help="the settings")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="win over the file's")
    parser.add_argument("--list", action="store_true", help="the benchmarks, and what each needs")
    parser.add_argument("--dry-run", action="store_true", help="what would run, and a rough price")
    parser.add_argument("--overwrite", action="store_true", help="replace another evaluation")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_intermixed_args(argv)
    if args.list:
        return list_benchmarks(args.json)

    from tinkerlab.evaluation import offline_run
    from tinkerlab.evaluation.benchmarks.config import ELSEWHERE, BenchmarksConfig
    from tinkerlab.training import config as configs

    config = configs.load(BenchmarksConfig, args.config, args.overrides, ELSEWHERE)
    cli.say(configs.to_yaml(config))
    run = offline_run.read(Path(config.run)) if config.run else None
    if args.dry_run:
        return dry_run(config, run, args.json)

    from tinkerlab.evaluation.benchmarks.running import run_all

    outcomes = run_all(config, run, args.overwrite)
    if args.json:
        cli.emit_json([document(outcome) for outcome in outcomes])
    else:
        for outcome in outcomes:
            for line in describe(outcome, config):
                print(cli.redact(line))
    return cli.EXIT_FOUND if any(is_incomplete(outcome) for outcome in outcomes) else cli.EXIT_OK


def list_benchmarks(as_json: bool) -> int:
    from dataclasses import asdict

    from tinkerlab.evaluation.benchmarks.catalogue import entries

    found = entries()
    if as_json:
        cli.emit_json([asdict(entry) for entry in found])
        return cli.EXIT_OK
    for entry in found:
        mark = " (experimental)" if entry.experimental else ""
        size = f"{entry.items:,} items" if entry.items else "size unknown"
        print(f"{entry.name}{mark}: {entry.about}")
        print(f"  {size} from {entry.dataset or 'its own code'}")
        if entry.needs:
            print(f"  needs {', '.join(entry.needs)}")
        for caveat in entry.caveats:
            print(f"  caution: {caveat}")
    return cli.EXIT_OK


def dry_run(config: BenchmarksConfig, run: RunSettings | None, as_json: bool) -> int:
    from tinkerlab.evaluation.benchmarks import pricing

    plan = pricing.plan(config, run)
    if as_json:
        cli.emit_json(plan)
    else:
        for line in pricing.lines(plan):
            print(line)
    return cli.EXIT_OK


def is_incomplete(outcome: Outcome) -> bool:
    """Whether something of it has to be asked again."""
    return outcome.summary is None or outcome.summary["left_out"]["items"] > 0


def document(outcome: Outcome) -> dict[str, Any]:
    return {"benchmark": outcome.name, "error": outcome.error, "summary": outcome.summary}


def describe(outcome: Outcome, config: BenchmarksConfig) -> Iterator[str]:
    """One benchmark for people."""
    summary = outcome.summary
    if summary is None:
        yield f"failed: {outcome.error}"
        return
    if "trained_score" in summary:
        before, after = summary["baseline_score"], summary["trained_score"]
        yield f"{outcome.name}: {before:.4f} -> {after:.4f}; {summary['scores']['verdict']}"
    else:
        low, high = summary["interval"]["low"], summary["interval"]["high"]
        items = summary["dataset"]["items"]
        yield (
            f"{outcome.name}: {summary['score']:.4f} (95% interval {low:.4f} to {high:.4f},"
            f" {items} items): {summary['model']}"
        )
    yield from warnings(summary)
    yield from (f"caution: {caution}" for caution in summary["cautions"])
    yield f"results: {Path(config.output) / outcome.name}"


def warnings(summary: dict[str, Any]) -> Iterator[str]:
    """What makes the score mean less than it seems."""
    left = summary["left_out"]
    if left["items"]:
        reason = next(iter(left["reasons"]))
        yield (
            f"warning: {left['items']} items are left out ({reason}); the same command asks them"
            " again"
        )
    for key, facts in summary["facts"].items():
        replies = facts["replies"]
        if (facts["truncated"] or 0) > MANY_TRUNCATED * replies:
            yield (
                f"warning: {facts['truncated']} of {replies} replies ({key}) were cut before their"
                " end; raise max_tokens"
            )
        if facts["unparsed"]:
            yield (
                f"warning: {facts['unparsed']} of {replies} replies ({key}) can't be read by the"
                " renderer and count as wrong; is it the model's own?"
            )
        if replies and facts["empty"] == replies:
            yield f"warning: every reply of {key} is empty: a wrong renderer?"


if __name__ == "__main__":
    cli.run(main)
