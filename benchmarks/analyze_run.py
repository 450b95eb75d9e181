"""Time and memory of analyze_run.py on a large run, against parsing its JSON alone.

Two inputs, made in a temporary folder: 100,000 steps of SFT metrics, and a 500 MB file of
rollout summaries. Each case runs in a process of its own, which reports its CPU time and its
peak resident memory; the other side reads the same lines with the same ``json`` module and keeps
nothing. Targets: at most 3 times the parsing, and a peak of at most 500 MB. Exit code 1 if one
is missed.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from tinkerlab import cli

TIME_TARGET = 3.0
MEMORY_TARGET = 500.0  # megabytes
MEGABYTE = 1e6
GROUP = 16


def main(argv: Sequence[str] | None = None) -> int:
    args = _parse(argv)
    if args.case:
        return _measure(args.case, args.folder)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, make in (("steps", _steps), ("rollouts", _rollouts)):
            run = Path(folder) / name
            run.mkdir()
            size = make(run, args) / MEGABYTE
            parse, ours = (_child(case, run, args.repeats) for case in ("parse", "analyze"))
            rows += [
                {
                    "name": f"{name}: CPU time / json.loads alone ({size:.0f} MB, seconds)",
                    "ratio": ours["seconds"] / parse["seconds"],
                    "target": TIME_TARGET,
                    "ours": ours["seconds"],
                    "theirs": parse["seconds"],
                },
                {
                    "name": f"{name}: peak memory / {MEMORY_TARGET:.0f} MB",
                    "ratio": ours["peak"] / MEGABYTE / MEMORY_TARGET,
                    "target": 1.0,
                    "ours": ours["peak"] / MEGABYTE,
                    "theirs": MEMORY_TARGET,
                },
            ]
    for row in rows:
        row["pass"] = row["ratio"] <= row["target"]
    if args.json:
        cli.emit_json({"results": rows})
    else:
        for row in rows:
            print(
                f"{'pass' if row['pass'] else 'MISS'}  {row['ratio']:.2f}x"
                f" (target <= {row['target']})  {row['name']}:"
                f" {row['ours']:.2f} against {row['theirs']:.2f}"
            )
    return cli.EXIT_OK if all(row["pass"] for row in rows) else cli.EXIT_FOUND


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Time and memory of analyze_run.py against parsing the JSON alone.",
        epilog="example: python benchmarks/analyze_run.py --megabytes 500",
    )
    parser.add_argument("--steps", type=int, default=100_000, help="rows of metrics.jsonl")
    parser.add_argument("--megabytes", type=int, default=500, help="size of the rollout file")
    parser.add_argument("--repeats", type=int, default=3, help="the fastest counts")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    parser.add_argument("--case", choices=("parse", "analyze"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _steps(run: Path, args: argparse.Namespace) -> int:
    """metrics.jsonl as tinker-cookbook's supervised loop writes it; its size in bytes."""
    noise, total = random.Random(0), args.steps  # noqa: S311
    file = run / "metrics.jsonl"
    with file.open("w") as out:
        for step in range(total):
            nll = 1.2 + 1.5 / (1 + step / 2000) + noise.gauss(0, 0.05)
            wait = 2.0 + noise.random() / 5
            row = {
                "step": step,
                "epoch": 0,
                "progress": (step + 1) / total,
                "learning_rate": 2e-4 * (1 - step / total),
                "num_sequences": 128,
                "num_tokens": 40_000 + noise.randrange(5000),
                "num_loss_tokens": 128.0,
                "train_mean_nll": nll,
                "train_mean_bpb": nll / 2.9,
                "time/submit_batch": 0.05 + noise.random() / 50,
                "time/get_batch": 0.03 + noise.random() / 50,
                "time/step": wait,
                "time/finish_batch": wait + 0.001,
                "time/total": 2 * wait,
            }
            if step % 100 == 0:
                row["test/nll"] = nll + 0.05
            out.write(json.dumps(row) + "\n")
    return file.stat().st_size


def _rollouts(run: Path, args: argparse.Namespace) -> int:
    """One file of rollout summaries with a reply of some 200 words each; its size in bytes."""
    noise, size, index = random.Random(0), args.megabytes * MEGABYTE, 0  # noqa: S311
    words = [
        "the",
        "sum",
        "of",
        "both",
        "sides",
        "gives",
        "us",
        "a",
        "number",
        "that",
        "we",
        "divide",
    ]
    file = run / "train_rollout_summaries.jsonl"
    with file.open("w") as out:
        while out.tell() < size if index % 512 == 0 else True:
            reply = " ".join(noise.choices(words, k=200))
            correct = float(noise.random() < 0.4)
            length = noise.randrange(150, 400)
            step = {
                "step_idx": 0,
                "ob_len": 80,
                "ac_len": length,
                "reward": correct,
                "episode_done": True,
                "metrics": {"format": 1.0, "correct": correct},
                "logs": {"problem": "What is the sum?", "response": reply, "answer": "12"},
            }
            row = {
                "schema_version": 1,
                "split": "train",
                "iteration": index // 512,
                "group_idx": index // GROUP % 32,
                "traj_idx": index % GROUP,
                "tags": ["math"],
                "sampling_client_step": index // 512,
                "total_reward": correct,
                "final_reward": 0.0,
                "trajectory_metrics": {},
                "steps": [step],
                "final_ob_len": 0,
            }
            out.write(json.dumps(row) + "\n")
            index += 1
    return file.stat().st_size


def _child(case: str, run: Path, repeats: int) -> dict[str, float]:
    """The fastest of several processes: CPU seconds, and the largest peak in bytes."""
    command = [sys.executable, __file__, "--case", case, "--folder", str(run)]
    runs = [
        json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        for _ in range(repeats)
    ]
    return {
        "seconds": min(run["seconds"] for run in runs),
        "peak": max(run["peak"] for run in runs),
    }


def _measure(case: str, folder: Path) -> int:
    """In a child: run one case; ru_maxrss is in kilobytes on Linux, in bytes on macOS."""
    work: Callable[[Path], None] = _parse_alone if case == "parse" else _analyze
    began = time.process_time()
    work(folder)
    seconds = time.process_time() - began
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    print(json.dumps({"seconds": seconds, "peak": peak}), flush=True)
    return cli.EXIT_OK


def _parse_alone(folder: Path) -> None:
    for file in folder.iterdir():
        with file.open("rb") as lines:
            for line in lines:
                json.loads(line)


def _analyze(folder: Path) -> None:
    from tinkerlab.diagnosis.run_analysis.analysis import analyze
    from tinkerlab.diagnosis.run_analysis.run import open_run

    run = open_run(folder)
    run.read()
    diagnosis = analyze(run)
    assert not diagnosis.findings, diagnosis.as_dict()


if __name__ == "__main__":
    cli.run(main)
