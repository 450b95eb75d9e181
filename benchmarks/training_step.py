"""Time of a training step: the rehearsal's engine against a bare transformers + peft loop.

Same model, same layers and rank, same batch, same threads, one run, in alternating order; the
medians are compared. Target: at most 1.25 times the bare loop's time. That both compute the
same thing is checked first (the losses of the first step agree). Exit code 1 if missed.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from lora_loops import BareLoop, EngineLoop, lengths

from tinkerlab import cli
from tinkerlab.errors import CheckFailed

TARGET = 1.25


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parse(argv)
    import torch

    from tinkerlab.rehearsal.models import registry

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    model = arguments.model or registry.DEFAULT_MODEL
    batch = lengths(arguments.rows, arguments.tokens, mixed=arguments.mixed)
    loops = {
        "ours": EngineLoop(model, batch, arguments.rank),
        "bare": BareLoop(model, batch, arguments.rank),
    }
    losses = {name: loop.step() for name, loop in loops.items()}  # the warm-up
    if not math.isclose(losses["ours"], losses["bare"], rel_tol=1e-4):
        raise CheckFailed(f"the loops don't compute the same loss: {losses}")

    times: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(arguments.rounds):
        for name in list(loops) if number % 2 == 0 else list(loops)[::-1]:
            started = time.perf_counter()
            loops[name].step()
            times[name].append(time.perf_counter() - started)
        cli.say(f"round {number + 1}: " + ", ".join(f"{n} {t[-1]:.2f} s" for n, t in times.items()))
    ours, bare = (statistics.median(times[name]) for name in loops)
    row = {
        "name": f"training step of {sum(batch)} tokens in {len(batch)} datums, rank {arguments.rank}",
        "model": model,
        "threads": torch.get_num_threads(),
        "ratio": ours / bare,
        "target": TARGET,
        "ours": ours,
        "theirs": bare,
        "pass": ours / bare <= TARGET,
    }
    if arguments.json:
        cli.emit_json({"results": [row]})
    else:
        print(f"{model}, {row['threads']} threads")
        print(
            f"{'pass' if row['pass'] else 'MISS'}  {row['ratio']:.2f}x (target <= {TARGET})"
            f"  {row['name']}: {ours:.2f} s against {bare:.2f} s"
        )
    return cli.EXIT_OK if row["pass"] else cli.EXIT_FOUND


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python benchmarks/training_step.py --rows 8 --tokens 64 --mixed",
    )
    parser.add_argument("--model", help="name or folder (default: the embedded SmolLM2-135M)")
    parser.add_argument("--rows", type=int, default=4, help="datums in the batch")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of the longest datum")
    parser.add_argument("--mixed", action="store_true", help="lengths from half of it up")
    parser.add_argument("--rank", type=int, default=32, help="LoRA rank")
    parser.add_argument("--rounds", type=int, default=7, help="measured steps of each loop")
    parser.add_argument("--threads", type=int, default=0, help="torch threads (0: torch's choice)")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    return parser.parse_args(argv)


if __name__ == "__main__":
    cli.run(main)
