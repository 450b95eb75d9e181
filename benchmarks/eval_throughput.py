#!/usr/bin/env python3
"""Evaluation throughput: eval_offline's loop against a bare gather, and against one by one.

The same tasks, client and sampling parameters each time, on one rehearsal, in alternating order:

    ours / gather        target: at least 0.95 (replies graded per second)
    ours / sequential    what concurrency wins; target: at least 4

``gather`` is what one would write by hand: every request in one ``asyncio.gather``, then parse
and grade in this process, nothing kept. Ours also bounds the requests, grades in batches beside
the sampling, and writes every reply and grade to a log from which it can go on. The grader is a
user's function in its own process for ours, and a direct call of it for the others. Exit code 1
if a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from tinkerlab import cli

GATHER_TARGET = 0.95
SEQUENTIAL_TARGET = 4.0
REWARD = "def score(completion, answer):\n    return str(answer) in completion\n"


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    with tempfile.TemporaryDirectory() as temporary:
        seconds = measure(arguments, Path(temporary))
    ours, gather, sequential = (
        statistics.median(seconds[name]) for name in ("ours", "gather", "sequential")
    )
    rows = [
        {"name": "ours / gather", "ratio": gather / ours, "target": GATHER_TARGET},
        {"name": "ours / sequential", "ratio": sequential / ours, "target": SEQUENTIAL_TARGET},
    ]
    for row in rows:
        row["pass"] = row["ratio"] >= row["target"]
    if arguments.json:
        cli.emit_json({**vars(arguments), "seconds": seconds, "results": rows})
    else:
        print(f"{arguments.model}, {arguments.tasks} tasks of {arguments.max_tokens} tokens")
        for name, values in seconds.items():
            print(f"  {name:<11}{arguments.tasks / statistics.median(values):8.1f} replies/s")
        for row in rows:
            verdict = "pass" if row["pass"] else "MISS"
            print(f"{verdict}  {row['ratio']:.2f}x (target >= {row['target']})  {row['name']}")
    return cli.EXIT_OK if all(row["pass"] for row in rows) else cli.EXIT_FOUND


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python benchmarks/eval_throughput.py --rounds 15",
    )
    add = parser.add_argument
    add("--model", default="tiny:llama", help="rehearsal model (default: %(default)s)")
    add("--tasks", type=int, default=128, help="tasks, all of them in flight at once")
    add("--max-tokens", type=int, default=32, help="length of each reply")
    add("--rounds", type=int, default=9, help="rounds of ours and gather")
    add("--sequential-rounds", type=int, default=1, help="rounds of one by one")
    add("--json", action="store_true", help="print one JSON document")
    return parser.parse_args(argv)


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, list[float]]:
    """Wall seconds of each round of each way, after one round of each to warm up."""
    import tinker

    from tinkerlab.data import load_tokenizer, resolve_renderer
    from tinkerlab.evaluation import attempts
    from tinkerlab.grading import load_grader
    from tinkerlab.rehearsal.service.launch import rehearsal_server
    from tinkerlab.tasks import load_tasks

    reward = folder / "reward.py"
    reward.write_text(REWARD)
    os.environ["TINKER_TELEMETRY"] = "0"  # it would go on after the service has stopped
    with rehearsal_server([arguments.model], store=folder / "store") as server:
        os.environ.update({key: server.env[key] for key in ("TINKER_BASE_URL", "TINKER_API_KEY")})
        tokenizer = load_tokenizer(arguments.model)
        renderer = resolve_renderer(arguments.model, tokenizer).renderer
        service = tinker.ServiceClient()
        client = service.create_sampling_client(base_model=arguments.model).result()
        sampling = attempts.Sampling(max_tokens=arguments.max_tokens)
        tasks = load_tasks("reasoning_gym:chain_sum", limit=arguments.tasks)
        items = attempts.make_items(tasks, renderer, sampling)
        grader = load_grader(f"{reward}:score")
        namespace: dict[str, Any] = {}
        exec(REWARD, namespace)  # noqa: S102 - the text above
        scores: dict[str, list[float]] = {}

        def ours(number: int) -> None:
            log = attempts.AttemptLog(folder / f"log-{number}")
            found = attempts.run(
                {"model": client}, items, grader, "reward", log,
                renderer=renderer, tokenizer=tokenizer, sampling=sampling,
            )  # fmt: skip
            log.close()
            scores["ours"] = [grade.score for item in found["model"] for grade in item.grades]

        async def ask(item: attempts.Item) -> float:
            response = await client.sample(
                prompt=tinker.ModelInput.from_ints(list(item.tokens)),
                num_samples=1,
                sampling_params=sampling.params(item.index, renderer.get_stop_sequences()),
            )
            text = attempts.reply_text(renderer, tokenizer, response.sequences[0].tokens)
            return float(namespace["score"](text, item.task.answer))

        async def all_at_once() -> list[float]:
            return await asyncio.gather(*map(ask, items))

        async def one_by_one() -> list[float]:
            return [await ask(item) for item in items]

        def gather(number: int) -> None:
            scores["gather"] = asyncio.run(all_at_once())

        def sequential(number: int) -> None:
            scores["sequential"] = asyncio.run(one_by_one())

        try:
            seconds = alternate({"ours": ours, "gather": gather}, arguments.rounds)
            seconds |= alternate(
                {"sequential": sequential}, arguments.sequential_rounds, warm=False
            )
        finally:
            grader.close()
            service.close("success")
    if not scores["ours"] == scores["gather"] == scores["sequential"]:
        cli.say("note: the three ways did not get the same replies; compare with care")
    return seconds


def alternate(
    ways: dict[str, Callable[[int], None]], rounds: int, *, warm: bool = True
) -> dict[str, list[float]]:
    """Wall seconds by way; the order is reversed from round to round."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(-1 if warm else 0, rounds):
        order = list(ways) if number % 2 else list(reversed(ways))
        for name in order:
            started = time.perf_counter()
            ways[name](number)
            if number >= 0:
                seconds[name].append(time.perf_counter() - started)
        cli.say(f"round {number + 1} of {rounds}")
    return seconds


if __name__ == "__main__":
    cli.run(main)
