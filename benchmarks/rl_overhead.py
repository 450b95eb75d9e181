"""Time of an RL step: our trainer against tinker-cookbook's own loop, on the same rehearsal.

Same model, tasks, group sizes, tokens, loss and rank; the cookbook's console and HTML logs are
off. Each runs the same number of steps, in alternating order; the medians of the steps after
the first are compared. Completions are as long as max_tokens in both, because the reward never
lets the policy learn to stop. Target: at most 1.05 times the cookbook's time. Exit code 1 if
missed.

A tiny model shows the overhead at its worst: what is compared is the loop, not the model.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from tinkerlab import cli
from tinkerlab.grading.types import Attempt, Grade
from tinkerlab.runs import metrics

TARGET = 1.05


def reward(text: str) -> float:
    """Quick, and different from completion to completion."""
    return (sum(text.encode()) % 101) / 100


class QuickGrader:
    """``reward`` as a grader, in this process as the cookbook's environments are."""

    name = "benchmark"

    def grade(self, attempts: Sequence[Attempt]) -> list[Grade]:
        return [Grade(reward(attempt.completion)) for attempt in attempts]

    def close(self) -> None:
        return None


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parse(argv)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ["TINKER_TELEMETRY"] = "0"
    from tinkerlab.rehearsal.service.launch import rehearsal_server

    times: dict[str, list[float]] = {"ours": [], "cookbook": []}
    loops = {"ours": run_ours, "cookbook": run_cookbook}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        with rehearsal_server([arguments.model], store=root / "store") as server:
            os.environ.update(server.env)
            for number in range(arguments.rounds):
                for name in list(loops) if number % 2 == 0 else list(loops)[::-1]:
                    found = loops[name](arguments, root / f"{name}-{number}")
                    times[name] += found
                    cli.say(f"round {number + 1}, {name}: {statistics.median(found):.3f} s a step")
    ours, theirs = (statistics.median(times[name]) for name in loops)
    row = {
        "name": f"RL step of {arguments.groups} groups of {arguments.group_size} completions of"
        f" {arguments.tokens} tokens",
        "model": arguments.model,
        "ratio": ours / theirs,
        "target": TARGET,
        "ours": ours,
        "theirs": theirs,
        "pass": ours / theirs <= TARGET,
    }
    if arguments.json:
        cli.emit_json({"results": [row]})
    else:
        print(
            f"{'pass' if row['pass'] else 'MISS'}  {row['ratio']:.2f}x (target <= {TARGET})"
            f"  {row['name']}: {ours:.3f} s against {theirs:.3f} s"
        )
    return cli.EXIT_OK if row["pass"] else cli.EXIT_FOUND


def questions(count: int) -> list[str]:
    return [f"What is {n} plus {n + 1}?" for n in range(count)]


def run_ours(arguments: argparse.Namespace, folder: Path) -> list[float]:
    """Seconds of each step after the first."""
    from tinkerlab.data import load_tokenizer, resolve_renderer
    from tinkerlab.tasks import Task
    from tinkerlab.training.rl.config import RLConfig
    from tinkerlab.training.rl.data import RLData, stop_sequences
    from tinkerlab.training.rl.run import RLRun

    config = RLConfig(
        base_model=arguments.model,
        dataset="benchmark",
        reward="benchmark",
        renderer=arguments.renderer,
        log_path=str(folder),
        num_steps=arguments.steps,
        groups_per_batch=arguments.groups,
        group_size=arguments.group_size,
        max_tokens=arguments.tokens,
        lora_rank=arguments.rank,
        learning_rate=1e-5,
        eval_every=0,
        save_every=0,
        preflight_groups=1,
        stop_on_collapse=False,
    )
    tokenizer = load_tokenizer(config.base_model)
    resolved = resolve_renderer(config.base_model, tokenizer, config.renderer)
    tasks = [
        Task([{"role": "user", "content": text}])
        for text in questions(arguments.groups * arguments.steps)
    ]
    data = RLData(
        tasks,
        [],
        QuickGrader(),
        resolved.renderer,
        resolved.name,
        tokenizer,
        stop_sequences(resolved.renderer, tokenizer, None),
    )
    RLRun(config, data, 1e-5, command="").train()
    return [row["time/total"] for row in metrics.read(folder) if row["step"] > 0]


def run_cookbook(arguments: argparse.Namespace, folder: Path) -> list[float]:
    """Seconds of each step after the first."""
    import chz
    from tinker_cookbook import renderers, tokenizer_utils
    from tinker_cookbook.rl import train
    from tinker_cookbook.rl.problem_env import ProblemEnv, ProblemGroupBuilder
    from tinker_cookbook.rl.types import RLDataset, RLDatasetBuilder

    from tinkerlab.data import load_tokenizer

    tokenizer = load_tokenizer(arguments.model)
    tokenizer_utils.register_tokenizer(arguments.model, lambda: tokenizer)
    renderer = renderers.get_renderer(arguments.renderer, tokenizer)

    class Env(ProblemEnv):
        def __init__(self, question: str) -> None:
            super().__init__(renderer, format_coef=0.0)
            self.question = question

        def get_question(self) -> str:
            return self.question

        def check_answer(self, sample_str: str) -> Any:
            return reward(sample_str)

        def check_format(self, sample_str: str) -> bool:
            return True

        def get_reference_answer(self) -> str:
            return ""

    class Problems(RLDataset):
        def get_batch(self, index: int) -> list[ProblemGroupBuilder]:
            first = index * arguments.groups
            chosen = questions(arguments.groups * arguments.steps)[first : first + arguments.groups]
            return [
                ProblemGroupBuilder(lambda text=text: Env(text), arguments.group_size)
                for text in chosen
            ]

        def __len__(self) -> int:
            return arguments.steps

    @chz.chz
    class Builder(RLDatasetBuilder):
        async def __call__(self) -> tuple[RLDataset, None]:
            return Problems(), None

    train.print_group = lambda *_: None  # it prints two groups a step
    logging.disable(logging.INFO)
    config = train.Config(
        learning_rate=1e-5,
        dataset_builder=Builder(),
        model_name=arguments.model,
        recipe_name="benchmark",
        max_tokens=arguments.tokens,
        log_path=str(folder),
        eval_every=0,
        save_every=0,
        renderer_name=arguments.renderer,
        lora_rank=arguments.rank,
        num_groups_to_log=0,
        rollout_json_export=False,
    )
    asyncio.run(train.main(config))
    logging.disable(logging.NOTSET)
    return [row["time/total"] for row in metrics.read(folder) if row.get("progress/batch", 0) > 0]


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python benchmarks/rl_overhead.py --groups 4 --group-size 8",
    )
    parser.add_argument("--model", default="tiny:llama", help="a model of the rehearsal")
    parser.add_argument("--renderer", default="qwen3_instruct")
    parser.add_argument("--groups", type=int, default=8, help="groups of a batch")
    parser.add_argument("--group-size", type=int, default=8, help="completions of a group")
    parser.add_argument("--tokens", type=int, default=32, help="of each completion")
    parser.add_argument("--steps", type=int, default=12, help="steps of a round")
    parser.add_argument("--rank", type=int, default=8, help="LoRA rank")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    return parser.parse_args(argv)


if __name__ == "__main__":
    cli.run(main)
