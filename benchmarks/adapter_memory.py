"""Peak memory of training: the rehearsal's engine against a bare transformers + peft loop.

Each case runs in a process of its own, which reports its peak resident memory after two
steps on the same batch. Targets: with one adapter at most 1.3 times the bare loop's peak, and
for each further adapter on the same base at most its own state (weights, gradient, two Adam
moments) more, give or take what the allocator rounds (5 %). The further ones are measured on a
small batch, where the activations' ups and downs don't hide them. Exit code 1 if one is missed.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from lora_loops import BareLoop, EngineLoop, lengths

from tinkerlab import cli

TARGET = 1.3
FURTHER_TARGET = 1.05
STEPS = 2
SMALL = (1, 32)  # rows and tokens
MEGABYTE = 1e6


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parse(argv)
    if arguments.case:
        return _measure(arguments)
    bare, _ = _child(arguments, "bare", arguments.rows, arguments.tokens)
    one, state = _child(arguments, "1", arguments.rows, arguments.tokens)
    few, _ = _child(arguments, "1", *SMALL)
    many, _ = _child(arguments, str(arguments.adapters), *SMALL)
    further = (many - few) / (arguments.adapters - 1)
    rows = [
        {
            "name": "peak memory with one adapter / bare loop (MB)",
            "ratio": one / bare,
            "target": TARGET,
            "ours": one / MEGABYTE,
            "theirs": bare / MEGABYTE,
        },
        {
            "name": f"each of {arguments.adapters - 1} further adapters / its own state (MB)",
            "ratio": further / state,
            "target": FURTHER_TARGET,
            "ours": further / MEGABYTE,
            "theirs": state / MEGABYTE,
        },
    ]
    for row in rows:
        row["pass"] = row["ratio"] <= row["target"]
    if arguments.json:
        cli.emit_json({"results": rows})
    else:
        for row in rows:
            print(
                f"{'pass' if row['pass'] else 'MISS'}  {row['ratio']:.2f}x"
                f" (target <= {row['target']})  {row['name']}:"
                f" {row['ours']:.0f} against {row['theirs']:.0f}"
            )
    return cli.EXIT_OK if all(row["pass"] for row in rows) else cli.EXIT_FOUND


def _measure(arguments: argparse.Namespace) -> int:
    """In a child: run one case and print its peak (ru_maxrss: kilobytes on Linux)."""
    from tinkerlab.rehearsal.models import registry

    model = arguments.model or registry.DEFAULT_MODEL
    batch = lengths(arguments.rows, arguments.tokens, mixed=False)
    if arguments.case == "bare":
        loop, state = BareLoop(model, batch, arguments.rank), 0
    else:
        loop = EngineLoop(model, batch, arguments.rank, adapters=int(arguments.case))
        state = loop.state_bytes
    for _ in range(STEPS):
        loop.step()
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    print(json.dumps({"peak": peak, "state": state}), flush=True)
    return cli.EXIT_OK


def _child(arguments: argparse.Namespace, case: str, rows: int, tokens: int) -> tuple[int, int]:
    """Peak memory of a case, and the state of one of its adapters, in bytes."""
    command = [sys.executable, __file__, "--case", case, "--rank", str(arguments.rank)]
    command += ["--rows", str(rows), "--tokens", str(tokens)]
    if arguments.model:
        command += ["--model", arguments.model]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    report = json.loads(run.stdout)
    what = "bare loop" if case == "bare" else f"{case} adapter(s)"
    cli.say(f"{what}, {rows} x {tokens} tokens: {report['peak'] / MEGABYTE:.0f} MB")
    return report["peak"], report["state"]


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python benchmarks/adapter_memory.py --adapters 5",
    )
    parser.add_argument("--model", help="name or folder (default: the embedded SmolLM2-135M)")
    parser.add_argument("--rows", type=int, default=4, help="datums in the batch")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each datum")
    parser.add_argument("--rank", type=int, default=32, help="LoRA rank")
    parser.add_argument("--adapters", type=int, default=5, help="how many the last case has (>= 2)")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    arguments = parser.parse_args(argv)
    if arguments.adapters < 2:
        parser.error("--adapters must be at least 2")
    return arguments


if __name__ == "__main__":
    cli.run(main)
