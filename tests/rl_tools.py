"""RL runs small enough for tests: tasks and graders in memory, a tiny model, a few steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinkerlab.grading.types import Attempt, Grade
from tinkerlab.runs import checkpoints, metrics
from tinkerlab.training.rl.config import RLConfig
from tinkerlab.training.rl.data import RLData, stop_sequences
from tinkerlab.training.rl.rollouts import Completion, Group
from tinkerlab.training.rl.run import RLRun


@dataclass(frozen=True)
class FakeTask:
    prompt: Sequence[dict[str, Any]]
    answer: Any = None
    row: dict[str, Any] = field(default_factory=dict)
    place: str = ""


@dataclass
class FunctionGrader:
    """Grades by a function of the completion's text."""

    function: Callable[[str], float | Grade]
    name: str = "test"

    def grade(self, attempts: Sequence[Attempt]) -> list[Grade]:
        results = [self.function(attempt.completion) for attempt in attempts]
        return [r if isinstance(r, Grade) else Grade(score=r) for r in results]

    def close(self) -> None:
        return None


def share_of_e(text: str) -> float:
    """A reward that training can raise quickly: how much of the text is the letter e."""
    return sum(letter in "eE" for letter in text) / max(len(text), 1)


def tasks(count: int, first: int = 0) -> list[Any]:
    return [
        FakeTask([{"role": "user", "content": f"Say {n}."}], str(n), {}, f"tasks.jsonl:{n + 1}")
        for n in range(first, first + count)
    ]


def config(folder: Path, **changes: Any) -> RLConfig:
    settings: dict[str, Any] = {
        "base_model": "tiny:llama",
        "dataset": "tasks.jsonl",
        "reward": "test",
        "renderer": "qwen3_instruct",
        "log_path": str(folder),
        "num_steps": 4,
        "groups_per_batch": 2,
        "group_size": 4,
        "max_tokens": 8,
        "learning_rate": 0.02,
        "lora_rank": 4,
        "eval_every": 2,
        "save_every": 2,
        "preflight_groups": 2,
    }
    return RLConfig(**{**settings, **changes})


def data(
    config: RLConfig, function: Callable[[str], float | Grade] = share_of_e, held_out: int = 2
) -> RLData:
    from tinkerlab.data import load_tokenizer, resolve_renderer

    tokenizer = load_tokenizer(config.base_model)
    resolved = resolve_renderer(config.base_model, tokenizer, config.renderer)
    return RLData(
        train=tasks(10),
        held_out=tasks(held_out, first=10),
        grader=FunctionGrader(function),
        renderer=resolved.renderer,
        renderer_name=resolved.name,
        tokenizer=tokenizer,
        stop=stop_sequences(resolved.renderer, tokenizer, config.stop),
        stops_of_its_own=bool(config.stop),
        system_prompt=config.system_prompt,
        zero_reward_on_limit=config.zero_reward_on_limit,
    )


def run(folder: Path, function: Callable[[str], float | Grade] = share_of_e, **changes: Any):
    """An RL run on the rehearsal that the environment names."""
    settings = config(folder, **changes)
    return RLRun(
        settings,
        data(settings, function),
        float(settings.learning_rate),
        command="python scripts/rl_trainer.py --config c.yaml",
        checkpoint=settings.load_checkpoint_path,
    )


def rows(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a run without its times."""
    return [
        {key: value for key, value in row.items() if not key.startswith("time/")}
        for row in metrics.read(folder)
    ]


def rollouts(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rollouts.jsonl").read_text().splitlines()]


def saved_steps(folder: Path) -> list[int]:
    return [record.step for record in checkpoints.read(folder)]


def completion(score: float = 0.0, text: str = "x", **changes: Any) -> Completion:
    """A graded sample that was never sampled. ``correct``, ``extracted``, ``error`` grade it."""
    grade = {key: changes.pop(key) for key in ("correct", "extracted", "error") if key in changes}
    values: dict[str, Any] = {
        "tokens": [ord(letter) for letter in text],
        "logprobs": [-1.0] * len(text),
        "text": text,
        "truncated": False,
        "well_formed": True,
        **changes,
    }
    return Completion(**values, grade=Grade(score=score, **grade))


def group(*completions: Completion) -> Group:
    return Group(tasks(1)[0], None, completions)  # type: ignore[arg-type]
