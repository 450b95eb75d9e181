#!/usr/bin/env python3
"""Base model and checkpoints side by side: what each replies to the same prompts.

To be read before any number is believed. Prompts are your own (--prompts, --prompt), or else
those that the run held out. Replies are not graded: eval_offline.py does that.

Exit 0: compared, also where nothing differs, which is said loudly; 1: the service failed; 2:
bad input.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tinkerlab import cli
from tinkerlab.errors import InputError
from tinkerlab.folders import require_writable

if TYPE_CHECKING:
    from tinkerlab.evaluation.side_by_side import Comparison
    from tinkerlab.tasks import Task

EXAMPLES = """\
examples:
  python scripts/checkpoint_compare.py --run runs/first --output compare.html
  python scripts/checkpoint_compare.py --run runs/first --every-checkpoint --limit 5
  python scripts/checkpoint_compare.py --checkpoint tinker://RUN/sampler_weights/final \\
      --prompt "Who are you?" --samples 4 --json

--run takes base model, newest checkpoint, renderer, system prompt and stop texts from the run's
folder; other options win over it. The base model is always asked; without --run and --model it
is the one that the checkpoint was trained on.
"""
SUFFIXES = (".html", ".json")
WIDEST = 120


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    who = parser.add_argument_group("who is asked").add_argument
    who("--run", type=Path, metavar="LOG_PATH", help="folder of a training run")
    who("--every-checkpoint", action="store_true", help="all of the run's, in training order")
    who(
        "--checkpoint", action="append", default=[], metavar="PATH",
        help="tinker://.../sampler_weights/..., or a name in the run; may be repeated",
    )  # fmt: skip
    who("--model", metavar="NAME", help="the base model")
    what = parser.add_argument_group("what they are asked").add_argument
    what("--prompts", type=Path, metavar="FILE", help="JSON lines, or a .txt of one prompt a line")
    what("--prompt", action="append", default=[], metavar="TEXT", help="may be repeated")
    what("--limit", type=int, default=10, metavar="N", help="the first so many (default: 10)")
    what("--system-prompt", metavar="TEXT", help="put before every prompt that has none")
    how = parser.add_argument_group("how replies are drawn").add_argument
    how("--max-tokens", type=int, default=256, metavar="N", help="longest reply (default: 256)")
    how("--temperature", type=float, metavar="T", help="default: 0 for one sample, else 1")
    how("--samples", type=int, default=1, metavar="N", help="replies of each model to each prompt")
    how("--seed", type=int, default=0, metavar="N", help="of the samples (default: 0)")
    how("--renderer", metavar="NAME", help="a cookbook renderer (default: the run's, else auto)")
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

    from tinkerlab.evaluation import offline_run, side_by_side, side_by_side_columns
    from tinkerlab.evaluation.attempts import Sampling

    # A run whose checkpoints are named needs no newest one.
    run = offline_run.read(args.run, next(iter(args.checkpoint), None)) if args.run else None
    checkpoints = side_by_side_columns.choose(
        args.run, args.checkpoint, every=args.every_checkpoint, say=cli.say
    )
    comparison = side_by_side.compare(
        read_tasks(args),
        args.model or (run.base_model if run else None),
        checkpoints,
        Sampling(
            max_tokens=args.max_tokens,
            temperature=temperature_of(args),
            samples=args.samples,
            seed=args.seed,
            stop=run.stop if run else (),
        ),
        renderer=args.renderer or (run and run.renderer) or "auto",
        system_prompt=args.system_prompt or (run.system_prompt if run else None),
        say=cli.say,
        progress=tell,
    )
    write(comparison, args.output)
    if args.json:
        cli.emit_json(comparison.document())
    else:
        show(comparison)
    for path in args.output:
        cli.say(f"written: {path}")
    return cli.EXIT_OK


def check_arguments(args: argparse.Namespace) -> None:
    """Refuse what can be refused before anything is loaded.

    Raises:
        InputError: names it.
    """
    if not (args.run or args.checkpoint or args.model):
        raise InputError("name who is asked: --run LOG_PATH, --checkpoint PATH or --model NAME")
    if args.every_checkpoint and not args.run:
        raise InputError("--every-checkpoint needs --run LOG_PATH")
    if args.prompt and args.prompts:
        raise InputError("give --prompt or --prompts, not both")
    if not (args.prompt or args.prompts or args.run):
        raise InputError("give prompts: --prompts FILE or --prompt TEXT")
    if min(args.limit, args.max_tokens, args.samples) < 1:
        raise InputError("--limit, --max-tokens and --samples must be at least 1")
    if not 0 <= temperature_of(args) < float("inf") or args.seed < 0:
        raise InputError("--temperature and --seed must not be negative")
    if args.samples > 1 and args.temperature == 0:
        raise InputError(
            f"--samples {args.samples} at --temperature 0 would be the same reply"
            f" {args.samples} times; give a higher temperature or one sample"
        )
    for path in args.output:
        if path.suffix not in SUFFIXES:
            raise InputError(f"--output {path}: end it in .html or .json")
        if path.is_dir():
            raise InputError(f"--output {path} is a folder; choose another")
        if path.exists() and not args.overwrite:
            raise InputError(f"--output {path} exists; choose another, or add --overwrite")
        require_writable(path.parent)


def temperature_of(args: argparse.Namespace) -> float:
    if args.temperature is not None:
        return args.temperature
    return 0.0 if args.samples == 1 else 1.0


def read_tasks(args: argparse.Namespace) -> list[Task]:
    """The prompts, at most ``--limit`` of them.

    Raises:
        InputError: no such file, nothing in it, or a run that held nothing out.
    """
    from tinkerlab.evaluation import side_by_side_prompts as prompts

    if args.prompt:
        tasks = prompts.typed(args.prompt)
    elif args.prompts:
        tasks = prompts.of_file(args.prompts)
    else:
        tasks = prompts.held_out(args.run)
    if len(tasks) > args.limit:
        cli.say(f"the first {args.limit} of {len(tasks)} prompts (--limit)")
    return tasks[: args.limit]


def write(comparison: Comparison, outputs: Sequence[Path]) -> None:
    """Raises:
    InputError: a file that can't be written.
    """
    from tinkerlab.evaluation import results
    from tinkerlab.evaluation.side_by_side_page import html

    for path in outputs:
        if path.suffix == ".html":
            text = html(comparison)
        else:
            text = cli.redact(json.dumps(comparison.document(), indent=2, ensure_ascii=False))
        results.write_whole(path, f"{text}\n".encode("utf-8", "backslashreplace"))


def show(comparison: Comparison) -> None:
    from rich.console import Console

    from tinkerlab.evaluation.side_by_side_page import terminal

    console = Console(
        width=min(shutil.get_terminal_size((80, 24)).columns, WIDEST), file=sys.stdout
    )
    with console.capture() as shown:
        console.print(terminal(comparison))
    print("\n".join(line.rstrip() for line in shown.get().splitlines()))


def tell(done: int, total: int) -> None:
    if done == total or done % 20 == 0:
        cli.say(f"sampled {done} of {total}")


if __name__ == "__main__":
    cli.run(main)
