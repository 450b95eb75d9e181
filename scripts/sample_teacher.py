#!/usr/bin/env python3
"""Training data from a teacher: sample its replies to prompts, keep the good ones.

For SFT on a stronger model's answers, rejection sampling (a grader keeps the right ones), and
prompt distillation (the teacher answers under a system prompt that the rows do not have).

Exit 0: written; 1: nothing passed, or the service failed; 2: bad input. Interrupted, the same
command goes on; with other filters it samples nothing again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkerlab import cli
from tinkerlab.errors import CheckFailed, InputError

if TYPE_CHECKING:
    from tinkerlab.evaluation.attempts import Sampling

EXAMPLES = """\
examples:
  python scripts/sample_teacher.py --model Qwen/Qwen3-32B --prompts prompts.jsonl \\
      --output teacher.jsonl
  python scripts/sample_teacher.py --model Qwen/Qwen3-8B --prompts tasks.jsonl --samples 8 \\
      --grader numeric --output right.jsonl
  python scripts/sample_teacher.py --model Qwen/Qwen3-8B --prompts queries.jsonl \\
      --system-prompt-file rules.txt --output distilled.jsonl
"""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    who = parser.add_argument_group("who is asked what").add_argument
    who("--model", required=True, metavar="NAME|PATH", help="base model or sampler checkpoint")
    who("--prompts", required=True, metavar="SOURCE", help="FILE.jsonl, reasoning_gym:..., hf:...")
    who("--limit", type=int, metavar="N", help="at most so many prompts")
    who("--system-prompt", metavar="TEXT", help="what the teacher is told")
    who("--system-prompt-file", type=Path, metavar="FILE", help="the same, from a file")
    who("--exclude", type=Path, metavar="FILE", help="leave out prompts that stand in this file")
    how = parser.add_argument_group("how").add_argument
    how("--samples", type=int, default=1, metavar="N", help="replies to each prompt")
    how("--temperature", type=float, metavar="T", help="default: 0 for one sample, else 1")
    how("--max-tokens", type=int, default=1024, metavar="N", help="default: 1024")
    how("--seed", type=int, default=0, metavar="N", help="of prompts and samples")
    how("--renderer", default="auto", metavar="NAME", help="a cookbook renderer (default: auto)")
    how("--in-flight", type=int, default=256, metavar="N", help="requests at a time")
    keep = parser.add_argument_group("what is kept").add_argument
    keep("--grader", metavar="SPEC", help="as in eval_offline.py; only what passes is kept")
    keep("--keep-at", type=float, default=1.0, metavar="X", help="grades that pass (default: 1)")
    keep("--per-prompt", type=int, default=1, metavar="K", help="most rows of one prompt")
    keep("--keep-cut", action="store_true", help="also replies that --max-tokens ended")
    keep("--keep-system-prompt", action="store_true", help="put it into the rows")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE.jsonl")
    parser.add_argument("--overwrite", action="store_true", help="replace FILE.jsonl")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    sampling, system_prompt = check_arguments(args)

    from tinkerlab.evaluation import teacher_data
    from tinkerlab.grading import load_grader, require_usable
    from tinkerlab.tasks import load_tasks

    tasks = load_tasks(args.prompts, "all", args.limit, args.seed, say=cli.say)
    excluded = 0
    if args.exclude:
        held_out = load_tasks(args.exclude, "all", None, args.seed)
        tasks, excluded = teacher_data.without_excluded(tasks, held_out)
        if not tasks:
            raise InputError(f"--exclude {args.exclude}: every prompt stands in it")
    grader = load_grader(args.grader) if args.grader else teacher_data.Ungraded()
    try:
        if args.grader:
            require_usable(grader, tasks)
        graded = teacher_data.sample(
            args.model,
            tasks,
            sampling,
            args.output.with_suffix(".attempts.jsonl"),
            system_prompt=system_prompt,
            renderer=args.renderer,
            grader=grader,
            grader_key=args.grader or "",
            in_flight=args.in_flight,
            progress=tell,
        )
    finally:
        grader.close()
    filters = teacher_data.Filters(
        args.per_prompt, args.keep_at if args.grader else None, args.keep_cut
    )
    told = system_prompt if args.keep_system_prompt else None
    data = teacher_data.rows_of(tasks, graded, filters, told)
    document = {
        "output": str(args.output),
        "model": args.model,
        "prompts": len(tasks),
        "excluded": excluded,
        "sampled": data.sampled,
        "rows": len(data.rows),
        "dropped": data.dropped,
        "prompts_without_row": data.prompts_without_row,
        "mean_tokens": round(data.mean_tokens, 1),
    }
    if not data.rows:
        raise CheckFailed(f"nothing passed of {data.sampled} replies: {counts(data.dropped)}")
    teacher_data.write(args.output, data)
    if args.json:
        cli.emit_json(document)
    else:
        show(document, args)
    return cli.EXIT_OK


def check_arguments(args: argparse.Namespace) -> tuple[Sampling, str | None]:
    """How to sample, and the system prompt.

    Raises:
        InputError: values out of range, a file that can't be read, an output that exists.
    """
    from tinkerlab.evaluation.attempts import Sampling

    if min(args.samples, args.max_tokens, args.in_flight, args.per_prompt) < 1:
        raise InputError("--samples, --max-tokens, --in-flight and --per-prompt must be at least 1")
    temperature = args.temperature
    if temperature is None:
        temperature = 0.0 if args.samples == 1 else 1.0
    if temperature < 0 or args.seed < 0:
        raise InputError("--temperature and --seed must not be negative")
    if args.samples > 1 and temperature == 0:
        raise InputError(
            f"--samples {args.samples} at --temperature 0 would be the same reply"
            f" {args.samples} times; give a higher temperature or one sample"
        )
    if args.per_prompt > args.samples:
        raise InputError(f"--per-prompt {args.per_prompt} is more than --samples {args.samples}")
    if args.output.exists() and not args.overwrite:
        raise InputError(f"--output {args.output} exists; choose another, or add --overwrite")
    if args.system_prompt and args.system_prompt_file:
        raise InputError("give --system-prompt or --system-prompt-file, not both")
    told = args.system_prompt
    if args.system_prompt_file:
        try:
            told = args.system_prompt_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8"
            raise InputError(f"--system-prompt-file {args.system_prompt_file}: {reason}") from None
        if not told:
            raise InputError(f"--system-prompt-file {args.system_prompt_file} is empty")
    if args.keep_system_prompt and not told:
        raise InputError("--keep-system-prompt: no system prompt is given")
    return Sampling(args.max_tokens, temperature, 1.0, args.samples, args.seed), told


def counts(dropped: dict[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in dropped.items()) or "none sampled"


def show(document: dict[str, Any], args: argparse.Namespace) -> None:
    print(
        f"{document['rows']} rows from {document['sampled']} replies to {document['prompts']}"
        f" prompts, {document['mean_tokens']:g} tokens each on average"
    )
    if document["dropped"]:
        print(f"dropped: {counts(document['dropped'])}")
    if document["prompts_without_row"]:
        print(f"prompts without a row: {document['prompts_without_row']}")
    if document["excluded"]:
        print(f"prompts left out, since they stand in {args.exclude}: {document['excluded']}")
    print(
        f"written: {args.output}; read some, then python scripts/check_data.py --data {args.output}"
    )


def tell(done: int, total: int) -> None:
    if done == total or done % 50 == 0:
        cli.say(f"sampled {done} of {total}")


if __name__ == "__main__":
    cli.run(main)
