#!/usr/bin/env python3
"""Training data from a teacher: sample a model's replies to prompts, keep the good ones.

For SFT on a stronger model's answers, rejection sampling (a grader keeps the right ones) and
prompt distillation (the teacher answers under a system prompt that the rows are without).
Writes {"messages": [...], "teacher": {...}} a line; what was refused, and why, beside it.

Exit 0: written; 1: nothing was kept, or the service failed; 2: bad input. Interrupted, the
same command goes on; with other filters (and --overwrite) it samples nothing again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkerlab import cli
from tinkerlab.errors import InputError

if TYPE_CHECKING:
    from tinkerlab.evaluation.attempts import Sampling
    from tinkerlab.teacher.prompts import WithoutHeldOut
    from tinkerlab.teacher.run import Plan

EXAMPLES = """\
examples:
  python scripts/sample_teacher.py --model Qwen/Qwen3-32B --prompts prompts.jsonl \\
      --exclude held-out.jsonl --output teacher.jsonl
  python scripts/sample_teacher.py --model Qwen/Qwen3-8B --prompts tasks.jsonl --samples 8 \\
      --grader numeric --keep right --per-prompt 2 --output right.jsonl
  python scripts/sample_teacher.py --model runs/rl --prompts queries.jsonl \\
      --system-prompt-file rules.txt --drop-system-prompt --output distilled.jsonl
"""
SHOWN = 3


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    who = parser.add_argument_group("who is asked what").add_argument
    who("--model", required=True, metavar="TEACHER", help="base model, sampler path, run folder")
    who("--prompts", required=True, metavar="SOURCE", help="FILE.jsonl, reasoning_gym:..., hf:...")
    who("--split", choices=("all", "train", "test"), default="all", help="part of it (default all)")
    who("--limit", type=int, metavar="N", help="at most so many prompts (of files: 20,000)")
    who("--exclude", type=Path, action="append", default=[], metavar="FILE",
        help="leave out the prompts of this held-out file; may be repeated")  # fmt: skip
    who("--exclude-near", action="store_true", help="and those that nearly repeat one of them")
    who("--system-prompt", metavar="TEXT", help="what the teacher is told first")
    who("--system-prompt-file", type=Path, metavar="FILE", help="the same, from a file")
    how = parser.add_argument_group("how replies are drawn").add_argument
    how("--samples", type=int, default=1, metavar="N", help="replies to each prompt (default: 1)")
    how("--temperature", type=float, metavar="T", help="default: 0 for one sample, else 1")
    how("--top-p", type=float, default=1.0, metavar="P", help="default: 1")
    how("--max-tokens", type=int, default=1024, metavar="N", help="longest reply (default: 1024)")
    how("--seed", type=int, default=0, metavar="N", help="of prompts and samples")
    how("--renderer", default="auto", metavar="NAME", help="the teacher's (default: auto)")
    how("--in-flight", type=int, default=256, metavar="N", help="requests at a time")
    kept = parser.add_argument_group("what is kept").add_argument
    kept("--grader", metavar="SPEC", help="as in eval_offline.py, without judge")
    kept("--keep", choices=("right", "all"), help="default: right if there is a --grader, else all")
    kept("--correct-at", type=float, metavar="X", help="a score of X or more is right")
    kept("--grader-timeout", type=float, default=10.0, metavar="S", help="for one reply")
    kept("--per-prompt", type=int, metavar="K", help="at most K rows of one prompt")
    kept("--min-chars", type=int, metavar="N", help="shorter replies are dropped")
    kept("--max-chars", type=int, metavar="N", help="longer replies are dropped")
    kept("--keep-truncated", action="store_true", help="also what --max-tokens cut off")
    kept("--drop-system-prompt", action="store_true", help="rows are without system messages")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE.jsonl")
    parser.add_argument("--overwrite", action="store_true", help="replace other rows in it")
    parser.add_argument("--json", action="store_true", help="print the summary as one document")
    return parser.parse_args(argv)


def make_plan(args: argparse.Namespace) -> Plan:
    """The options, checked, and the prompts.

    Raises:
        InputError: values out of range, or prompts, held-out files or a teacher that aren't there.
    """
    from tinkerlab.teacher.run import Plan
    from tinkerlab.teacher.selection import Filters
    from tinkerlab.training.distill.teachers import resolve_teacher

    sampling = make_sampling(args)
    if args.keep == "right" and not args.grader:
        raise InputError("--keep right needs a --grader that says what is right")
    limits = [args.per_prompt, args.min_chars, args.max_chars, args.limit]
    if any(limit is not None and limit < 1 for limit in limits):
        raise InputError("--per-prompt, --min-chars, --max-chars and --limit must be at least 1")
    if args.exclude_near and not args.exclude:
        raise InputError("--exclude-near needs --exclude FILE, the held-out prompts")
    if args.output.is_dir():
        raise InputError(f"--output {args.output} is a folder; name a file")
    return Plan(
        teacher=resolve_teacher(args.model, "", None).model,
        prompts=load_prompts(args),
        source=args.prompts,
        output=args.output,
        sampling=sampling,
        filters=Filters(
            keep=args.keep or ("right" if args.grader else "all"),
            correct_at=args.correct_at,
            per_prompt=args.per_prompt,
            min_chars=args.min_chars,
            max_chars=args.max_chars,
            keep_truncated=args.keep_truncated,
            drop_system_prompt=args.drop_system_prompt,
        ),
        system_prompt=system_prompt(args),
        grader=args.grader,
        grader_timeout=args.grader_timeout,
        renderer=args.renderer,
        in_flight=args.in_flight,
        overwrite=args.overwrite,
    )


def make_sampling(args: argparse.Namespace) -> Sampling:
    """How replies are drawn.

    Raises:
        InputError: values out of range, or several samples that would all be the same.
    """
    from tinkerlab.evaluation.attempts import Sampling

    if min(args.samples, args.max_tokens, args.in_flight) < 1:
        raise InputError("--samples, --max-tokens and --in-flight must be at least 1")
    temperature = args.temperature
    if temperature is None:
        temperature = 0.0 if args.samples == 1 else 1.0
    if not 0 <= temperature < float("inf") or not 0 < args.top_p <= 1 or args.seed < 0:
        raise InputError(
            "--temperature and --seed must be numbers of at least 0; --top-p is in (0, 1]"
        )
    if args.samples > 1 and temperature == 0:
        raise InputError(
            f"--samples {args.samples} at --temperature 0 would be the same reply"
            f" {args.samples} times; give a higher temperature or one sample"
        )
    if not args.grader_timeout > 0:
        raise InputError("--grader-timeout must be over 0")
    return Sampling(args.max_tokens, temperature, args.top_p, args.samples, args.seed)


def load_prompts(args: argparse.Namespace) -> WithoutHeldOut:
    """The prompts, without the held-out ones.

    Raises:
        InputError: a source or file that can't be read.
    """
    from tinkerlab.data.splits import MAX_TRAIN_ROWS
    from tinkerlab.tasks import load_tasks
    from tinkerlab.teacher.prompts import without_held_out

    limit = args.limit
    if limit is None and not args.prompts.startswith("reasoning_gym:"):
        limit = MAX_TRAIN_ROWS
    tasks = load_tasks(args.prompts, args.split, limit, args.seed, say=cli.say)
    held_out = [
        task
        for file in args.exclude
        for task in load_tasks(file, "all", sys.maxsize, args.seed, say=cli.say)
    ]
    return without_held_out(tasks, held_out, drop_near=args.exclude_near)


def system_prompt(args: argparse.Namespace) -> str | None:
    """The system prompt, from the command line or a file.

    Raises:
        InputError: both are given, it is empty, or the file can't be read.
    """
    file = args.system_prompt_file
    if file is None:
        if args.system_prompt is not None and not args.system_prompt.strip():
            raise InputError("--system-prompt is empty; leave it out, or say something")
        return args.system_prompt
    if args.system_prompt is not None:
        raise InputError("give --system-prompt or --system-prompt-file, not both")
    try:
        text = file.expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise InputError(f"--system-prompt-file {file}: {reason}") from None
    if not text:
        raise InputError(f"--system-prompt-file {file}: is empty")
    return text


def describe(summary: dict[str, Any]) -> Iterator[str]:
    """The result for people."""
    yield (
        f"{summary['kept']} rows from {summary['replies']} replies to {summary['prompts']} prompts"
        f" ({summary['sampled_tokens']} tokens sampled)"
    )
    for reason, count in summary["dropped"].items():
        yield f"dropped: {count} {reason}"
    if summary["prompts_without_row"]:
        yield f"prompts without a row: {summary['prompts_without_row']}"
    if summary["held_out_prompts_left_out"]:
        yield f"prompts left out because they are held out: {summary['held_out_prompts_left_out']}"
    yield from warnings(summary)
    output = summary["output"]
    yield f"written: {output}; next: python scripts/check_data.py --data {output}"


def warnings(summary: dict[str, Any]) -> Iterator[str]:
    """What a person should look at before training on the rows."""
    near, quoting = summary["prompts_near_held_out"], summary["rows_that_quote_the_system_prompt"]
    if near:
        became = "were left out" if summary["near_prompts_left_out"] else "are kept"
        yield (
            f"warning: {len(near)} prompts nearly repeat a held-out one and {became}"
            f" (--exclude-near): {'; '.join(near[:SHOWN])}"
        )
    if quoting:
        yield (
            f"warning: {len(quoting)} rows quote the system prompt that they are without:"
            f" {', '.join(quoting[:SHOWN])}; read them, the student would learn to recite it"
        )
    truncated = summary["dropped"].get("truncated", 0)
    if truncated > summary["replies"] / 10:
        yield (
            f"warning: {truncated} of {summary['replies']} replies were cut off by --max-tokens;"
            " what is left is the short ones. Raise it, or ask for short answers"
        )


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    plan = make_plan(args)

    from tinkerlab.teacher.run import make

    summary = make(plan)
    if args.json:
        cli.emit_json(summary)
    else:
        for line in describe(summary):
            print(cli.redact(line))
    return cli.EXIT_OK


if __name__ == "__main__":
    cli.run(main)
