#!/usr/bin/env python3
"""Does the supervised trainer keep a distant service busy?

Trains the same steps three times in one run: against a service without delay, against one that
delays every request (``rehearse.py serve --fault latency:200ms``), and against that one while
waiting for each step before submitting the next. Prints two ratios:

    pipelined / ideal     target: at most 1.1
    waiting / pipelined   what the pipelining wins

Ideal is one delayed round trip, until the first request has arrived, plus the steps at the pace
of the slower of two things that no client can do without: the service's own time for a step
(measured in the run without delay), and handing over a step's two requests, which the SDK sends
one after the other, each waiting for the acknowledgement of the one before. A round trip is
measured on the delayed service with requests that ask it for nothing, right after the training.
On a machine that is busy with other things the ratio says more about those.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from tinkerlab import cli
from tinkerlab.errors import CheckFailed

TARGET = 1.1


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--latency-ms", type=int, default=200)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--batch-size", type=int, default=4, help="examples a step")
    parser.add_argument("--model", default="tiny:llama")
    parser.add_argument("--submit-ahead", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = build_parser().parse_args(argv)
    steps = arguments.steps
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        near, _ = train(arguments, folder / "near", [], arguments.submit_ahead)
        fault = [f"latency:{arguments.latency_ms}ms"]
        pipelined, round_trip = train(
            arguments, folder / "pipelined", fault, arguments.submit_ahead
        )
        waiting, _ = train(arguments, folder / "waiting", fault, 0)
    step_seconds = near / steps
    ideal = round_trip + steps * max(step_seconds, 2 * round_trip)
    result = {
        "latency_seconds": arguments.latency_ms / 1000,
        "round_trip_seconds": round(round_trip, 4),
        "steps": steps,
        "service_seconds_per_step": round(step_seconds, 4),
        "ideal_seconds": round(ideal, 3),
        "pipelined_seconds": round(pipelined, 3),
        "waiting_seconds": round(waiting, 3),
        "pipelined_over_ideal": round(pipelined / ideal, 3),
        "waiting_over_pipelined": round(waiting / pipelined, 3),
        "target": TARGET,
    }
    if arguments.json:
        cli.emit_json(result)
    else:
        for key, value in result.items():
            print(f"{key:<26} {value}")
    return cli.EXIT_OK if result["pipelined_over_ideal"] <= TARGET else cli.EXIT_FOUND


def train(
    arguments: argparse.Namespace, folder: Path, faults: list[str], submit_ahead: int
) -> tuple[float, float]:
    """Seconds from the first submission to the last step's row, and of an empty round trip."""
    import sl_trainer
    from tinkerlab.rehearsal.service.launch import rehearsal_server
    from tinkerlab.runs import metrics

    data = resources.files("tinker_cookbook") / "example_data" / "conversations.jsonl"
    with rehearsal_server([arguments.model], store=folder / "store", faults=faults) as server:
        os.environ.update({key: server.env[key] for key in ("TINKER_BASE_URL", "TINKER_API_KEY")})
        os.environ["TINKER_TELEMETRY"] = "0"  # it would go on after the service has stopped
        with (
            (folder / "log").open("w") as log,
            contextlib.redirect_stdout(log),
            contextlib.redirect_stderr(log),
        ):
            code = sl_trainer.main(
                [
                    f"base_model={arguments.model}",
                    f"train_file={data}",
                    f"log_path={folder / 'run'}",
                    f"num_steps={arguments.steps}",
                    f"train_batch_size={arguments.batch_size}",
                    f"submit_ahead={submit_ahead}",
                    "val_fraction=0",
                    "save_every=0",
                    "learning_rate=1e-4",
                    "lora_rank=8",
                ]
            )
        round_trip = measure_round_trip()
    if code != cli.EXIT_OK:
        log = (folder / "log").read_text()
        raise CheckFailed(
            f"the training in {folder.name} ended with exit code {code}: {log[-500:]}"
        )
    rows = metrics.read(folder / "run")
    cli.say(f"{folder.name}: {sum(row['time/total'] for row in rows):.2f} s")
    return sum(row["time/total"] for row in rows if row["step"] < arguments.steps), round_trip


def measure_round_trip(repeats: int = 9) -> float:
    """Median seconds of a request that needs no work."""
    from tinkerlab.service import rest_client

    client = rest_client()
    seconds = []
    for _ in range(repeats):
        started = time.monotonic()
        client.get_server_capabilities().result()
        seconds.append(time.monotonic() - started)
    return statistics.median(seconds)


if __name__ == "__main__":
    cli.run(main)
