"""Turn a trained checkpoint into a PEFT adapter and a merged model, and prove that they are right.

    python scripts/export_model.py --run runs/first --output exported
    python scripts/export_model.py check-adapter exported/adapter --engine vllm

The first form downloads, builds with tinker-cookbook, and verifies: every tensor of the merged
model against base + scale * B A, and per-token logprobs against the service that trained it.
The second reads an adapter folder only, offline. Exit codes: 0 good, 1 not good, 2 bad input.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from tinkerlab import cli
from tinkerlab.errors import InputError

if TYPE_CHECKING:
    from tinkerlab.export.pipeline import Result

ENGINES = ("vllm", "sglang", "peft")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["check-adapter"]:
        return check_adapter(arguments[1:])
    return export(arguments)


def export(argv: list[str]) -> int:
    args = export_parser().parse_args(argv)
    if args.run:
        take_from_run(args)

    from tinkerlab.export import pipeline
    from tinkerlab.export.build import check_downloadable
    from tinkerlab.export.service import Service
    from tinkerlab.rehearsal.models import registry

    local = Path(args.checkpoint).is_dir()
    if not local:
        check_downloadable(args.checkpoint)
    elif not args.base_model:
        raise InputError("--checkpoint is a folder: say with --base-model what it was trained on")
    elif args.check == "full" and not args.sampler:
        raise InputError(
            "--checkpoint is a folder: add --sampler tinker://RUN/sampler_weights/NAME to compare "
            "it with the service, or --check weights to do without"
        )
    _quiet()
    with ExitStack() as stack:
        service = None
        if not local or args.check == "full":
            service = stack.enter_context(Service())
        trained_on = service.base_model(args.checkpoint) if service and not local else None
        base = registry.resolve(args.base_model or trained_on or "")
        request = pipeline.Request(
            checkpoint=args.checkpoint,
            base_name=trained_on or args.base_model,
            base_dir=base.directory,
            output=args.output,
            what=args.what,
            sampler=args.sampler,
            texts=args.text,
            max_texts=args.max_texts,
            max_tokens=args.max_tokens,
            check=args.check,
            overwrite=args.overwrite,
        )
        result = pipeline.run(request, service, cli.say)

    document = result.as_json()
    if args.engine and "adapter" in result.folders:
        from tinkerlab.export.engines import check_engine

        fit = check_engine(result.folders["adapter"], args.engine, base.directory)
        document["engine"] = fit.as_json()
        line = f"{args.engine}: {fit.verdict}: {fit.summary}" + (f"; {fit.fix}" if fit.fix else "")
        # What nobody knows is no fault of an export that was verified.
        sure = fit.verdict in ("applies part", "refuses")
        (result.problems if sure else result.notes).append(line)
        document |= {"good": result.good, "problems": result.problems, "notes": result.notes}
    if args.json:
        cli.emit_json(document)
    else:
        print_result(result)
    return cli.EXIT_OK if result.good else cli.EXIT_FOUND


def take_from_run(args: argparse.Namespace) -> None:
    """Fill in the newest checkpoint of ``--run``, and its held-out rows as the texts.

    Raises:
        InputError: the folder records no checkpoint that can be downloaded.
    """
    from tinkerlab.runs import checkpoints
    from tinkerlab.runs.folder import RunFolder

    if not args.run.is_dir():
        raise InputError(f"--run {args.run}: no such folder; give the log_path of a training run")
    rows = checkpoints.read_rows(args.run)
    newest = next((row for row in reversed(rows) if row.get("state_path")), None)
    if newest is None:
        raise InputError(
            f"--run {args.run}: {checkpoints.FILE_NAME} names no training state; give the log_path"
            " of a run that saved a checkpoint, or name one with --checkpoint"
        )
    args.checkpoint = newest["state_path"]
    args.sampler = args.sampler or newest.get("sampler_path")
    held_out = RunFolder(args.run).held_out_file
    if args.text is None and held_out.is_file() and held_out.stat().st_size:
        args.text = held_out


def _quiet() -> None:
    """Keep transformers' bars and warnings off stderr: our own lines say what goes on."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def check_adapter(argv: list[str]) -> int:
    args = adapter_parser().parse_args(argv)

    from tinkerlab.export.engines import check_engine

    fit = check_engine(args.adapter, args.engine, args.base_model)
    if args.json:
        cli.emit_json(fit.as_json())
    else:
        print(f"{args.engine}: {fit.verdict}: {fit.summary}")
        for line in fit.evidence:
            print(f"  - {line}")
        if fit.fix:
            print(f"  do: {fit.fix}")
    return cli.EXIT_OK if fit.good else cli.EXIT_FOUND


def print_result(result: Result) -> None:
    print("good" if result.good else "NOT GOOD")
    for name, folder in result.folders.items():
        print(f"  {name:<11} {folder}")
    if result.weights is not None:
        print(
            f"  weights     {result.weights.compared} tensors compared, "
            f"{result.weights.changed} changed by the adapter, "
            f"{len(result.weights.differences)} wrong"
        )
    if result.behaviour is not None:
        found = result.behaviour
        print(
            f"  logprobs    {found.engine_noise.tokens} tokens, nats per token (largest / mean)\n"
            f"    noise: service against transformers, no adapter  {_pair(found.engine_noise)}\n"
            f"    noise: rounding to the stored type               {_pair(found.storage_noise)}\n"
            f"    what the adapter changes                         {_pair(found.effect)}"
        )
        for name in ("merged", "adapter"):
            verdict = getattr(found, name)
            if verdict is not None:
                label = f"{name} against the service"
                print(
                    f"    {label:<48} {_pair(verdict.distance)}  allowed {_pair(verdict.tolerance)}"
                )
    for line in result.notes:
        print(f"  note: {line}")
    for line in result.problems:
        print(f"  problem: {line}")


def _pair(numbers) -> str:
    return f"{numbers.largest:.2e} / {numbers.mean:.2e}"


def export_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="export_model.py",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Export a trained checkpoint and verify it against the service.",
        epilog="examples:\n"
        "  python scripts/export_model.py --checkpoint tinker://RUN/weights/final \\\n"
        "      --output exported --text data/val.jsonl --engine vllm\n"
        "  python scripts/export_model.py check-adapter exported/adapter --engine vllm\n\n"
        "Run again, the same command goes on where it stopped and verifies once more.\n"
        "exit codes: 0 the export is good, 1 it is not, 2 bad input",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--run",
        type=Path,
        metavar="LOG_PATH",
        help="folder of a training run: its newest checkpoint, compared on the rows it held out",
    )
    what.add_argument(
        "--checkpoint",
        help="tinker://RUN/weights/NAME, .../external_weights/NAME, or a downloaded adapter folder",
    )
    parser.add_argument("--output", required=True, type=Path, help="folder to build in")
    parser.add_argument(
        "--base-model",
        help="name or folder of the base model's weights (default: what the checkpoint names)",
    )
    parser.add_argument(
        "--what", choices=("adapter", "merged", "both"), default="both", help="default: both"
    )
    parser.add_argument(
        "--sampler", help="sampler checkpoint of the same weights to compare with, if any"
    )
    parser.add_argument(
        "--text", type=Path, help="JSONL of held-out text (default: the run's, or built-in)"
    )
    parser.add_argument("--max-texts", type=int, default=16, help="lines to compare on (16)")
    parser.add_argument("--max-tokens", type=int, default=256, help="tokens of each (256)")
    parser.add_argument(
        "--check",
        choices=("full", "weights"),
        default="full",
        help="weights: compare tensors only, for models too large to run here",
    )
    parser.add_argument("--engine", choices=ENGINES, help="also: does this engine apply it all?")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier export")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    return parser


def adapter_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="export_model.py check-adapter",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Say whether an engine loads this adapter and applies all of it. Offline.",
        epilog="example:\n"
        "  python scripts/export_model.py check-adapter exported/adapter --engine vllm\n\n"
        "exit codes: 0 all of it is applied, 1 it isn't or nobody knows, 2 bad input",
    )
    parser.add_argument("adapter", type=Path, help="folder with adapter_config.json")
    parser.add_argument("--engine", choices=ENGINES, required=True)
    parser.add_argument(
        "--base-model", type=Path, help="folder with the base model's config.json, if at hand"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    return parser


if __name__ == "__main__":
    cli.run(main)
