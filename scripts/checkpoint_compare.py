#!/usr/bin/env python3
"""Base model and checkpoints side by side: what each answers to the same prompts.

For reading, before any number is believed. Prompts are those that the run held out, or your own
(--prompts, --prompt). To grade answers, use eval_offline.py.

Exit 0: compared (also where nothing differs, which is said loudly); 1: the service failed; 2:
bad input.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkerlab import cli
from tinkerlab.errors import InputError

if TYPE_CHECKING:
    from tinkerlab.evaluation.side_by_side import Comparison
    from tinkerlab.tasks import Task

EXAMPLES = """\
examples:
  python scripts/checkpoint_compare.py --run runs/first --output compare.html
  python scripts/checkpoint_compare.py --run runs/first --every-checkpoint --limit 5
  python scripts/checkpoint_compare.py --model Qwen/Qwen3-8B \\
      --checkpoint tinker://RUN/sampler_weights/final --prompt "Who are you?" --json
"""
SUFFIXES = (".html", ".json")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_argument_group("who is asked").add_argument
    what("--run", type=Path, metavar="LOG_PATH", help="folder of a training run")
    what("--model", metavar="NAME", help="the base model (default: the run's)")
    what("--checkpoint", action="append", default=[], metavar="PATH", help="may be repeated")
    what("--every-checkpoint", action="store_true", help="all of the run's, not the newest alone")
    what("--no-base", action="store_true", help="leave the base model out")
    on = parser.add_argument_group("what").add_argument
    on("--prompts", type=Path, metavar="FILE", help="JSON Lines, or a .txt of one prompt a line")
    on("--prompt", action="append", default=[], metavar="TEXT", help="may be repeated")
    on("--limit", type=int, default=10, metavar="N", help="at most so many prompts (default: 10)")
    on("--system-prompt", metavar="TEXT", help="put before every prompt that has none")
    how = parser.add_argument_group("how").add_argument
    how("--max-tokens", type=int, default=256, metavar="N", help="longest reply (default: 256)")
    how("--temperature", type=float, metavar="T", help="default: 0 for one sample, else 1")
    how("--samples", type=int, default=1, metavar="N", help="replies of each model to each prompt")
    how("--seed", type=int, default=0, metavar="N", help="default: 0")
    how("--renderer", metavar="NAME", help="a cookbook renderer (default: the run's, or auto)")
    parser.add_argument(
        "--output", type=Path, action="append", default=[], metavar="X.html|X.json",
        help="write a page or a document; may be repeated",
    )  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace what --output names")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    check_arguments(args)

    from tinkerlab.evaluation import offline_run, side_by_side
    from tinkerlab.evaluation.attempts import Sampling

    run = offline_run.read(args.run) if args.run else None
    paths = side_by_side.run_checkpoints(args.run, every=args.every_checkpoint) if run else {}
    paths |= {short_name(path): path for path in args.checkpoint}
    base = None if args.no_base else args.model or (run.base_model if run else None)
    if base is None and not paths:
        raise InputError("name who is asked: --run, --checkpoint or --model")
    temperature = args.temperature
    if temperature is None:
        temperature = 0.0 if args.samples == 1 else 1.0
    comparison = side_by_side.compare(
        read_tasks(args),
        base,
        paths,
        Sampling(args.max_tokens, temperature, 1.0, args.samples, args.seed),
        renderer=args.renderer or (run and run.renderer) or "auto",
        system_prompt=args.system_prompt or (run.system_prompt if run else None),
        progress=tell,
    )
    write(comparison, args.output)
    if args.json:
        cli.emit_json(comparison.document())
    else:
        from tinkerlab.evaluation.side_by_side_page import terminal_lines

        width = min(shutil.get_terminal_size((80, 24)).columns, 120)
        for line in terminal_lines(comparison, width):
            print(cli.redact(line))
        for path in args.output:
            print(f"written: {path}")
    return cli.EXIT_OK


def check_arguments(args: argparse.Namespace) -> None:
    """Refuse what can be refused before the service is asked.

    Raises:
        InputError: names it.
    """
    if min(args.limit, args.max_tokens, args.samples) < 1:
        raise InputError("--limit, --max-tokens and --samples must be at least 1")
    if args.samples > 1 and args.temperature == 0:
        raise InputError(
            f"--samples {args.samples} at --temperature 0 would be the same reply"
            f" {args.samples} times; give a higher temperature or one sample"
        )
    if (args.temperature or 0) < 0 or args.seed < 0:
        raise InputError("--temperature and --seed must not be negative")
    if args.every_checkpoint and not args.run:
        raise InputError("--every-checkpoint needs --run LOG_PATH")
    for path in args.output:
        if path.suffix not in SUFFIXES:
            raise InputError(f"--output {path}: end it in .html or .json")
        if path.exists() and not args.overwrite:
            raise InputError(f"--output {path} exists; choose another, or add --overwrite")


def read_tasks(args: argparse.Namespace) -> list[Task]:
    """The prompts, at most ``--limit`` of them.

    Raises:
        InputError: no such file, or nothing in it.
    """
    from tinkerlab.evaluation.side_by_side import held_out_tasks
    from tinkerlab.tasks import Task, load_tasks

    def said(texts: Sequence[str], place: str) -> list[Task]:
        return [
            Task([{"role": "user", "content": text}], place=f"{place} {number}")
            for number, text in enumerate(texts, start=1)
        ]

    if args.prompt and args.prompts:
        raise InputError("give --prompt or --prompts, not both")
    if args.prompt:
        tasks = said(args.prompt, "--prompt")
    elif args.prompts and args.prompts.suffix == ".txt":
        tasks = said(read_lines(args.prompts), f"{args.prompts} prompt")
    elif args.prompts:
        return load_tasks(args.prompts, "all", args.limit, args.seed, say=cli.say)
    elif args.run:
        tasks = held_out_tasks(args.run)
    else:
        raise InputError("give prompts: --prompts FILE or --prompt TEXT")
    if len(tasks) > args.limit:
        cli.say(f"{args.limit} of {len(tasks)} prompts (--limit)")
    return tasks[: args.limit]


def read_lines(file: Path) -> list[str]:
    """The lines of a text file that are not blank.

    Raises:
        InputError: it can't be read, or is empty.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise InputError(f"--prompts {file}: {reason}") from None
    found = [line for line in lines if line.strip()]
    if not found:
        raise InputError(f"--prompts {file}: no prompt in it; write one a line")
    return found


def short_name(path: str) -> str:
    """``RUN/NAME`` of a checkpoint's path, for a column: enough to tell columns apart."""
    parts = path.removeprefix("tinker://").split("/")
    return f"{parts[0].split(':')[0][:8]}/{parts[-1]}" if len(parts) > 1 else path


def write(comparison: Comparison, outputs: Sequence[Path]) -> None:
    from tinkerlab.evaluation import results
    from tinkerlab.evaluation.side_by_side_page import html

    for path in outputs:
        if path.suffix == ".html":
            results.write_whole(path, html(comparison).encode("utf-8", "backslashreplace"))
        else:
            document: Any = comparison.document()
            results.write_json(path, document)


def tell(done: int, total: int) -> None:
    if done == total or done % 20 == 0:
        cli.say(f"sampled {done} of {total}")


if __name__ == "__main__":
    cli.run(main)
