#!/usr/bin/env python3
"""Does watching a run slow it down?

Runs the same script with and without ``task_dump.py run``, in turns, and compares the seconds
that its two halves take by their own clock:

    training   steps submitted ahead against a rehearsal: what a healthy run does
    python     pure Python on the main thread, where every sample has to ask for the GIL

Start-up (the import of the SDK, the end of the trace) is left out of both. Prints the ratios of
the medians, watched over plain; target: each at most 1.05.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from tinkerlab import cli
from tinkerlab.errors import CheckFailed

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "task_dump.py"

TARGET = 1.05

WORK = """
import json, sys, time
import numpy as np
import tinker

steps, numbers, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
inputs = {"target_tokens": np.arange(256), "weights": np.ones(256, np.float32)}
batch = [tinker.Datum(model_input=tinker.ModelInput.from_ints(list(range(256))),
                      loss_fn_inputs=inputs)] * 4
adam = tinker.AdamParams(learning_rate=1e-4)
client = tinker.ServiceClient().create_lora_training_client("tiny:llama", rank=8).result()

def step():
    return client.forward_backward(batch, "cross_entropy"), client.optim_step(adam)

[future.result() for future in step()]
started = time.perf_counter()
before = step()
for _ in range(steps):
    now = step()
    [future.result() for future in before]
    before = now
[future.result() for future in before]
training = time.perf_counter() - started

started = time.perf_counter()
total = 0
for number in range(numbers):
    total += number * number % 7
python = time.perf_counter() - started
json.dump({"training": training, "python": python}, open(out, "w"))
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="runs of each kind")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--numbers", type=int, default=30_000_000)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = build_parser().parse_args(argv)
    from tinkerlab.rehearsal.service.launch import rehearsal_server

    plain: list[dict[str, float]] = []
    watched: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "work.py").write_text(WORK)
        with rehearsal_server(["tiny:llama"], store=folder / "store") as server:
            for number in range(arguments.repeats):
                # In turns, so that a busy minute strikes both.
                plain.append(run(folder, [], arguments, server.env))
                trace = str(folder / f"trace-{number}")
                watch = [str(SCRIPT), "run", "--trace", trace, "--"]
                watched.append(run(folder, [*watch, sys.executable], arguments, server.env))
                cli.say(f"{number + 1} of {arguments.repeats}: {plain[-1]} {watched[-1]}")
    result: dict[str, float] = {"target": TARGET}
    for part in ("training", "python"):
        before = statistics.median(row[part] for row in plain)
        after = statistics.median(row[part] for row in watched)
        result[f"{part}_plain_seconds"] = round(before, 3)
        result[f"{part}_watched_seconds"] = round(after, 3)
        result[f"{part}_ratio"] = round(after / before, 3)
    if arguments.json:
        cli.emit_json(result)
    else:
        for key, value in result.items():
            print(f"{key:<26} {value}")
    worst = max(result["training_ratio"], result["python_ratio"])
    return cli.EXIT_OK if worst <= TARGET else cli.EXIT_FOUND


def run(
    folder: Path, prefix: list[str], arguments: argparse.Namespace, env: dict[str, str]
) -> dict[str, float]:
    """The seconds that one run of the script took, by its own clock."""
    out = folder / "out.json"
    out.unlink(missing_ok=True)
    script = [str(folder / "work.py"), str(arguments.steps), str(arguments.numbers), str(out)]
    done = subprocess.run(
        [sys.executable, *prefix, *script],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
    )
    if not out.exists():
        raise CheckFailed(f"the script failed: {done.stderr[-500:]}")
    return json.loads(out.read_text())


if __name__ == "__main__":
    cli.run(main)
