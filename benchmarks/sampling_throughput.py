"""Sampling throughput: continuous batching against `model.generate` and against one by one.

Two ratios, on one model, one thread count and one run, in alternating order:

1. 32 concurrent requests against one `model.generate` batch of the same 32 prompts, tokens per
   second. Target: at least 0.8.
2. 64 concurrent requests against the same 64 one after another, wall time. Target: at least 8.

All completions have the same fixed length (no end-of-sequence token), drawn at temperature 1.
The medians of the rounds are compared. Exit code 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from tinkerlab import cli

GENERATE_TARGET = 0.8
SEQUENTIAL_TARGET = 8.0

TEXT = (
    "A fine-tune starts with data: conversations that show what the model should say, in the"
    " words of the people who will use it. Read a hundred of them before you train on any."
)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parse(argv)
    import torch

    from tinkerlab.rehearsal.engine.base import BaseModel
    from tinkerlab.rehearsal.engine.sampling import Sampler
    from tinkerlab.rehearsal.models import registry

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    base = BaseModel.load(registry.resolve(arguments.model or registry.DEFAULT_MODEL))
    prompts = _prompts(base, 64)
    sampler = Sampler(base)
    new = arguments.max_tokens
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    try:
        first = _compare(
            clock,
            arguments.rounds,
            lambda: _concurrent(sampler, prompts[:32], new),
            lambda: _generate(base, prompts[:32], new),
        )
        second = _compare(
            clock,
            arguments.sequential_rounds,
            lambda: _concurrent(sampler, prompts, new),
            lambda: _one_by_one(sampler, prompts, new),
        )
    finally:
        sampler.close()
    tokens = 32 * new
    rows = [
        {
            "name": "32 concurrent requests / one model.generate batch of 32 (tokens/s)",
            "ratio": first[1] / first[0],
            "target": GENERATE_TARGET,
            "ours": tokens / first[0],
            "theirs": tokens / first[1],
        },
        {
            "name": "64 concurrent requests / the same 64 one after another (tokens/s)",
            "ratio": second[1] / second[0],
            "target": SEQUENTIAL_TARGET,
            "ours": 2 * tokens / second[0],
            "theirs": 2 * tokens / second[1],
        },
    ]
    for row in rows:
        row["pass"] = row["ratio"] >= row["target"]
    if arguments.json:
        cli.emit_json(
            {
                "model": base.name,
                "threads": torch.get_num_threads(),
                "max_tokens": new,
                "results": rows,
            }
        )
    else:
        print(f"{base.name}, {torch.get_num_threads()} threads, {new} new tokens each")
        for row in rows:
            print(
                f"{'pass' if row['pass'] else 'MISS'}  {row['ratio']:.2f}x"
                f" (target >= {row['target']})  {row['name']}:"
                f" {row['ours']:.1f} against {row['theirs']:.1f}"
            )
    return cli.EXIT_OK if all(row["pass"] for row in rows) else cli.EXIT_FOUND


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python benchmarks/sampling_throughput.py --model tiny:llama --rounds 5",
    )
    parser.add_argument("--model", help="name or folder (default: the embedded SmolLM2-135M)")
    parser.add_argument("--max-tokens", type=int, default=64, help="new tokens of each request")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the first comparison")
    parser.add_argument(
        "--sequential-rounds", type=int, default=1, help="rounds of the second comparison"
    )
    parser.add_argument("--threads", type=int, default=0, help="torch threads (0: torch's choice)")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="compare CPU seconds instead of wall time: for a busy machine, with --threads 1",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    return parser.parse_args(argv)


def _prompts(base: Any, count: int) -> list[list[int]]:
    """Prompts of different length (9 to 40 tokens), as chats have."""
    tokens = base.tokenizer.encode(TEXT, add_special_tokens=False)
    while len(tokens) < 128:
        tokens = tokens + tokens
    return [tokens[index : index + 9 + (index * 7) % 32] for index in range(count)]


def _request(prompt: list[int], new: int, seed: int) -> Any:
    from tinkerlab.rehearsal.engine.types import SamplingRequest

    return SamplingRequest(prompt, max_tokens=new, seed=seed, stop_tokens=frozenset())


def _concurrent(sampler: Any, prompts: list[list[int]], new: int) -> None:
    futures = [sampler.submit(_request(p, new, seed)) for seed, p in enumerate(prompts)]
    assert all(len(future.result().sequences[0].tokens) == new for future in futures)


def _one_by_one(sampler: Any, prompts: list[list[int]], new: int) -> None:
    for seed, prompt in enumerate(prompts):
        result = sampler.submit(_request(prompt, new, seed)).result()
        assert len(result.sequences[0].tokens) == new


def _generate(base: Any, prompts: list[list[int]], new: int) -> None:
    import torch

    width = max(len(prompt) for prompt in prompts)
    tokens = torch.zeros(len(prompts), width, dtype=torch.int64)
    mask = torch.zeros_like(tokens)
    for row, prompt in enumerate(prompts):
        tokens[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    with torch.inference_mode():
        out = base.hf.generate(
            tokens,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=new,
            eos_token_id=base.vocab_size,  # never drawn: all completions have one length
            pad_token_id=0,
        )
    assert out.shape[1] == width + new


def _compare(
    clock: Callable[[], float],
    rounds: int,
    ours: Callable[[], None],
    theirs: Callable[[], None],
) -> tuple[float, float]:
    """Median seconds of both, run in alternating order after one warm-up of the first."""
    ours()
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        order = ((0, ours), (1, theirs)) if number % 2 == 0 else ((1, theirs), (0, ours))
        for which, run in order:
            started = clock()
            run()
            times[which].append(clock() - started)
            cli.say(f"round {number + 1}: {('ours', 'theirs')[which]} {times[which][-1]:.2f} s")
    return statistics.median(times[0]), statistics.median(times[1])


if __name__ == "__main__":
    cli.run(main)
